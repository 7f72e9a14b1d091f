"""The sum over shards: its bits on any ranks, for any values; its error, and its memory."""

import importlib
import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rank_threads import on_all_ranks

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.collectives.tree_sum import Tree, TreeSum
from hvdtrain.datasets.sharding import Assignment
from hvdtrain.interfaces.combining import type_of

MOST = 64
SHAPES = (("float32", (3, 4)), ("float64", (5,)), ("float32", ()), ("float32", (2,)))
TYPES = tuple(type_of(name, shape) for name, shape in SHAPES)
SINGLES = np.array(
    [0.0, -0.0, 1e-45, -3e-39, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1.0, -1.0, 1 / 3, 2**-24, 1e-7, 123456.7],
    np.float32,
)
"""Zeros of both signs, denormal numbers, numbers that are not finite, whose sums overflow, and that are rounded."""
OTHER_NAN = np.array([0xFFC12345], np.uint32).view(np.float32)
DOUBLES = np.array([0.0, -0.0, 5e-324, np.inf, np.nan, 1.7e308, 1 / 3, -1e-17, 1.0])
FRACTIONS = {np.float32: 2.0**-24, np.float64: 2.0**-53}
"""The largest rounding, as a part of the result."""


def drawn(seed, shards, types=TYPES):
    """The arrays of each shard: special values, and others."""
    draw = np.random.default_rng(seed)
    singles = np.concatenate([SINGLES, OTHER_NAN, draw.normal(size=20).astype("f")])
    doubles = np.concatenate([DOUBLES, draw.normal(size=20)])
    return [
        [draw.choice(singles if kind is np.float32 else doubles, shape) for kind, shape in types] for _ in range(shards)
    ]


def summed(shards, by_rank, types=TYPES, begin=lambda: None):
    """The bytes of the sums of these shards, which all ranks have. begin: called in the thread of each rank."""

    def of_rank(group):
        begin()
        total = TreeSum(group, by_rank, types, 2)
        for shard in by_rank[group.rank]:
            total.add(shard, shards[shard])
        reports = total.exchange(np.array([group.rank, len(by_rank[group.rank])], float))
        assert [report.tolist() for report in reports] == [[rank, len(of)] for rank, of in enumerate(by_rank)]
        arrays = total.total()
        assert [(array.dtype.type, array.shape) for array in arrays] == [*types]
        return [array.tobytes() for array in arrays]

    first, *others = on_all_ranks(len(by_rank), of_rank)
    assert all(other == first for other in others)
    return first


@st.composite
def assignments(draw):
    """The shards of each rank, of which some are without rows: contiguous, or any."""
    shards = draw(st.integers(1, MOST))
    with_rows = sorted(draw(st.sets(st.integers(0, shards - 1), min_size=1)) if draw(st.booleans()) else range(shards))
    ranks = draw(st.integers(1, min(shards, 6)))
    owners = draw(st.lists(st.integers(0, ranks - 1), min_size=len(with_rows), max_size=len(with_rows)))
    if draw(st.booleans()):
        owners.sort()
    return tuple(
        tuple(shard for shard, owner in zip(with_rows, owners, strict=True) if owner == rank) for rank in range(ranks)
    )


@pytest.mark.guarantee("same-bits")
@settings(max_examples=150)
@given(by_rank=assignments(), seed=st.integers(0, 999))
def test_any_ranks_and_any_values_have_the_bits_of_one_process(by_rank, seed):
    shards, before = drawn(seed, MOST), drawn(seed, MOST)
    alone = tuple(sorted(shard for of_rank in by_rank for shard in of_rank))
    assert summed(shards, by_rank) == summed(shards, (alone,))
    for arrays, expected in zip(shards, before, strict=True):
        assert [array.tobytes() for array in arrays] == [array.tobytes() for array in expected], "they are not ours"


@pytest.mark.guarantee("same-bits")
@settings(max_examples=60)
@given(seed=st.integers(0, 999), count=st.integers(1, MOST), spread=st.integers(0, 30))
def test_the_error_is_that_of_an_allreduce(seed, count, spread):
    """At most log2(V) roundings of the sum of all magnitudes, of any numbers that differ by powers of two."""
    draw = np.random.default_rng(seed)

    def values(kind, shape):
        return (draw.uniform(-1, 1, shape) * 2.0 ** -draw.integers(0, spread + 1, shape)).astype(kind)

    shards = [[values(*one) for one in TYPES] for _ in range(count)]
    totals = summed(shards, (tuple(range(count)),))
    for number, ((kind, _), total) in enumerate(zip(TYPES, totals, strict=True)):
        elements = np.array([shard[number].ravel() for shard in shards]).T
        for value, of_shards in zip(np.frombuffer(total, kind), elements, strict=True):
            exact = sum(map(Fraction, of_shards.tolist()))
            magnitudes = float(sum(map(Fraction, np.abs(of_shards).tolist())))
            roundings = math.ceil(math.log2(count)) if count > 1 else 0
            bound = roundings * FRACTIONS[kind] * magnitudes * (1 + 2.0**-20)
            assert abs(Fraction(float(value)) - exact) <= bound


def test_the_order_is_that_of_a_binary_tree_over_the_numbers():
    """Of 5 shards without the third: ((0 + 1) + 3) + 4."""
    tree, sums = Tree([0, 1, 3, 4]), {}
    for shard in (4, 3, 0, 1):
        tree.insert(sums, (0, shard), f"{shard}", lambda left, right: f"({left}+{right})")
    assert list(sums.values()) == ["(((0+1)+3)+4)"]


@pytest.mark.parametrize(
    ("ranks", "counts"),
    [(2, [1, 1]), (3, [1, 2, 2]), (4, [1, 1, 1, 1]), (8, [1] * 8), (1, [1])],
)
def test_a_rank_sends_its_largest_subtrees(ranks, counts):
    tree = Tree(range(8))
    assert [len(tree.subtrees(of)) for of in Assignment.contiguous(ranks, 8).by_rank] == counts


@given(shards=st.integers(2, 200), data=st.data())
def test_a_range_of_shards_has_at_most_two_subtrees_of_a_level(shards, data):
    first = data.draw(st.integers(0, shards - 1))
    subtrees = Tree(range(shards)).subtrees(range(first, data.draw(st.integers(first + 1, shards))))
    assert len(subtrees) <= max(2 * math.ceil(math.log2(shards)) - 2, 1)


def test_types_of_gradients():
    """float16 is added as float32; float64 is not rounded to it."""
    types = type_of("float16", (2,)), type_of("float64", (1,))
    first = [np.array([60000, 1], np.float16), np.array([1.0])]
    second = [np.array([60000, 2**-11], np.float16), np.array([2**-40])]
    of_float16, of_float64 = summed([first, second], ((0,), (1,)), types)
    single, double = np.frombuffer(of_float16, np.float32), np.frombuffer(of_float64)
    assert single.tolist() == [120000, 1 + 2**-11] and double.tolist() == [1 + 2**-40]


@pytest.mark.parametrize("types", [(), (type_of("float32", (0, 3)),)])
@pytest.mark.parametrize("by_rank", [((0,), (1,)), ((0,), (1,), (2,))])
def test_arrays_may_have_no_elements(by_rank, types):
    shards = [[np.empty(shape, kind) for kind, shape in types]] * 3
    assert summed(shards, by_rank, types) == [b""] * len(types)


def test_nan_has_one_pattern():
    first, second = (np.array([bits, 0], np.uint32).view(np.float32) for bits in (0xFFC12345, 0x7F812345))
    (array,) = summed([[first], [second]], ((0,), (1,)), (type_of("float32", (2,)),))
    assert array == np.array([np.nan, 0], np.float32).tobytes()


@pytest.mark.needs("torch")
def test_a_task_may_let_its_thread_flush_denormal_numbers():
    """All additions are in the thread of the training, so that ranks flush what one process does."""
    torch = importlib.import_module("torch")
    shards = [[np.full(9, 2.0**-126 * factor, np.float32)] for factor in (1, -0.5, 1.5, -1, 0.25)]
    sums = [
        summed(shards, by_rank, (type_of("float32", (9,)),), begin)
        for begin in (lambda: torch.set_flush_denormal(True), lambda: None)
        for by_rank in (((0, 1, 2, 3, 4),), ((0, 1), (2, 3, 4)), ((0,), (1, 2), (3, 4)))
    ]
    assert sums[0] == sums[1] == sums[2] != sums[3] == sums[4] == sums[5]


@pytest.mark.parametrize("shards", [1, 2, 16, 64])
def test_a_process_holds_few_sums(shards):
    """Besides the arrays of the shard that is added: one for each level of the tree."""
    types, arrays = (type_of("float32", (1 << 16,)),), np.ones(1 << 16, np.float32)
    total = TreeSum(SingleProcess(), (tuple(range(shards)),), types, 1)
    tracemalloc.start()
    for shard in range(shards):
        total.add(shard, [arrays])
    total.exchange(np.zeros(1))
    total.total()
    vectors = tracemalloc.get_traced_memory()[1] / arrays.nbytes
    tracemalloc.stop()
    assert vectors < max(math.log2(shards), 1) + 0.5
