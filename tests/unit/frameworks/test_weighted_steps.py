"""A step on rows with weights: in each framework, what NumPy computes by the formula."""

import numpy as np
import pytest
from support.learners import learner
from support.networks import shaped
from support.rank_threads import on_all_ranks
from support.stack import FRAMEWORKS

from hvdtrain.datasets import sharding
from hvdtrain.interfaces.reading import Batch
from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import CLASSES, Dense, Flatten
from hvdtrain.tasks.target import NetworkTarget

ROWS, LR, STEPS = 7, 0.5, 2
RANDOM = np.random.default_rng(0)
IMAGES, LABELS = RANDOM.random((ROWS, 1, 2, 3), np.float32), RANDOM.integers(0, 10, ROWS)
WEIGHTS = np.array([0, 0, 20, 0.5, 3, 1e-3, 1])
"""The first shard has none."""
NETWORK = NetworkTarget(shaped(Network((Flatten(), Dense(CLASSES))), (1, 2, 3)))


def by_formula(kernel, bias):
    """Kernel and bias after the steps, and the losses of these: sum(w * loss) / sum(w) over the global batch."""
    losses = []
    for _ in range(STEPS):
        logits = IMAGES.reshape(ROWS, -1) @ kernel.T + bias
        shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        losses.append(np.average(-np.log(shares[np.arange(ROWS), LABELS]), weights=WEIGHTS))
        outputs = (shares - np.eye(10)[LABELS]) * (WEIGHTS / WEIGHTS.sum())[:, None]
        kernel, bias = kernel - LR * outputs.T @ IMAGES.reshape(ROWS, -1), bias - LR * outputs.sum(0)
    return kernel, bias, losses


@pytest.mark.guarantee("same-global-batches")
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("ranks", "options"),
    [(1, {"accumulate": 2}), (2, {"strategy": "ring"}), (2, {"strategy": "ring", "shards": 3})],
    ids=["accumulated", "uneven ranks", "shards"],
)
def test_steps_are_those_of_the_formula(framework, ranks, options):
    """Seven rows, so that parts are of different lengths."""

    def train(group):
        of_rank = learner(framework, NETWORK, group, momentum=0.0, **options)
        first = of_rank.weights()
        losses = [
            float(np.sum([*map(float, loss)]) if isinstance(loss, list) else float(loss)) for loss in steps(of_rank)
        ]
        return first, of_rank.weights(), losses

    def steps(of_rank):
        for step in range(STEPS):
            yield of_rank.train_step(batch(step, of_rank.group, options.get("shards", 0)))

    results = on_all_ranks(ranks, train)
    (kernel, bias), parts = results[0][0].values(), options.get("shards", ranks)
    *expected, losses = by_formula(kernel.astype(np.float64), bias.astype(np.float64))
    for _, last, _ in results:
        assert all(np.array_equal(last[name], results[0][1][name]) for name in last), "ranks differ"
        for array, value in zip(last.values(), expected, strict=True):
            assert array == pytest.approx(value, abs=2e-6)
    of_ranks = results[:1] if "shards" in options else results
    assert np.sum([summed for *_, summed in of_ranks], axis=0) / parts == pytest.approx(losses, rel=1e-5)


def batch(step, group, shards):
    """The rank's batch of all rows, in their order."""
    cut = sharding.Cut.of(group.rank, group.size, shards)
    slices = sharding.slices_of_step(np.arange(ROWS), 0, ROWS, "exact", cut, WEIGHTS)
    parts = [
        Batch((IMAGES[rows], LABELS[rows]), weights, LR, step, rows, number)
        for number, (rows, weights) in zip(cut.numbers, slices, strict=True)
    ]
    nothing = (), np.ones(0), LR, step, np.arange(0)
    by_rank = sharding.Assignment.contiguous(group.size, shards).by_rank
    return Batch(*nothing, shards=tuple(parts), by_rank=by_rank) if shards else parts[0]
