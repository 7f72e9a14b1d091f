"""Pieces of models, losses and scripts in Gluon, for `drawn_models`."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn
from support import drawn_models
from support.drawn.pieces import Framework, common
from support.drawn_models import (
    BATCH,
    CLASSES,
    EVALUATED,
    FEATURES,
    KEPT,
    LR,
    ODD,
    OUTSIDE,
    STATE,
    Drawn,
    Piece,
    PlainRun,
)

import hvdtrain

STRATEGIES = ("ring", "ring", "horovod")
OPTIONS = ({"weight-decay": "0.01", "nesterov": ""},)


def dense(units: int = FEATURES, in_units: int = FEATURES, **options: Any) -> nn.Dense:
    return nn.Dense(units, in_units=in_units, **options)


class Layer(gluon.Block):
    """A layer, and a function of this block and its inputs; arrays that are not trained by their names."""

    def __init__(self, function, layer=dense, **arrays):
        super().__init__()
        self.function, self.layer = function, layer()
        for name, array in arrays.items():
            initial = mx.init.Constant(mx.nd.array(array, dtype=array.dtype))
            options = {"shape": array.shape, "dtype": array.dtype, "init": initial}
            setattr(self, name, self.params.get(name, grad_req="null", **options))

    def forward(self, x):
        return self.function(self, x)


def forces(block, x):
    """The gradient of an energy, of which the layer's parameters have gradients; those before it have none."""
    x = x.detach()
    x.attach_grad()
    with autograd.record(autograd.is_training()):
        energy = mx.nd.tanh(block.layer(x))
    (slope,) = autograd.grad(energy, [x], create_graph=True, train_mode=autograd.is_training())
    return slope


def slope(values):
    """The gradient of a graph of its own."""
    copy = values.detach()
    copy.attach_grad()
    with autograd.record(autograd.is_training()):
        inner = mx.nd.tanh(copy).sum()
    inner.backward()
    return copy.grad


def stateful(block, x):
    if autograd.is_training():
        with autograd.pause():
            block.state.set_data((0.5 * block.state.data() + x).reshape((BATCH, FEATURES)))
    return block.layer(x + 0.1 * block.state.data().mean(axis=0, keepdims=True))


COMMON = Framework(
    layer=lambda function, **arrays: Layer(lambda block, x: function(block, x, autograd.is_training()), **arrays),
    ones=lambda shape, kind: np.ones(shape, kind),
    get=lambda block, name: (block.layer.weight if name == "weight" else getattr(block, name)).data(),
    put=lambda block, name, value: (block.layer.weight if name == "weight" else getattr(block, name)).set_data(value),
    paused=autograd.pause,
    mean=lambda x: x.mean(axis=0, keepdims=True),
    reshape=mx.nd.NDArray.reshape,
    norm=mx.nd.norm,
    clip=lambda weight: weight.clip(-0.3, 0.3),
    noise=lambda weight: mx.nd.random.normal(shape=weight.shape),
    as_float=lambda array: array.astype("float32"),
)


def in_place(block, x):
    if autograd.is_training():
        with autograd.pause():
            block.layer.weight.data()[:] = block.layer.weight.data() / block.layer.weight.data().norm()
    return block.layer(x)


class Always(gluon.Block):
    """Normalizes by the rows in evaluations, too."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm(in_channels=FEATURES)

    def forward(self, x):
        with autograd.train_mode():
            return self.norm(x)


class Looked(gluon.Block):
    def __init__(self, units=FEATURES):
        super().__init__()
        self.table = nn.Embedding(8, units)

    def forward(self, x):
        numbers = ((x[:, :3] > 0) * mx.nd.array([[4, 2, 1]])).sum(axis=1)
        return x + self.table(numbers)


class Shared(nn.HybridSequential):
    def __init__(self):
        super().__init__()
        first = dense()
        self.add(first, nn.Activation("tanh"), first, dense(params=first.params))


class Branch(gluon.HybridBlock):
    """A branch that is called in training only, a constant, and a layer that is never called.

    features: of its inputs; 0 if the first ones decide.
    """

    def __init__(self, features=0):
        super().__init__()
        self.main, self.extra, self.unused = dense(in_units=features), nn.HybridSequential(), dense(in_units=2)
        self.extra.add(dense(in_units=features), nn.BatchNorm(in_channels=features))
        self.factors = self.params.get_constant("factors", mx.nd.arange(FEATURES))

    def hybrid_forward(self, F, x, factors):
        x = F.broadcast_mul(self.main(x), factors)
        return x + self.extra(x) if autograd.is_training() else x


class PlainBranch(gluon.Block):
    """A layer of training only, and one that is frozen, in a block that works on arrays only."""

    def __init__(self):
        super().__init__()
        self.main, self.extra, self.frozen = dense(), dense(), frozen()

    def forward(self, x):
        x = self.frozen(self.main(x))
        return x + self.extra(x) if autograd.is_recording() else x


def hybridized():
    """A part of a block that works on arrays is a graph, which is made in the first training step."""
    block = nn.Sequential()
    block.add(Branch(FEATURES))
    block[0].hybridize()
    return block


def multiplied():
    """Learning rate and weight decay of its parameters are multiples of the optimizer's."""
    layer = dense()
    layer.weight.lr_mult, layer.bias.lr_mult, layer.weight.wd_mult = 0.5, 2.0, 3.0
    return layer


def frozen():
    layer = dense()
    layer.collect_params().setattr("grad_req", "null")
    return layer


class Hooked(nn.HybridSequential):
    """A hook changes what the block does in the end."""

    def __init__(self):
        super().__init__()
        self.factor = 1.0
        self.inner = dense()
        self.add(self.inner)
        self.inner.register_forward_hook(self.count)

    def count(self, block, inputs, output):
        self.factor = 0.5 if autograd.is_training() else 1.0

    def hybrid_forward(self, F, x):
        return self.inner(x) * self.factor


class Weakened(autograd.Function):
    def forward(self, x):
        return x + 1

    def backward(self, gradient):
        return gradient / 2


class Function(gluon.Block):
    def forward(self, x):
        return Weakened()(x)


def remembering(block, x):
    """With what it has made of the rows before: so much that it is no rounding, as Gluon's first weights are small."""
    before, block.before = getattr(block, "before", None), x.detach().mean(axis=0, keepdims=True)
    return block.layer(x if before is None else x + 10 * before)


def ask(x):
    now = hvdtrain.progress()
    return x * (1 + now.step / 10 + now.epoch) + now.training


def asking(block, x):
    return ask(block.layer(x))


class AskingGraph(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return ask(x)


def in_a_list(others):
    """A layer that no block has."""

    def forward(block, x):
        if not others:
            others.append(dense())
            others[0].initialize()
        return others[0](block.layer(x))

    return forward


def sequence(*blocks):
    is_graph = all(isinstance(block, gluon.HybridBlock) for block in blocks)
    model = nn.HybridSequential() if is_graph else nn.Sequential()
    model.add(*blocks)
    return model


DTYPES = ("float64", "float16", "int32", "int64", "int8", "uint8")
PIECES = {
    "dense": Piece(dense),
    "shared": Piece(Shared),
    "deferred": Piece(lambda: dense(in_units=0)),
    "multiplied": Piece(multiplied),
    "frozen": Piece(frozen),
    "branch": STATE(Branch),
    "branch, hybridized": STATE(hybridized, alone=True),
    "branch, plain": Piece(PlainBranch),
    "hooked": Piece(Hooked),
    "function": Piece(Function),
    "layer norm": Piece(lambda: nn.LayerNorm(in_channels=FEATURES)),
    "dropout": Piece(lambda: nn.Dropout(0.3), draws=True),
    "forces": ODD(lambda: Layer(forces)),
    "slope inside": ODD(lambda: Layer(lambda block, x: block.layer(x) * slope(x))),
    "batch norm": STATE(lambda: nn.BatchNorm(in_channels=FEATURES)),
    "batch norm without scale": STATE(lambda: nn.BatchNorm(scale=False, momentum=0.5)),
    "batch norm of all steps": Piece(lambda: nn.BatchNorm(in_channels=FEATURES, use_global_stats=True)),
    "always batch norm": EVALUATED(Always),
    "stateful": STATE(lambda: Layer(stateful, state=np.zeros((BATCH, FEATURES), np.float32)), fixed=True, local=True),
    "normalized weight, in place": ODD(lambda: Layer(in_place)),
    "hidden state": KEPT(lambda: Layer(remembering)),
    "asking": Piece(lambda: Layer(asking)),
    "asking, in a graph": Piece(AskingGraph),
    "in a list": ODD(lambda: Layer(in_a_list([])), outside="tasks"),
    "embedding": Piece(Looked),
    **common(COMMON, DTYPES, refused=True),
}


def cross_entropy(outputs, labels):
    return gluon.loss.SoftmaxCrossEntropyLoss()(outputs, labels)


def slope_of_outputs(outputs, labels):
    return cross_entropy(outputs, labels) * (1 + slope(outputs).sum(axis=1))


CALLS = itertools.count(1)
FACTOR = gluon.Parameter("factor", shape=(1, CLASSES), init="ones")


def factor():
    if FACTOR._data is None:
        FACTOR.initialize()
    return FACTOR.data()


def asked(outputs, labels):
    now = hvdtrain.progress()
    return cross_entropy(outputs, labels) + (min(now.step / 10, 0.3) + now.training) * (outputs**2).sum(axis=1)


LOSSES = {
    "plain": Piece(cross_entropy),
    "asked": Piece(asked),
    "counted": KEPT(lambda outputs, labels: cross_entropy(outputs, labels) * (1 + next(CALLS) / 10)),
    "own parameter": ODD(lambda outputs, labels: cross_entropy(outputs * factor(), labels), outside="tasks"),
    "own parameter, detached": Piece(lambda outputs, labels: cross_entropy(outputs * factor().detach(), labels)),
    "squares": Piece(lambda outputs, labels: ((outputs - mx.nd.one_hot(labels, CLASSES)) ** 2).sum(axis=1)),
    "slope of outputs": ODD(slope_of_outputs),
}


class Slowing(mx.optimizer.Optimizer):
    """Counts its updates in an attribute."""

    def __init__(self):
        super().__init__(learning_rate=LR)
        self.count = 0

    def update(self, index, weight, grad, state):
        self.count += index == 0
        weight[:] -= self._get_lr(index) * self.rescale_grad / (1 + self.count // 2) * grad


class Keeping(mx.optimizer.Optimizer):
    """Keeps arrays that are not among its states."""

    def __init__(self):
        super().__init__(learning_rate=LR)
        self.kept = {}

    def update(self, index, weight, grad, state):
        self.kept[index] = self.kept.get(index, 0) * 0.9 + self.rescale_grad * grad
        weight[:] -= self._get_lr(index) * self.kept[index]


def scheduled():
    return mx.optimizer.NAG(learning_rate=LR, momentum=0.9, lr_scheduler=mx.lr_scheduler.PolyScheduler(9, LR))


of = mx.optimizer
# With a large epsilon, as rounding is the sign of a gradient without it. Not Nadam: it counts the updates of all
# parameters in one number, in the order of Gluon's names, which count the blocks that were made before.
OPTIMIZERS = {
    "schedule": Piece(scheduled),
    "Adam": Piece(lambda: of.Adam(learning_rate=0.01, epsilon=0.01, wd=0.1)),
    "FTML": Piece(lambda: of.FTML(learning_rate=0.01, epsilon=0.01)),
    "RMSprop": Piece(lambda: of.RMSProp(learning_rate=0.01, epsilon=0.01, centered=True)),
    "AdaGrad": Piece(lambda: of.AdaGrad(learning_rate=0.05, eps=0.01)),
    "SGLD": Piece(lambda: of.SGLD(learning_rate=0.01), draws=True),
    "slowing": Piece(Slowing),
    "keeping": OUTSIDE(Keeping),
}
ODDS = drawn_models.ODDS | {"look": Piece(None), "look in training mode": STATE(None), "hybridized": ODD(None)}


def model_of(drawn: Drawn) -> gluon.Block:
    body = [layer for name in drawn.pieces for layer in (PIECES[name].make(), nn.Activation("tanh"))]
    first = [] if drawn.pieces[0] in ("fixed batch", "stateful") else [dense(), nn.Activation("tanh")]
    return sequence(*first, *body, dense(CLASSES))


def script(drawn: Drawn, run: Any) -> None:
    """A script's training, by hvdtrain's run or a PlainRun."""
    odds, losses_of = {*(drawn.odds or ())}, LOSSES[drawn.losses].make

    model = model_of(drawn)
    if "two models" in odds:
        model = sequence(dense(), nn.Activation("tanh"), model)
    model.initialize()
    if any(0 in parameter.shape for parameter in model.collect_params().values()):
        model(mx.nd.array(drawn.data[0][0][:BATCH]))
    if "hybridized" in odds:
        model.hybridize()
    options = {"learning_rate": LR, "momentum": 0.9}
    if "schedule" in odds:
        options["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=LR)
    optimizer = mx.optimizer.create("nag" if "nesterov" in drawn.options else "sgd", **options)
    if drawn.optimizer:
        optimizer = OPTIMIZERS[drawn.optimizer].make()
    model, _ = run.setup(model, gluon.Trainer(model.collect_params(), optimizer))
    last = next(p for p in reversed(model.collect_params().values()) if p.grad_req != "null" and len(p.shape) == 2)

    def clip() -> None:
        last.set_data(last.data().clip(-0.3, 0.3))

    def evaluate(numbers, labels):
        if "draws in evaluations" in odds:
            numbers = numbers + mx.nd.random.normal(shape=numbers.shape)
        if "evaluates with gradients" in odds:
            numbers.attach_grad()
            with autograd.record(False):
                summed = model(numbers).sum()
            summed.backward()
        with autograd.train_mode() if "evaluates in training mode" in odds else contextlib.nullcontext():
            outputs = model(numbers)
        losses = losses_of(outputs, labels)
        right = outputs.argmax(axis=1) == labels.astype("float32")
        return (losses, {"right": right}) if "metrics" in odds else losses

    def before(numbers, labels):
        if "look" in odds:
            model(numbers)
        if "look in training mode" in odds:
            with autograd.train_mode():
                model(numbers)
        if "own backward" in odds:
            losses(numbers, labels).backward()

    def losses(numbers, labels):
        with autograd.record():
            found = losses_of(model(numbers), labels)
            return found + 0.5 * losses_of(model(-numbers), labels) if "called twice" in odds else found

    drawn_models.loop(drawn, run, odds, losses, evaluate, clip, before)


class Parts:
    """Those of a PlainRun."""

    evaluating = staticmethod(contextlib.nullcontext)

    @staticmethod
    def tensor(array: np.ndarray) -> mx.nd.NDArray:
        return mx.nd.array(array, dtype=array.dtype)

    @staticmethod
    def update(run: PlainRun, losses: mx.nd.NDArray) -> None:
        losses.backward()
        # By PyTorch's rule, as hvdtrain: MXNet's `nag` would decay the momentum by the updated weight.
        if decay := float(run.drawn.options.get("weight-decay", 0)):
            for parameter in run.model.collect_params().values():
                if parameter.grad_req != "null":
                    parameter.grad()[:] += len(losses) * decay * parameter.wd_mult * parameter.data()
        run.optimizer.step(len(losses), ignore_stale_grad=True)


def plain(drawn: Drawn, evaluates: bool) -> dict[str, np.ndarray]:
    from hvdtrain.frameworks.mxnet.objective import seed_generators

    run = PlainRun(drawn, evaluates, Parts)
    seed_generators(drawn.seed)
    script(drawn, run)
    mx.nd.waitall()
    from hvdtrain.frameworks.mxnet.network import named_parameters

    # Weight decay moves the weights of an unused layer of a task: their gradients are zeros (docs/own.md).
    left_out, arrays = "unused" if "weight-decay" in drawn.options else "-", named_parameters(run.model)
    return {name: array.data().asnumpy() for name, array in arrays.items() if left_out not in name}
