"""--compression: what is rounded and how far, the same bits on every rank, and state with which a mean goes on."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rank_threads import on_all_ranks

from hvdtrain.collectives.compression import Traffic, make_mean, traffic
from hvdtrain.collectives.mean import BLOCK, BFloat16, Int8
from hvdtrain.config.forms import Method, parse_method
from hvdtrain.config.options import Config
from hvdtrain.interfaces.learner import ERROR

METHODS = ["none", "bf16", "int8", "powersgd:1", "powersgd:3"]
SHAPES = [(6, 25), (1, 6), (40, 60), (1, 40), (0, 7), (300, 3)]
LENGTH = sum(rows * columns for rows, columns in SHAPES)


def mean_of(group, method, seed=0):
    return make_mean(Config(strategy="ring", compression=method, seed=seed), group)


def drawn(rank, step=0, length=LENGTH):
    return np.random.default_rng([rank, step]).standard_normal(length).astype(np.float32)


def exact(size, step=0, length=LENGTH):
    return np.mean([drawn(rank, step, length) for rank in range(size)], axis=0, dtype=np.float64)


def random(seed=0):
    return np.random.SFC64(seed)


@given(st.lists(st.floats(width=32), max_size=3 * BLOCK), st.integers(0, 9))
def test_packed_values_are_rounded_by_what_the_format_says_and_what_is_not_finite_stays_so(numbers, seed):
    values = np.array(numbers, np.float32)
    for packing in (BFloat16(), Int8(random(seed))):
        packed = packing.pack(values)
        assert packed.dtype == np.uint8 and packed.shape == (packing.size(len(values)),)
        got = packing.unpack(packed, len(values))
        assert got.dtype == np.float32 and got.shape == values.shape
        assert not np.isfinite(got[~np.isfinite(values)]).any()
    for start in range(0, len(values), BLOCK):
        block, of_block = values[start : start + BLOCK], got[start : start + BLOCK]
        level = max(np.abs(block).max() / 127, 2.0**-99)
        assert not level < 2.0**93 or np.all(np.abs(of_block - block) <= level * 1.0001)


def test_bf16_is_that_of_pytorch():
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).integers(0, 1 << 32, 100_000, np.uint32).view(np.float32)
    values = values[~np.isnan(values)]
    packing = BFloat16()
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    np.testing.assert_array_equal(packing.unpack(packing.pack(values), len(values)), expected)


def test_int8_has_the_right_mean_and_repeats():
    values = np.linspace(-1, 1, BLOCK, dtype=np.float32)
    rounded = [Int8(random(seed)) for seed in range(3000)]
    got = [packing.unpack(packing.pack(values), BLOCK) for packing in rounded]
    deviation = 1 / 127 / 2 / math.sqrt(len(got))
    assert np.abs(np.mean(got, axis=0, dtype=np.float64) - values).max() < 6 * deviation
    again = Int8(random(0))
    np.testing.assert_array_equal(again.unpack(again.pack(values), BLOCK), got[0])
    assert len({array.tobytes() for array in got}) > 1


@pytest.mark.parametrize(("size", "dtype"), [(1, "f4"), (2, "f2"), (3, "f4"), (5, "f8")])
@pytest.mark.parametrize("method", METHODS)
def test_all_ranks_have_the_same_mean(method, size, dtype):
    def job(group):
        mean, got = mean_of(group, method), []
        for step in range(3):
            got.append(drawn(group.rank, step).astype(dtype))
            mean.average(got[-1], SHAPES)
            assert got[-1].dtype == dtype
        return got

    results, rounding = on_all_ranks(size, job), 1e-2 if dtype == "f2" else 1e-6
    for step in range(3):
        for other in results[1:]:
            np.testing.assert_array_equal(other[step], results[0][step])
        error = np.abs(results[0][step] - exact(size, step)).max()
        assert error < {"none": rounding, "bf16": 0.04, "int8": 0.2}.get(method, 10)
        assert dtype == "f2" or (error < rounding) == (size == 1 or method == "none")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("method", METHODS)
def test_all_ranks_notice_a_value_that_is_not_finite_and_go_on_after_it(method, bad):
    def job(group):
        mean, got = mean_of(group, method), []
        for step in range(3):
            values = drawn(group.rank, step)
            if step == 1 and group.rank == 1:
                values[200] = bad
            mean.average(values, SHAPES)
            got.append(bool(np.isfinite(values).all()))
        return got

    assert on_all_ranks(3, job) == [[True, False, True]] * 3


@pytest.mark.parametrize("method", METHODS)
def test_a_state_goes_on_with_the_same_bits(method):
    def job(group):
        mean = mean_of(group, method)
        for step in range(2):
            mean.average(drawn(group.rank, step), SHAPES)
        resumed = mean_of(group, method)
        resumed.load({name: array.copy() for name, array in mean.arrays().items()})
        got = [drawn(group.rank, 2), drawn(group.rank, 2)]
        mean.average(got[0], SHAPES)
        resumed.average(got[1], SHAPES)
        return got

    for one, other in on_all_ranks(2, job):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=4), st.integers(1, 4))
def test_what_powersgd_does_not_send_is_not_lost(shapes, rank):
    """All that was given is in the means, or still in the errors; also of layers without a gradient."""
    length = sum(rows * columns for rows, columns in shapes)

    def job(group):
        mean, means, given_values = mean_of(group, f"powersgd:{rank}"), np.zeros(length), np.zeros(length)
        for step in range(4):
            values = drawn(group.rank, step, length) * (step > 0)
            given_values += values
            mean.average(values, shapes)
            means += values
        return means, given_values, mean.arrays()[ERROR]

    results = on_all_ranks(2, job)
    left = np.mean([error for _, _, error in results], axis=0)
    expected = np.mean([values for _, values, _ in results], axis=0)
    np.testing.assert_allclose(results[0][0] + left, expected, atol=1e-4)


def test_powersgd_finds_a_matrix_of_its_rank():
    """After some steps of the same gradients the product is them: the factors follow the gradient (warm start)."""
    gradient = np.outer(np.arange(1, 41), np.arange(60) - 29.5).astype(np.float32).ravel()

    def job(group):
        mean = mean_of(group, "powersgd:1")
        for _ in range(3):
            values = gradient * np.float32(1 + group.rank)
            mean.average(values, [(40, 60)])
        return values

    got = on_all_ranks(3, job)[0]
    np.testing.assert_allclose(got, 2 * gradient, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(
    "text", ["", "auto", "int4", "powersgd", "powersgd:0", "powersgd:1000", "powersgd:2.5", "topk:1"]
)
def test_names_of_methods(text):
    with pytest.raises(ValueError, match=r"not a method of compression|R is above 256"):
        parse_method(text)
    assert [str(parse_method(name)) for name in (*METHODS, "fp16")] == [*METHODS, "fp16"]


def test_what_is_sent():
    shapes = [(120, 400), (1, 120), (10, 3)]
    count = 48_000 + 120 + 30
    assert traffic(Method("none"), shapes) == Traffic((4 * count,))
    assert traffic(Method("bf16"), shapes) == Traffic(packed=2 * count)
    assert traffic(Method("int8"), shapes) == Traffic(packed=count + 4 * -(-count // BLOCK))
    assert traffic(Method("powersgd", 2), shapes) == Traffic((4 * (240 + 20 + 120), 4 * (800 + 6)))
    assert traffic(Method("powersgd", 200), shapes) == Traffic((4 * count,))
