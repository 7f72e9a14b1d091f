"""What a Gluon block may do besides computing: a task's steps end at the weights of a loop with Gluon's Trainer."""

import functools
import random

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.contrib import amp
from mxnet.gluon import nn
from support import model_steps
from support.learners import learner
from support.model_steps import CLASSES, FEATURES, LR, ROWS, SIZE, assert_close, made, whole_steps

from hvdtrain.errors import UserError


def dense(units=FEATURES, **options):
    return nn.Dense(units, **options)


def multiplied():
    """Learning rate and weight decay of its parameters are multiples of the optimizer's."""
    layer = dense(in_units=FEATURES)
    layer.weight.lr_mult, layer.bias.lr_mult, layer.weight.wd_mult = 0.5, 2.0, 3.0
    return layer


def frozen():
    layer = dense(in_units=FEATURES)
    layer.collect_params().setattr("grad_req", "null")
    return layer


class Shared(nn.HybridSequential):
    """One layer in two places, and one that shares its parameters."""

    def __init__(self):
        super().__init__()
        first = dense(in_units=FEATURES)
        self.add(first, nn.Activation("tanh"), first, dense(in_units=FEATURES, params=first.params))


class Auxiliary(gluon.HybridBlock):
    """A branch that is called in training only, a constant, and a layer that is never called.

    features: of its inputs; 0 if the first ones decide.
    """

    def __init__(self, features=0):
        super().__init__()
        self.main, self.branch, self.unused = dense(in_units=features), nn.HybridSequential(), dense(in_units=2)
        self.branch.add(dense(in_units=features), nn.BatchNorm(in_channels=features))
        self.factors = self.params.get_constant("factors", mx.nd.arange(FEATURES))

    def hybrid_forward(self, F, x, factors):
        x = F.broadcast_mul(self.main(x), factors)
        return x + self.branch(x) if autograd.is_training() else x


class PlainAuxiliary(gluon.Block):
    """The same in a block that works on arrays only."""

    def __init__(self):
        super().__init__()
        self.main, self.branch = dense(), dense()

    def forward(self, x):
        x = self.main(x)
        return x + self.branch(x) if autograd.is_recording() else x


def hybridized():
    """A part of a block that works on arrays is a graph, which is made in the first training step."""
    block = nn.Sequential()
    block.add(Auxiliary(FEATURES))
    block[0].hybridize()
    return block


class Limited(gluon.Block):
    """Its forward pass limits its weights."""

    def __init__(self):
        super().__init__()
        self.layer = dense(in_units=FEATURES)

    def forward(self, x):
        with autograd.pause():
            self.layer.weight.set_data(self.layer.weight.data().clip(-0.3, 0.3))
        return self.layer(x)


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


# Pieces of models, and whether rows pass them one by one: else shards compute something else.
PIECES = {
    "dense": (dense, True),
    "multiplied": (multiplied, True),
    "frozen": (frozen, True),
    "shared": (Shared, True),
    "auxiliary": (Auxiliary, False),
    "plain auxiliary": (PlainAuxiliary, True),
    "hybridized auxiliary": (hybridized, False),
    "batch norm": (nn.BatchNorm, False),
    "batch norm of all steps": (lambda: nn.BatchNorm(use_global_stats=True), True),
    "batch norm without scale": (lambda: nn.BatchNorm(scale=False, momentum=0.5), False),
    "layer norm": (nn.LayerNorm, True),
    "limited": (Limited, True),
    "hooked": (Hooked, True),
    "function": (Function, True),
}


def model_maker(pieces):
    def model():
        plain = {"plain auxiliary", "hybridized auxiliary", "limited", "function"}
        block = nn.Sequential() if plain.intersection(pieces) else nn.HybridSequential()
        for name in pieces:
            block.add(PIECES[name][0](), nn.Activation("tanh"))
        block.add(dense(CLASSES))
        return block

    return model


def squares(outputs, labels):
    return ((outputs - mx.nd.one_hot(labels, CLASSES)) ** 2).sum(axis=1)


def learner_of(model):
    return learner("mxnet", made(model, squares))


def reference(model, weights, options):
    """A loop with Gluon's Trainer from these weights on; returns the weights after it."""
    block = model()
    block.initialize()
    numbers = mx.nd.array(ROWS[0][:4])
    with autograd.record():  # first, because a graph is made once
        block(numbers)
    parameters = block._collect_params_with_prefix()
    for name, value in weights.items():
        parameters[name].set_data(mx.nd.array(value))
    optimizer = {"learning_rate": LR, "momentum": 0.9, "wd": options["weight_decay"]}
    trainer = gluon.Trainer(block.collect_params(), "nag" if options.get("nesterov") else "sgd", optimizer)
    for numbers, labels in whole_steps():
        with autograd.record():
            losses = squares(block(mx.nd.array(numbers)), mx.nd.array(labels))
        losses.backward()
        trainer.step(SIZE, ignore_stale_grad=True)
    mx.nd.waitall()
    # Weight decay moves the weights of an unused layer of a task: their gradients are zeros (docs/own.md).
    return {name: parameters[name].data().asnumpy() for name in weights if "unused" not in name}


def check(pieces, **options):
    """Steps of a task, and those of Gluon's Trainer."""
    model = model_maker(pieces)
    model_steps.check("mxnet", model, squares, functools.partial(reference, model), **options)


@pytest.mark.guarantee("user-same-step")
@pytest.mark.parametrize("piece", PIECES)
def test_a_piece_trains_as_with_gluons_trainer(piece):
    check([piece])


@pytest.mark.guarantee("user-same-step")
@pytest.mark.parametrize("seed", range(12))
def test_random_models_train_as_with_gluons_trainer(seed):
    chosen = random.Random(seed)
    by_row = seed % 2
    names = [name for name, (_, alone) in PIECES.items() if alone or not by_row]
    options = [{"weight_decay": 0.01, "nesterov": True}, {"on_nan": "skip"}, {}]
    if by_row:
        options += [{"shards": 4}, {"shards": 5, "weight_decay": 0.01}]
    check(chosen.sample(names, 3), **chosen.choice(options))


def test_the_trial_before_training_leaves_the_block_as_it_was():
    values = {}

    def model():
        block = model_maker([name for name in PIECES if "auxiliary" not in name])()
        block.initialize()
        block(mx.nd.array(ROWS[0][:4]))
        values.update({name: p.data().asnumpy() for name, p in block._collect_params_with_prefix().items()})
        return block

    weights = learner_of(model).weights()  # of which shared ones have one name
    assert_close(weights, {name: values[name] for name in weights}, 0)
    of_branch = learner_of(model_maker(["auxiliary", "batch norm"])).weights()
    moving = [value for name, value in of_branch.items() if "running_mean" in name]
    assert len(moving) == 2 and not np.any(moving)


def adding():
    layer = dense(CLASSES, in_units=FEATURES)
    layer.weight.grad_req = "add"
    return layer


class Lonely(nn.HybridSequential):
    """Has a layer that it does not call, and that does not know its inputs."""

    def __init__(self):
        super().__init__()
        self.add(dense(CLASSES))
        self.add(dense())

    def hybrid_forward(self, F, x):
        return self[0](x)


@pytest.mark.parametrize(("model", "named"), [(adding, "weight"), (Lonely, "1.weight")])
def test_what_cannot_be_trained_is_an_error_before_the_first_step(model, named):
    with pytest.raises(UserError) as caught:
        learner_of(model)
    assert f" {named}" in caught.value.reason and caught.value.option == "model"


def test_a_run_in_fp32_after_one_in_bf16_is_an_error(monkeypatch):
    monkeypatch.setattr(amp.amp, "_amp_initialized", True)  # as of a run in bf16, which would cast all later tests
    with pytest.raises(UserError) as caught:
        learner_of(dense)
    assert caught.value.option == "precision"
