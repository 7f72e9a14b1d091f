"""Where sync points are, what is due at each, and what becomes of the ranks' weights there."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rank_threads import on_all_ranks

from hvdtrain.collectives.compression import make_mean
from hvdtrain.config.options import Config
from hvdtrain.training.local_steps import LocalSteps, SyncPoints

NUMBERS = st.integers(1, 12)


@given(every=NUMBERS, per_epoch=NUMBERS, last=st.integers(1, 60), interval=NUMBERS)
def test_what_is_due_waits_for_the_next_sync_point(every, per_epoch, last, interval):
    points = SyncPoints(every, per_epoch, last)
    steps = [step for step in range(1, last + 1) if points.has(step)]
    in_epochs = {step for step in range(1, last + 1) if ((step - 1) % per_epoch + 1) % every == 0}
    assert set(steps) == in_epochs | set(range(per_epoch, last + 1, per_epoch)) | {last}
    expected = {next(step for step in steps if step >= due) for due in range(interval, last + 1, interval)}
    assert {step for step in steps if points.is_due(interval, step)} == expected
    assert not any(points.is_due(0, step) for step in steps)


class Rounded:
    """A learner of weights of several types, some of which are not trained; it keeps them as its model does."""

    untrained, frozen = frozenset({"mask"}), frozenset({"kernel"})

    def __init__(self, group):
        self.group, self.mean = group, make_mean(Config(), group)
        random = np.random.default_rng(group.rank)
        self._weights = {
            "dense": random.normal(size=(2, 3)).astype(np.float32),
            "short": random.normal(size=4).astype(np.float16),
            "long": random.normal(size=2),
            "turn": np.array(1 + 2j * group.rank, np.complex64),
            "kernel": np.ones(2, np.float32),
            "mask": np.array([-np.inf, 0], np.float32),
            "count": np.array(7),
        }

    def weights(self):
        return {name: value.copy() for name, value in self._weights.items()}

    def load(self, weights):
        assert {name: (value.dtype, value.shape) for name, value in weights.items()} == {
            name: (value.dtype, value.shape) for name, value in self._weights.items()
        }
        self._weights = {name: value.copy() for name, value in weights.items()}

    def train(self):
        """Make a step, of which each rank makes another one."""
        random = np.random.default_rng(100 + self.group.rank)
        for name in ("dense", "short", "long", "turn"):
            value = self._weights[name]
            self._weights[name] = (value + random.normal(size=value.shape)).astype(value.dtype)
        self._weights["mask"][1] = self.group.rank
        self._weights["count"] = np.array(self.group.rank)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_have_the_mean_of_what_each_has_changed(size):
    def job(group):
        learner = Rounded(group)
        steps = LocalSteps(learner)
        steps.begin(0)
        begun = learner.weights()
        learner.train()
        trained = learner.weights()
        steps.combine(2)
        steps.combine(2)  # of a script that leaves its loop: once
        return begun, trained, learner.weights()

    ranks = on_all_ranks(size, job)
    for rank, (begun, trained, ended) in enumerate(ranks):
        for name in ("dense", "short", "long", "turn"):
            mean = np.mean([of_rank[1][name] - begun[name] for of_rank in ranks], axis=0)
            limits = {"rtol": 2e-3, "atol": 2e-3} if name == "short" else {"rtol": 1e-5, "atol": 1e-6}
            np.testing.assert_allclose(ended[name], begun[name] + mean, **limits)
            assert ended[name].tobytes() == ranks[0][2][name].tobytes()
        assert begun["dense"].tobytes() == ranks[0][0]["dense"].tobytes(), "rank 0's"
        assert ended["mask"].tolist() == [-np.inf, rank] and ended["count"] == rank, "each rank's own"
        assert ended["kernel"].tobytes() == trained["kernel"].tobytes()


def test_what_is_rounded_is_where_the_next_steps_begin():
    """A change that is too small for float16 is not counted twice."""

    def job(group):
        learner = Rounded(group)
        steps = LocalSteps(learner)
        steps.begin(0)
        before = learner.weights()["short"]
        for step in (2, 4, 6):
            learner.load(learner.weights() | {"short": before + np.float16(1e-3) * (group.rank == 0)})
            steps.combine(step)
        return before, learner.weights()["short"]

    for before, after in on_all_ranks(2, job):
        assert np.abs(after - before).max() < 2e-3
