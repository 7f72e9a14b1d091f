"""What --freeze names stays as it is, and the rest trains as in PyTorch, with each option that uses parameters."""

import fnmatch

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_equal
from support.learners import learner, task
from support.networks import shaped
from support.stack import FRAMEWORKS, INSTALLED

from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Batch
from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import CLASSES, BatchNorm, Conv, Dense, Flatten, Relu
from hvdtrain.tasks.target import NetworkTarget

LAYERS = (Conv(4, 3), BatchNorm(), Relu(), Conv(4, 3), BatchNorm(), Relu(), Flatten(), Dense(CLASSES))
NETWORK = NetworkTarget(shaped(Network(LAYERS), (1, 8, 8)))
ROWS = np.random.default_rng(0).random((16, 1, 8, 8), np.float32), np.random.default_rng(1).integers(0, 10, 16)
BEGINNING, CLIPPED = ("conv1.*", "norm1.*"), {"clip_norm": 0.05, "ema": 0.5, "weight_decay": 0.1}
CASES = {
    "beginning": (BEGINNING, {}),
    "sync": (BEGINNING, {"batch_norm": "sync", **CLIPPED}),
    "before-sync": (("conv1.*",), {"batch_norm": "sync"}),
    "weights": (("*.weight",), CLIPPED),
    "biases": (("*.bias",), {"optimizer": "adam", "lr": 0.01}),
    "shards": ((*BEGINNING, "dense1.bias"), {"shards": 2, **CLIPPED}),
    "end": (("dense1.*", "norm2.*"), {"no_decay": ("*.bias",), "weight_decay": 0.1}),
}


def batches(arrays, shards=0, steps=3):
    for step in range(steps):
        parts = np.split(np.arange(16), shards or 1)
        made = [
            Batch(tuple(array[rows] for array in arrays), np.full(len(rows), 1 / 16, np.float32), 0.1, step, rows, part)
            for part, rows in enumerate(parts)
        ]
        nothing, by_rank = ((), np.ones(0), 0.1, step, np.arange(16)), (tuple(range(len(made))),)
        yield Batch(*nothing, shards=tuple(made), by_rank=by_rank) if shards else made[0]


def train(framework, patterns, options):
    """The learner after some steps, and its first weights."""
    made = learner(framework, NETWORK, freeze=patterns, **options)
    before = {name: array.copy() for name, array in made.weights().items()}
    for batch in batches(ROWS, options.get("shards", 0)):
        made.train_step(batch)
    return made, before


def matched(patterns, names):
    return {name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)}


def trained_names(made):
    return {name.partition("/")[2] for name in made.optimizer_state().arrays}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frozen_parameters_stay_and_the_others_train_as_in_other_frameworks(framework, name):
    patterns, options = CASES[name]
    made, before = train(framework, patterns, options)
    after, parameters = made.weights(), dict(NETWORK.network.parameters())
    assert made.frozen == matched(patterns, parameters)
    assert {name for name in after if np.array_equal(after[name], before[name])} == made.frozen
    assert trained_names(made) == made.averages().keys() or not options.get("ema")
    assert trained_names(made) == parameters.keys() - made.frozen
    assert not made.untrained & parameters.keys()
    if framework != INSTALLED[0]:
        expected, _ = train(INSTALLED[0], patterns, options)
        for key, array in expected.weights().items():
            assert_allclose(after[key], array, 1e-3, 2e-4 if "adam" in options.values() else 2e-6, err_msg=key)
        assert made.accepts_state(expected.optimizer_state()) and expected.accepts_state(made.optimizer_state())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_of_a_task_only_the_last_layer_is_trained_and_statistics_change(framework):
    target = task(framework, "Classifier")
    arrays, names = target.dataset.train[np.arange(16)], [*learner(framework, target).optimizer_state().arrays]
    *frozen, _, _ = [name.partition("/")[2] for name in names]
    made = learner(framework, target, freeze=tuple(frozen))
    before = {name: array.copy() for name, array in made.weights().items()}
    for batch in batches(arrays):
        made.train_step(batch)
    after = made.weights()
    assert made.frozen == set(frozen) and not made.untrained & made.frozen
    assert {name for name in after if np.array_equal(after[name], before[name])} == made.frozen
    made.load(before)
    assert_equal(made.weights(), before)


@pytest.mark.parametrize("name", ["", "Classifier"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_patterns_that_leave_nothing_or_name_nothing_are_errors(framework, name):
    target = task(framework, name) if name else NETWORK
    for patterns, message in ((("*",), "all parameters are frozen"), (("norm9.x",), "matches no trained parameter")):
        with pytest.raises(UserError, match=message):
            learner(framework, target, freeze=patterns)
