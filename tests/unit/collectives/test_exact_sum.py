"""The sum over shards: the same bits for any ranks and any order, and exact to one float32 rounding."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rank_threads import on_all_ranks

from hvdtrain.collectives.exact_sum import sum_over_shards
from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.datasets.sharding import bounds

SHAPES = [(3, 4), (7,), ()]
FINITE = {"allow_nan": False, "allow_infinity": False, "width": 32}


def float32s(**options):
    return st.floats(**options).map(np.float32)


def shards_of(draw_values, count):
    """`count` shards with arrays of SHAPES, from a function of the number of values."""
    values = [draw_values(math.prod(shape)) for _ in range(count) for shape in SHAPES]
    arrays = [np.array(part, np.float32).reshape(shape) for part, shape in zip(values, SHAPES * count, strict=True)]
    return [arrays[i : i + len(SHAPES)] for i in range(0, len(arrays), len(SHAPES))]


def summed(shards, ranks, order=None, permuted=False):
    """The sums of all shards, shared by so many ranks; checks that the ranks agree."""

    def of_rank(group):
        low, high = bounds(len(shards), group.rank, ranks)
        local = shards[low:high][::-1] if permuted else shards[low:high]
        return sum_over_shards(group, local, SHAPES, len(shards), np.array([len(local), 0.1 * (group.rank == 0)]))

    first, *others = on_all_ranks(ranks, of_rank, order)
    for other in others:
        for array, expected in zip(other.arrays, first.arrays, strict=True):
            assert array.tobytes() == expected.tobytes()
    assert first.carried.tolist() == [len(shards), 0.1]
    return first.arrays


@pytest.mark.guarantee("same-bits")
@settings(max_examples=60)
@given(data=st.data(), count=st.integers(1, 9))
def test_neither_ranks_nor_order_change_a_bit(data, count):
    values = st.one_of(
        float32s(**FINITE),
        float32s(allow_nan=False, min_value=-(2.0**-123), max_value=2.0**-123, width=32),
        st.just(np.float32(0)),
    )
    shards = shards_of(lambda n: data.draw(st.lists(values, min_size=n, max_size=n)), count)
    ranks = data.draw(st.integers(1, count))
    order = data.draw(st.permutations(range(ranks)))
    alone, shared = summed(shards, 1), summed(shards, ranks, order, permuted=True)
    for array, expected in zip(shared, alone, strict=True):
        assert array.tobytes() == expected.tobytes()


@pytest.mark.guarantee("same-bits")
@settings(max_examples=60)
@given(seed=st.integers(0, 999), count=st.integers(1, 16), spread=st.integers(0, 12))
def test_the_error_is_below_one_rounding_of_float32(seed, count, spread):
    """For elements within 2^`spread` of the largest; smaller ones have the same absolute error."""
    draw = np.random.default_rng(seed)
    shards = shards_of(lambda n: draw.uniform(-1, 1, n) * 2.0 ** -draw.integers(0, spread + 1, n), count)
    for number, total in enumerate(summed(shards, 1)):
        elements = np.array([shard[number].ravel() for shard in shards], np.float64)
        for exact, value in zip(map(math.fsum, elements.T), total.ravel(), strict=True):
            largest = np.abs(elements).max()
            assert abs(value - exact) <= count * 2.0**-50 * largest
            if abs(exact) > 2.0**-20 * largest:
                assert abs(value - exact) < np.spacing(np.float32(abs(exact))) / 2


def test_of_a_number_that_float32_cannot_add():
    """float32 gives 1 or 0 by the order; the exact sum is 2^-30."""
    shards = [[np.full(1, value, np.float32)] for value in (1, 2**-30, -1)]
    sums = sum_over_shards(SingleProcess(), shards, [(1,)], 3)
    assert sums.arrays[0][0] == 2**-30


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_an_element_that_is_not_finite_makes_its_array_nan_and_no_other(bad):
    shards = shards_of(lambda n: np.ones(n), 4)
    shards[2][1][3] = bad
    for sums in (summed(shards, 1), summed(shards, 3)):
        assert np.isnan(sums[1]).all()
        assert (sums[0] == 4).all() and sums[2] == 4


def test_the_largest_and_the_smallest_numbers():
    largest, smallest = np.finfo(np.float32).max, np.float32(1e-45)
    for value in (largest, smallest):
        shards = [[np.full(2, value)] for _ in range(8)]
        assert (sum_over_shards(SingleProcess(), shards, [(2,)], 8).arrays[0] == 8 * np.float64(value)).all()


def test_ranks_without_a_shard_take_part():
    shards = shards_of(lambda n: np.ones(n), 2)

    def of_rank(group):
        return sum_over_shards(group, shards if group.rank == 1 else [], SHAPES, 8)

    for sums in on_all_ranks(3, of_rank):
        assert all((array == 2).all() for array in sums.arrays)


def test_no_shard_at_all():
    sums = sum_over_shards(SingleProcess(), [], SHAPES, 8)
    assert not any(array.any() for array in sums.arrays)
