"""Steps in shards in Gluon: the same bits for any ranks, and the weights of one batch up to rounding."""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
from unittest import mock

import mxnet as mx
import numpy as np
import pytest
from support.jobs import ROOT
from support.rank_threads import on_all_ranks
from support.shard_steps import IMAGES, MOVED, NETWORK, SHARDS, WITHOUT_STATISTICS, assert_same, steps

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.sharding import Assignment, Cut
from hvdtrain.frameworks.mxnet.learner import MXNetLearner
from hvdtrain.frameworks.mxnet.strategies import MXNetStrategy
from hvdtrain.frameworks.registry import ENTRIES
from hvdtrain.interfaces import Batch
from hvdtrain.system.phases import phases
from hvdtrain.tasks.user import make_task

ALONE = Cut.of(0, 1, SHARDS)
running = threading.Lock()


@pytest.fixture(autouse=True)
def own_environment():
    with mock.patch.dict(os.environ):  # a learner sets variables of its framework
        yield


@pytest.fixture(scope="module")
def tasks():
    """Makes a task of tests/support/tasks, and returns it with its training rows."""
    folder = str(ROOT / "tests" / "support" / "tasks")
    sys.path.insert(0, folder)
    import of_mxnet

    sys.path.remove(folder)

    def of_name(name):
        task = make_task(f"of_mxnet.py:{name}", getattr(of_mxnet, name))
        return task, task.dataset.train[np.arange(128)]

    return of_name


def learner(target, group=None, **options):
    config = Config(**{"framework": "mxnet", "strategy": "single", "lr": 0.1, **options})
    strategy = MXNetStrategy(config, RuntimeOptions(device="cpu"), group or SingleProcess())
    return MXNetLearner(target, target.initial_weights(config), strategy)


def one_at_a_time(gather):
    """The collective of a rank that runs in a thread: others run while it waits. MXNet's generators are the process's.

    So a rank's random numbers must be drawn before another one seeds them.
    """

    def gather_unlocked(value):
        mx.nd.waitall()
        running.release()
        try:
            return gather(value)
        finally:
            running.acquire()

    return gather_unlocked


def train_on_ranks(ranks, target, arrays, assignments=(), **options):
    """Weights, optimizer state and the losses of all shards after all steps; checks that the ranks are equal.

    assignments: those of the steps in turn; by default shards stay where they begin.
    """

    def train(group):
        group.gather = one_at_a_time(group.gather)
        with running:
            of_rank = learner(target, group, shards=SHARDS, **options)
            assert of_rank.local_weights == frozenset()
            cuts = [one.cut(group.rank) for one in assignments or [Assignment.contiguous(ranks, SHARDS)]]
            losses = [float(loss) for batch in steps(arrays, *cuts) for loss in of_rank.train_step(batch)]
            return of_rank.weights() | of_rank.optimizer_state().arrays, losses

    results = on_all_ranks(ranks, train)
    for arrays_of_rank, losses in results[1:]:
        assert_same(arrays_of_rank, results[0][0])
        assert losses == results[0][1]
    return results[0]


NESTEROV = {"nesterov": True, "weight_decay": 0.01, "clip_norm": 0.5}
ADAM = {"optimizer": "adam", "lr": 0.01}
CASES = {
    "network": ("", NESTEROV),
    "batch normalization and dropout": ("Classifier", NESTEROV),
    "LSTM": ("Sequences", ADAM),
}


@pytest.mark.guarantee("same-bits")
@pytest.mark.parametrize("case", CASES)
def test_any_ranks_have_the_same_bits(tasks, case):
    name, options = CASES[case]
    target, arrays = tasks(name) if name else (NETWORK, IMAGES)
    weights, loss = train_on_ranks(1, target, arrays, **options)
    other_weights, other_loss = train_on_ranks(3, target, arrays, **options)
    assert_same(other_weights, weights)
    assert other_loss == loss


@pytest.mark.parametrize("name", ["", "Classifier", "Sequences"])
def test_the_bits_of_a_shard_do_not_depend_on_those_before(tasks, name):
    target, arrays = tasks(name) if name else (NETWORK, IMAGES)
    one, other = (learner(target, shards=SHARDS) for _ in range(2))
    for batch in steps(arrays, ALONE):
        losses = one.train_step(batch)
        other.eval_step(tuple(array[: 7 + batch.step] for array in arrays))
        reversed_losses = other.train_step(batch._replace(shards=batch.shards[::-1]))
        assert losses == reversed_losses
    assert_same(other.weights(), one.weights())


@pytest.mark.guarantee("same-bits")
def test_shards_that_move_between_steps_have_the_same_bits():
    weights, loss = train_on_ranks(1, NETWORK, IMAGES, **NESTEROV)
    other_weights, other_loss = train_on_ranks(2, NETWORK, IMAGES, MOVED, **NESTEROV)
    assert_same(other_weights, weights)
    assert other_loss == loss


@pytest.mark.parametrize("options", [NESTEROV, ADAM])
def test_shards_train_as_one_batch_does(options):
    shared, whole = (learner(WITHOUT_STATISTICS, shards=shards, **options) for shards in (SHARDS, 0))
    for batch, expected in zip(steps(IMAGES, ALONE), steps(IMAGES, Cut.of(0, 1)), strict=True):
        losses, loss = shared.train_step(batch), whole.train_step(expected)
        assert sum(map(float, losses)) / SHARDS == pytest.approx(float(loss), rel=1e-4)
    for name, value in whole.weights().items():
        assert np.abs(shared.weights()[name] - value).max() < (1e-5 if options is NESTEROV else 2e-3), name


@pytest.mark.parametrize("name", ["", "Classifier"])
def test_statistics_are_the_mean_over_shards_with_rows(tasks, name):
    """Each shard begins with the same."""
    target, arrays = tasks(name) if name else (NETWORK, IMAGES)
    shared, alone = learner(target, shards=SHARDS), learner(target)
    for batch in itertools.islice(steps(arrays, ALONE), 4):
        start, after = shared.weights(), []
        for shard in batch.shards:
            alone.load(start)
            alone.train_step(shard)
            after.append(alone.weights())
        shared.train_step(batch)
        names = [name for name in start if "running" in name]
        assert len(names) == 2
        for name in names:
            expected = np.mean([weights[name] for weights in after], 0, np.float64)
            np.testing.assert_allclose(shared.weights()[name], expected, rtol=1e-6, atol=1e-8)


def test_a_step_without_shards_on_this_rank_is_an_update():
    shared = learner(WITHOUT_STATISTICS, shards=SHARDS)
    first, *_ = steps(IMAGES, ALONE)
    shared.train_step(first)
    before = shared.weights()
    assert shared.train_step(Batch((), np.ones(0), 0.1, 1, np.arange(0), shards=())) == []
    assert shared.optimizer_state().updates == 2
    assert any((before[name] != value).any() for name, value in shared.weights().items()), "momentum moves weights"


def test_a_step_that_is_skipped():
    shared = learner(WITHOUT_STATISTICS, shards=SHARDS, on_nan="skip")
    first, second, *_ = steps(IMAGES, ALONE)
    shared.train_step(first)
    before = shared.weights() | shared.optimizer_state().arrays
    damaged = second.shards[3]._replace(weights=np.full_like(second.shards[3].weights, np.nan))
    losses = shared.train_step(second._replace(shards=(*second.shards[:3], damaged, second.shards[4])))
    assert [math.isnan(float(loss)) for loss in losses] == [False, False, False, True, False]
    assert_same(shared.weights() | shared.optimizer_state().arrays, before)
    assert shared.skipped == 1


def test_a_recorded_step_has_the_same_bits():
    recorded, expected = (learner(NETWORK, shards=SHARDS) for _ in range(2))
    for batch in steps(IMAGES, ALONE):
        phases.record()
        recorded.train_step(batch)
        phases.end_step(batch.step)
        (spans,) = phases.stop_recording()
        names = [span.name for span in spans.parts if span.name in ("forward", "backward", "gradients", "update")]
        assert names == ["forward", "backward"] * len(batch.shards) + ["gradients", "update"]
        expected.train_step(batch)
    assert_same(recorded.weights(), expected.weights())


def test_strategies_that_sum_shards():
    sums = {(entry.name, entry.style) for entry in ENTRIES["mxnet"]() if entry.strategy.sums_shards}
    assert sums == {(name, "gluon") for name in ("single", "horovod", "ring", "mpi")}
