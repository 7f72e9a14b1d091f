"""Steps in shards in TensorFlow: the same bits for any ranks, and the weights of one batch up to rounding."""

from __future__ import annotations

import math
import os
import sys
import threading
from unittest import mock

import numpy as np
import pytest
from support.jobs import ROOT
from support.rank_threads import on_all_ranks
from support.shard_steps import IMAGES, MOVED, NETWORK, SHARDS, WITHOUT_STATISTICS, assert_same, steps
from support.stack import cases

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.sharding import Assignment, Cut
from hvdtrain.frameworks.registry import ENTRIES
from hvdtrain.frameworks.tensorflow.learner import TensorFlowLearner
from hvdtrain.frameworks.tensorflow.strategies import TensorFlowStrategy
from hvdtrain.system.phases import phases
from hvdtrain.tasks.user import make_task

building = threading.Lock()


@pytest.fixture(autouse=True)
def own_environment():
    with mock.patch.dict(os.environ):  # a learner sets variables of its framework
        yield


@pytest.fixture(scope="module")
def tasks():
    """Makes a task of tests/support/tasks, and returns it with its training rows."""
    folder = str(ROOT / "tests" / "support" / "tasks")
    sys.path.insert(0, folder)
    import of_tensorflow

    sys.path.remove(folder)

    def of_name(name):
        task = make_task(f"of_tensorflow.py:{name}", getattr(of_tensorflow, name))
        return task, task.dataset.train[np.arange(128)]

    return of_name


def learner(target, group=None, **options):
    config = Config(**{"framework": "tensorflow", "strategy": "single", "lr": 0.1, **options})
    strategy = TensorFlowStrategy(config, RuntimeOptions(device="cpu"), group or SingleProcess())
    return TensorFlowLearner(target, target.initial_weights(config), strategy)


def train_on_ranks(ranks, target, arrays, assignments=(), **options):
    """Weights, optimizer state and the losses of all shards after all steps; checks that the ranks are equal.

    assignments: those of the steps in turn; by default shards stay where they begin.
    """

    def train(group):
        with building:
            of_rank = learner(target, group, shards=SHARDS, **options)
        cuts = [one.cut(group.rank) for one in assignments or [Assignment.contiguous(ranks, SHARDS)]]
        losses = [float(loss) for batch in steps(arrays, *cuts) for loss in of_rank.train_step(batch)]
        assert of_rank.local_weights == frozenset()
        return of_rank.weights() | of_rank.optimizer_state().arrays, losses

    results = on_all_ranks(ranks, train)
    for arrays_of_rank, losses in results[1:]:
        assert_same(arrays_of_rank, results[0][0])
        assert losses == results[0][1]
    return results[0]


NESTEROV = {"nesterov": True, "weight_decay": 0.01, "clip_norm": 0.5}
CASES = {
    "network": ("", NESTEROV),
    "network, bf16": ("", {"precision": "bf16", "optimizer": "adam", "lr": 0.01, "on_nan": "skip"}),
    "batch normalization and dropout": ("Classifier", NESTEROV),
    "LSTM": ("Sequences", {"optimizer": "adam", "lr": 0.01}),
    "regularizers, constraints and a layer of training": ("Regression", NESTEROV),
}
SHORT = [name for name, (_, options) in CASES.items() if options is NESTEROV]
"""A step is compiled for each number of rows, which takes seconds."""


@pytest.mark.guarantee("same-bits")
@pytest.mark.parametrize("case", cases(CASES, SHORT))
def test_any_ranks_have_the_same_bits(tasks, case):
    name, options = CASES[case]
    target, arrays = tasks(name) if name else (NETWORK, IMAGES)
    weights, loss = train_on_ranks(1, target, arrays, **options)
    other_weights, other_loss = train_on_ranks(2, target, arrays, **options)
    assert_same(other_weights, weights)
    assert other_loss == loss


@pytest.mark.guarantee("same-bits")
def test_shards_that_move_between_steps_have_the_same_bits():
    weights, loss = train_on_ranks(1, NETWORK, IMAGES, **NESTEROV)
    other_weights, other_loss = train_on_ranks(2, NETWORK, IMAGES, MOVED, **NESTEROV)
    assert_same(other_weights, weights)
    assert other_loss == loss


@pytest.mark.parametrize("options", [NESTEROV, {"optimizer": "adam", "lr": 0.01}])
def test_shards_train_as_one_batch_does(options):
    shared, whole = (learner(WITHOUT_STATISTICS, shards=shards, **options) for shards in (SHARDS, 0))
    for batch, expected in zip(steps(IMAGES, Cut.of(0, 1, SHARDS)), steps(IMAGES, Cut.of(0, 1)), strict=True):
        losses, loss = shared.train_step(batch), whole.train_step(expected)
        assert sum(map(float, losses)) / SHARDS == pytest.approx(float(loss), rel=1e-4)
    for name, value in whole.weights().items():
        assert np.abs(shared.weights()[name] - value).max() < (1e-5 if "optimizer" not in options else 2e-3), name


def test_statistics_are_the_mean_over_shards_with_rows():
    """Each shard begins with the same."""
    shared, alone = learner(NETWORK, shards=SHARDS), learner(NETWORK)
    first, _, _, small, _ = steps(IMAGES, Cut.of(0, 1, SHARDS))
    for batch in (first, small):
        start = shared.weights()
        after = []
        for shard in batch.shards:
            alone = learner(NETWORK)
            alone.load(start)
            alone.train_step(shard)
            after.append(alone.weights())
        shared.train_step(batch)
        names = [name for name in start if "running" in name]
        assert len(names) == 2
        for name in names:
            expected = np.mean([weights[name] for weights in after], 0, np.float64)
            np.testing.assert_allclose(shared.weights()[name], expected, rtol=1e-6, atol=1e-8)


def test_a_step_that_is_skipped():
    shared = learner(WITHOUT_STATISTICS, shards=SHARDS, on_nan="skip")
    first, second, *_ = steps(IMAGES, Cut.of(0, 1, SHARDS))
    shared.train_step(first)
    before = shared.weights() | shared.optimizer_state().arrays
    damaged = second.shards[3]._replace(weights=np.full(6, np.nan, np.float32))
    shards = (*second.shards[:3], damaged, second.shards[4])
    losses = shared.train_step(second._replace(shards=shards))
    assert [math.isnan(float(loss)) for loss in losses] == [False, False, False, True, False]
    assert_same(shared.weights() | shared.optimizer_state().arrays, before)
    assert shared.skipped == 1


def test_a_recorded_step_has_the_same_bits():
    recorded, expected = (learner(NETWORK, shards=SHARDS) for _ in range(2))
    for batch in steps(IMAGES, Cut.of(0, 1, SHARDS)):
        phases.record()
        recorded.train_step(batch)
        phases.end_step(batch.step)
        (spans,) = phases.stop_recording()
        names = [span.name for span in spans.parts if span.name in ("forward", "backward", "gradients", "update")]
        assert names == ["forward", "backward"] * len(batch.shards) + ["gradients", "update"]
        expected.train_step(batch)
    assert_same(recorded.weights(), expected.weights())


def test_an_evaluation_does_not_depend_on_those_before():
    images, labels = IMAGES
    one, other = (learner(NETWORK, shards=SHARDS) for _ in range(2))
    for rows in (64, 9, 17):
        one.eval_step((images[:rows], labels[:rows]))
    assert one.eval_step((images[:17], labels[:17])).loss == other.eval_step((images[:17], labels[:17])).loss


def test_strategies_that_sum_shards():
    entries = ENTRIES["tensorflow"]()
    sums = {(entry.name, entry.style) for entry in entries if entry.strategy.sums_shards}
    assert sums == {(name, "loop") for name in ("single", "horovod", "ring", "mpi")}
