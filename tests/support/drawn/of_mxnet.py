"""Pieces of models, losses and scripts in Gluon, for `drawn_models`."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn
from support.drawn_models import BATCH, CLASSES, FEATURES, LR, Drawn, Piece, PlainRun

STRATEGIES = ("ring", "ring", "horovod")


def dense(units: int = FEATURES, **options: Any) -> nn.Dense:
    return nn.Dense(units, in_units=FEATURES, **options)


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


def zeros(*shape):
    return np.zeros(shape, np.float32)


def forces(block, x):
    """The gradient of an energy, of which the layer's parameters have gradients; those before it have none."""
    x = x.detach()
    x.attach_grad()
    with autograd.record(autograd.is_training()):
        energy = mx.nd.tanh(block.layer(x))
    (slope,) = autograd.grad(energy, [x], create_graph=True, train_mode=autograd.is_training())
    return slope


def slope_inside(block, x):
    """A gradient of a graph of its own, which is a factor."""
    copy = x.detach()
    copy.attach_grad()
    with autograd.record(autograd.is_training()):
        inner = mx.nd.tanh(copy).sum()
    inner.backward()
    return block.layer(x) * copy.grad


def fixed_batch(block, x):
    return block.layer(x + 0.1 * x.reshape((BATCH, FEATURES)).mean(axis=0, keepdims=True))


def stateful(block, x):
    if autograd.is_training():
        with autograd.pause():
            block.state.set_data((0.5 * block.state.data() + x).reshape((BATCH, FEATURES)))
    return block.layer(x + 0.1 * block.state.data().mean(axis=0, keepdims=True))


def changing(change, always=False):
    def forward(block, x):
        if autograd.is_training() or always:
            with autograd.pause():
                block.layer.weight.set_data(change(block.layer.weight.data()))
        return block.layer(x)

    return lambda: Layer(forward)


def in_place(block, x):
    if autograd.is_training():
        with autograd.pause():
            block.layer.weight.data()[:] = normalized(block.layer.weight.data())
    return block.layer(x)


def normalized(weight):
    return weight / weight.norm()


def centered(always):
    def forward(block, x):
        if always or autograd.is_training():
            with autograd.pause():
                mean = x.mean(axis=0)
                block.mean.set_data(0.9 * block.mean.data() + 0.1 * mean)
        return block.layer(x - block.mean.data().reshape((1, -1)))

    return lambda: Layer(forward, mean=zeros(FEATURES))


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
    """A layer of training only, and one that is frozen."""

    def __init__(self):
        super().__init__()
        self.main, self.extra, self.frozen = dense(), dense(), dense()
        self.frozen.collect_params().setattr("grad_req", "null")

    def hybrid_forward(self, F, x):
        x = self.frozen(self.main(x))
        return x + self.extra(x) if autograd.is_training() else x


def kept(kind, changes):
    def forward(block, x):
        if changes and autograd.is_training():
            with autograd.pause():
                block.kept.set_data(block.kept.data() + 1)
        return block.layer(x * (block.kept.data().astype("float32") + 1).reshape((1, -1)) / 4)

    return lambda: Layer(forward, kept=np.ones(FEATURES, kind))


def sequence(*blocks):
    is_graph = all(isinstance(block, gluon.HybridBlock) for block in blocks)
    model = nn.HybridSequential() if is_graph else nn.Sequential()
    model.add(*blocks)
    return model


ODD = functools.partial(Piece, refused=True)
STATE = functools.partial(Piece, by_row=False, refused=True)
EVALUATED = functools.partial(Piece, by_row=False, refused=True, in_evaluation=True)
DTYPES = ("float64", "float16", "int32", "int64", "int8", "uint8")
PIECES = {
    "dense": Piece(dense),
    "shared": Piece(Shared),
    "branch": Piece(Branch),
    "layer norm": Piece(lambda: nn.LayerNorm(in_channels=FEATURES)),
    "dropout": Piece(lambda: nn.Dropout(0.3), draws=True),
    "forces": ODD(lambda: Layer(forces)),
    "slope inside": ODD(lambda: Layer(slope_inside)),
    "batch norm": STATE(lambda: nn.BatchNorm(in_channels=FEATURES)),
    "batch norm of all steps": Piece(lambda: nn.BatchNorm(in_channels=FEATURES, use_global_stats=True)),
    "always batch norm": EVALUATED(Always),
    "fixed batch": STATE(lambda: Layer(fixed_batch), fixed=True),
    "stateful": STATE(lambda: Layer(stateful, state=zeros(BATCH, FEATURES)), fixed=True),
    "normalized weight": ODD(changing(normalized)),
    "normalized weight, in place": ODD(lambda: Layer(in_place)),
    "always normalized weight": ODD(changing(normalized, always=True), in_evaluation=True),
    "clipped weight": ODD(changing(lambda weight: weight.clip(-0.3, 0.3))),
    "always clipped weight": ODD(changing(lambda weight: weight.clip(-0.3, 0.3), always=True), in_evaluation=True),
    "decayed weight": STATE(changing(lambda weight: 0.9 * weight)),
    "embedding": Piece(Looked),
    "centered in training": STATE(centered(False)),
    "centered": EVALUATED(centered(True)),
    **{f"kept {name}": ODD(kept(name, False)) for name in DTYPES},
    **{f"changing {name}": STATE(kept(name, True)) for name in DTYPES},
}


def cross_entropy(outputs, labels):
    return gluon.loss.SoftmaxCrossEntropyLoss()(outputs, labels)


def slope_of_outputs(outputs, labels):
    """Each loss times the gradient of a graph of its own."""
    copy = outputs.detach()
    copy.attach_grad()
    with autograd.record(autograd.is_training()):
        inner = mx.nd.tanh(copy).sum()
    inner.backward()
    return cross_entropy(outputs, labels) * (1 + copy.grad.sum(axis=1))


LOSSES = {
    "plain": Piece(cross_entropy),
    "squares": Piece(lambda outputs, labels: ((outputs - mx.nd.one_hot(labels, CLASSES)) ** 2).sum(axis=1)),
    "slope of outputs": ODD(slope_of_outputs),
}
ODDS = {
    "own backward": ODD(None),
    "chdir first": Piece(None),
    "chdir after setup": Piece(None),
    "chdir in the loop": Piece(None),
    "look": Piece(None),
    "look in training mode": STATE(None),
    "called twice": Piece(None, refused=True),
    "schedule": Piece(None),
    "clipped after the step": Piece(None),
    "clipped before the step": ODD(None),
    "two models": Piece(None),
    "loop over epochs": Piece(None),
    "left early": Piece(None),
    "metrics": Piece(None),
    "evaluates in training mode": EVALUATED(None),
    "evaluates with gradients": Piece(None),
    "draws in evaluations": Piece(None, draws=True),
    "hybridized": ODD(None),
    "logs": Piece(None),
}


def model_of(drawn: Drawn) -> gluon.Block:
    body = [layer for name in drawn.pieces for layer in (PIECES[name].make(), nn.Activation("tanh"))]
    first = [] if drawn.pieces[0] in ("fixed batch", "stateful") else [dense(), nn.Activation("tanh")]
    return sequence(*first, *body, dense(CLASSES))


class Task:
    drawn: Drawn

    def data(self):
        return self.drawn.data

    def model(self):
        return model_of(self.drawn)

    def losses(self, outputs, labels):
        return LOSSES[self.drawn.losses].make(outputs, labels)


def script(drawn: Drawn, run: Any) -> None:
    """A script's training, by hvdtrain's run or a PlainRun."""
    odds, losses_of = {*(drawn.odds or ())}, LOSSES[drawn.losses].make

    def move(when: str) -> None:
        if when in odds:
            odds.remove(when)
            os.makedirs("elsewhere", exist_ok=True)
            os.chdir("elsewhere")

    model = model_of(drawn)
    if "two models" in odds:
        model = sequence(dense(), nn.Activation("tanh"), model)
    model.initialize()
    model(mx.nd.array(drawn.data[0][0][:BATCH]))
    if "hybridized" in odds:
        model.hybridize()
    options = {"learning_rate": LR, "momentum": 0.9}
    if "schedule" in odds:
        options["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=LR)
    model, _ = run.setup(model, gluon.Trainer(model.collect_params(), "sgd", options))
    move("chdir after setup")
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

    def trained(numbers, labels) -> bool:
        """Whether to leave the loop after this batch."""
        move("chdir in the loop")
        if "look" in odds:
            model(numbers)
        if "look in training mode" in odds:
            with autograd.train_mode():
                model(numbers)
        if "clipped before the step" in odds:
            clip()
        if "own backward" in odds:
            with autograd.record():
                own = losses_of(model(numbers), labels)
            own.backward()
        with autograd.record():
            losses = losses_of(model(numbers), labels)
            if "called twice" in odds:
                losses = losses + 0.5 * losses_of(model(-numbers), labels)
        if "logs" in odds:
            run.log(mean=float(losses.mean().asscalar()))
        if run.step(losses):
            if "clipped after the step" in odds:
                clip()
            return "left early" in odds and run.steps + 1 == 5
        return False

    train, test = drawn.data
    if "loop over epochs" in odds:
        for batches in run.each_epoch(train, test, evaluate):
            if max([trained(*batch) for batch in batches], default=False):  # takes all batches
                break
    else:
        for batch in run.batches(train, test, evaluate):
            if trained(*batch):
                break


class Framework:
    """The parts of a PlainRun."""

    @staticmethod
    def tensor(array: np.ndarray) -> mx.nd.NDArray:
        return mx.nd.array(array, dtype=array.dtype)

    @staticmethod
    def begin_step(run: PlainRun) -> None: ...

    @staticmethod
    def update(run: PlainRun, losses: mx.nd.NDArray) -> None:
        losses.backward()
        run.optimizer.step(len(losses), ignore_stale_grad=True)

    @staticmethod
    @contextlib.contextmanager
    def evaluating(model: gluon.Block) -> Iterator[None]:
        yield


def plain(drawn: Drawn, evaluates: bool) -> dict[str, np.ndarray]:
    from hvdtrain.frameworks.mxnet.objective import seed_generators

    run = PlainRun(drawn, evaluates, Framework)
    seed_generators(drawn.seed)
    script(drawn, run)
    mx.nd.waitall()
    from hvdtrain.frameworks.mxnet.network import named_parameters

    return {name: array.data().asnumpy() for name, array in named_parameters(run.model).items()}
