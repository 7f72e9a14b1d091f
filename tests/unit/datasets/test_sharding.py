"""N ranks see, together and step by step, what one process sees."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.datasets import sharding

BATCHES = {"samples": st.integers(1, 300), "batch": st.integers(1, 64)}
SIZES, SHARDS = st.integers(1, 9), st.integers(1, 12)
REMAINDERS = st.sampled_from(["drop", "pad", "exact"])


def batches(rows, batch, remainder, cut, weights=None):
    """The slices of a cut in each step of `rows`."""
    steps = sharding.steps_per_epoch(len(rows), batch, remainder)
    return [sharding.slices_of_step(rows, step, batch, remainder, cut, weights) for step in range(steps)]


def of_all_ranks(samples, batch, remainder, size, weights=None):
    """The order of an epoch, and its steps: for each the slices of all ranks."""
    order = sharding.order(3, 0, samples)
    cuts = [sharding.Cut.of(rank, size) for rank in range(size)]
    ranks = [[part for (part,) in batches(order, batch, remainder, cut, weights)] for cut in cuts]
    assert len({len(steps) for steps in ranks}) == 1, "a rank with fewer steps hangs the others"
    return order, list(zip(*ranks, strict=True))


@pytest.mark.guarantee("same-global-batches")
@given(**BATCHES, size=SIZES, remainder=REMAINDERS)
def test_ranks_share_the_rows_of_one_process(samples, batch, size, remainder):
    order, steps = of_all_ranks(samples, batch, remainder, size)
    assert len(steps) == sharding.steps_per_epoch(samples, batch, remainder)
    seen = [part.rows[part.weights > 0] for step in steps for part in step]
    expected = order[: len(steps) * batch]
    assert np.array_equal(np.concatenate(seen) if seen else np.array([], int), expected)


@pytest.mark.guarantee("same-global-batches")
@given(**BATCHES, size=SIZES, remainder=REMAINDERS)
def test_average_over_ranks_is_mean_over_global_batch(samples, batch, size, remainder):
    order, steps = of_all_ranks(samples, batch, remainder, size)
    loss = np.random.default_rng(0).random(samples)
    for number, step in enumerate(steps):
        average = sum((part.weights * loss[part.rows]).sum() for part in step) / size
        assert average == pytest.approx(loss[order[number * batch : (number + 1) * batch]].mean(), rel=1e-5)


@pytest.mark.guarantee("same-global-batches")
@given(**BATCHES, size=SIZES, remainder=REMAINDERS)
def test_average_over_ranks_is_the_weighted_mean_over_global_batch(samples, batch, size, remainder):
    """Also where some count next to nothing; equal weights give the bits of none."""
    random = np.random.default_rng(0)
    loss, weights = random.random(samples), random.random(samples) * (random.random(samples) > 0.2) + 1e-3
    order, steps = of_all_ranks(samples, batch, remainder, size, weights)
    for number, step in enumerate(steps):
        average = sum((part.weights * loss[part.rows]).sum() for part in step) / size
        rows = order[number * batch : (number + 1) * batch]
        assert average == pytest.approx(np.average(loss[rows], weights=weights[rows]), rel=1e-5)
    for one, other in zip(
        of_all_ranks(samples, batch, remainder, size, np.ones(samples))[1],
        of_all_ranks(samples, batch, remainder, size)[1],
        strict=True,
    ):
        assert all(np.array_equal(part.weights, plain.weights) for part, plain in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("samples", "batch", "remainder", "rows"),
    [(10, 8, "pad", [4, 4]), (10, 8, "exact", [1, 1]), (5, 4, "exact", [1, 1, 1])],
    ids=["pad keeps the shape", "exact does not", "a rank without rows still takes the step"],
)
def test_the_last_step_of_an_epoch(samples, batch, remainder, rows):
    _, (*_, last) = of_all_ranks(samples, batch, remainder, len(rows))
    assert [len(part.rows) for part in last] == rows
    assert sum((part.weights > 0).sum() for part in last) == samples % batch


@pytest.mark.guarantee("same-global-batches")
def test_order_depends_on_seed_and_epoch_alone():
    assert np.array_equal(sharding.order(1, 2, 50), sharding.order(1, 2, 50))
    assert not np.array_equal(sharding.order(1, 2, 50), sharding.order(1, 3, 50))
    assert not np.array_equal(sharding.order(1, 2, 50), sharding.order(2, 2, 50))
    # A golden value: the order must not change between versions, or a resumed run would train on other rows.
    assert sharding.order(0, 0, 10).tolist() == [9, 1, 3, 8, 7, 6, 0, 4, 2, 5]


@pytest.mark.guarantee("exact-evaluation")
@given(samples=st.integers(0, 300), batch=st.integers(1, 64), size=SIZES)
def test_evaluation_visits_every_row_once(samples, batch, size):
    cuts = [sharding.Cut.of(rank, size) for rank in range(size)]
    rows = [np.arange(samples)[part] for cut in cuts for part in sharding.evaluation(samples, batch, cut)]
    assert np.array_equal(np.concatenate(rows) if rows else np.array([], int), np.arange(samples))
    assert all(len(part) <= batch for part in rows)


@given(**BATCHES, shards=SHARDS, remainder=st.sampled_from(["pad", "exact"]))
def test_the_shards_with_rows_are_those_with_a_row_that_counts(samples, batch, shards, remainder):
    order = sharding.order(3, 0, samples)
    for step, parts in enumerate(batches(order, batch, remainder, sharding.Cut.of(0, 1, shards))):
        with_rows = tuple(number for number, part in enumerate(parts) if part.weights.any())
        assert sharding.parts_with_rows(samples - step * batch, batch, remainder, shards) == with_rows


@st.composite
def cuts_of_ranks(draw):
    """Of shards in a row on each rank, or of any shards on any rank, of which some may have none."""
    shards, size = draw(SHARDS), draw(st.integers(1, 5))
    if draw(st.booleans()):
        size = min(size, shards)
        return [sharding.Cut.of(rank, size, shards) for rank in range(size)]
    ranks = draw(st.lists(st.integers(0, size - 1), min_size=shards, max_size=shards))
    by_rank = tuple(tuple(shard for shard in range(shards) if ranks[shard] == rank) for rank in range(size))
    return [sharding.Assignment(by_rank).cut(rank) for rank in range(size)]


@pytest.mark.guarantee("same-global-batches")
@given(**BATCHES, cuts=cuts_of_ranks(), remainder=REMAINDERS)
def test_each_shard_is_the_same_on_any_rank(samples, batch, cuts, remainder):
    order, alone = sharding.order(3, 0, samples), sharding.Cut.of(0, 1, sum(len(cut.numbers) for cut in cuts))
    ranks = [batches(order, batch, remainder, cut) for cut in cuts]
    for step, expected in enumerate(batches(order, batch, remainder, alone)):
        parts = [zip(cut.numbers, steps[step], strict=True) for cut, steps in zip(cuts, ranks, strict=True)]
        seen = dict(itertools.chain(*parts))
        assert len(seen) == len(expected)
        for number, part in enumerate(expected):
            assert np.array_equal(seen[number].rows, part.rows) and np.array_equal(seen[number].weights, part.weights)
    pieces = sorted(piece.tolist() for cut in cuts for piece in sharding.evaluation(samples, batch, cut))
    assert pieces == [piece.tolist() for piece in sharding.evaluation(samples, batch, alone)]
    assert [row for piece in pieces for row in piece] == list(range(samples))


def test_each_shard_is_on_exactly_one_rank():
    assert sharding.Assignment.contiguous(3, 8).by_rank == ((0, 1), (2, 3, 4), (5, 6, 7))
    assert sharding.Assignment.contiguous(3).by_rank == ((0,), (1,), (2,))
    assert sharding.Assignment.contiguous(3, 2).counts == [0, 1, 1]
    for by_rank in (((0, 1), (1,)), ((0,), (2,)), ((1, 0),)):
        with pytest.raises(ValueError, match="not each part on exactly one rank"):
            sharding.Assignment(by_rank)
