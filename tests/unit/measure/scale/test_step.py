"""The model of a step: algorithms of allreduces, fitted to tables; overlap, the slowest rank and --compression."""

import math
import runpy
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.jobs import ROOT
from support.networks import LENET

from hvdtrain.collectives.compression import make_mean, traffic
from hvdtrain.collectives.mean import count, shape_of
from hvdtrain.config.forms import Method, parse_method
from hvdtrain.config.options import Config
from hvdtrain.measure.scale import step as module
from hvdtrain.measure.scale.allreduce import (
    STRATEGIES,
    Cluster,
    Link,
    exchange,
    horovod_over_gloo,
    mpi,
    rabenseifner,
    recursive_doubling,
    ring,
)
from hvdtrain.measure.scale.measured import Workload, fit
from hvdtrain.measure.scale.step import StepModel, expected_maximum, packing_s

LINK = Link(latency_s=1e-4, byte_s=1e-8)
SIZES = (8, 1 << 10, 1 << 20, 1 << 27)


def one_rank_per_host(ranks, link=LINK):
    return Cluster(ranks, 1, link, link)


@pytest.mark.parametrize("p", [2, 4, 8, 64])
@pytest.mark.parametrize("n", SIZES)
def test_formulas_of_thakur_rabenseifner_and_gropp(p, n):
    a, b, lg = LINK.latency_s, LINK.byte_s, math.log2(p)
    part = (p - 1) / p * n
    expected = {
        ring: 2 * (p - 1) * a + 2 * part * b,
        recursive_doubling: lg * (a + n * b),
        rabenseifner: 2 * lg * a + 2 * part * b,
        exchange: 2 * a + 2 * part * b,
    }
    for algorithm, seconds in expected.items():
        assert sum(algorithm(n, one_rank_per_host(p))) == pytest.approx(seconds), algorithm


@pytest.mark.parametrize(
    ("library", "ranks", "size", "used"),
    [
        (mpi, 64, 8, recursive_doubling),
        (mpi, 64, 1 << 27, rabenseifner),
        (horovod_over_gloo, 2, 4 << 20, recursive_doubling),
        (horovod_over_gloo, 2, (4 << 20) + 1, ring),
        (horovod_over_gloo, 3, 128 << 10, recursive_doubling),
        (horovod_over_gloo, 64, (128 << 10) + 1, ring),
    ],
)
def test_a_library_chooses_the_best_of_its_algorithms_and_horovod_over_gloo_by_size_alone(library, ranks, size, used):
    cluster = one_rank_per_host(ranks)
    assert library(size, cluster) == used(size, cluster)


@pytest.mark.parametrize("ranks", [2, 4, 7])
def test_packed_values_are_added_by_an_exchange_whose_messages_the_ring_sends_in_turn(ranks):
    size, cluster = 5000, one_rank_per_host(ranks)
    assert STRATEGIES["ring"].seconds(size, cluster, packed=True) == pytest.approx(sum(ring(size, cluster)))
    assert STRATEGIES["mpi"].seconds(size, cluster, packed=True) == pytest.approx(sum(exchange(size, cluster)))
    # Horovod's ranks agree before each of both, and exchange the sizes of the parts.
    agreement = sum(recursive_doubling(64, cluster))
    seconds = STRATEGIES["horovod"].seconds(size, cluster, packed=True)
    assert seconds == pytest.approx(sum(exchange(size, cluster)) + 2 * (agreement + LINK.latency_s))


MEASURED_LINK = Link(latency_s=5e-5, byte_s=2e-9)
MEASURED_SIZES = (8, 1024, 1 << 16, 1 << 20, 1 << 24)


def calls(strategy, ranks, call_s=0.0, noise=0.0):
    random = np.random.default_rng(0)
    for p in ranks:
        for size in MEASURED_SIZES:
            seconds = call_s + STRATEGIES[strategy].seconds(size, one_rank_per_host(p, MEASURED_LINK))
            yield p, size, seconds * random.lognormal(0, noise)


@pytest.mark.parametrize("strategy", ["horovod", "horovod over MPI", "ring", "mpi"])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_fit_finds_the_constants_that_made_the_table(strategy, noise):
    call_s = 1e-4 if strategy == "ring" else 0.0
    found = fit(list(calls(strategy, (2, 4, 8), call_s, noise)), STRATEGIES[strategy])
    tolerance = 0.05 + 4 * noise
    assert found.latency_s == pytest.approx(MEASURED_LINK.latency_s, rel=tolerance)
    assert found.byte_s == pytest.approx(MEASURED_LINK.byte_s, rel=tolerance)
    if strategy == "ring":
        assert found.call_s == pytest.approx(1e-4, rel=2 * tolerance)
    for p, size, seconds in () if noise else calls(strategy, (16, 64), call_s):
        assert STRATEGIES[strategy].seconds(size, one_rank_per_host(p, found)) == pytest.approx(seconds, rel=0.05)
    assert found.sizes == MEASURED_SIZES


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ranks", [2, 8])
def test_with_one_number_of_ranks_the_prediction_there_is_the_table(strategy, ranks):
    """Also where no straight line goes through the table, and with Horovod's agreement: the ratio to it is kept."""
    measured = [(ranks, size, 1e-4 + size**0.8 * 1e-8) for size in MEASURED_SIZES]
    found = fit(measured, STRATEGIES[strategy])
    for _, size, seconds in measured:
        assert STRATEGIES[strategy].seconds(size, one_rank_per_host(ranks, found)) == pytest.approx(seconds)
    assert found.call_s == 0


PUBLISHED = runpy.run_path(str(ROOT / "benchmarks" / "published.py"))


def test_median_error_is_at_most_a_tenth():
    rows = PUBLISHED["published_rows"]()
    assert len(rows) >= 20
    ours, held_out, linear = (
        statistics.median(abs(getattr(row, name)) for row in rows)
        for name in ("error", "held_out_error", "linear_error")
    )
    assert max(ours, held_out) <= 0.10
    assert ours < 0.5 * linear, "else the model would tell nothing that the number of ranks does not"


def test_the_documentation_shows_every_row():
    page = (ROOT / "docs" / "scaling.md").read_text()
    for row in PUBLISHED["published_rows"]():
        figures = f"{row.published:.0%} | {row.predicted:.0%} | {row.error:+.1%} | {row.held_out_error:+.1%} |"
        assert f"| {row.system} | {row.what} | {row.ranks} | {figures}" in page


def test_surplus_ranks_cost_two_more_messages():
    time = {p: sum(recursive_doubling(1000, one_rank_per_host(p))) for p in (4, 5)}
    assert time[5] - time[4] == pytest.approx(2 * LINK.latency_s + 1000 * 2 * LINK.byte_s)


def test_ranks_of_a_host_share_its_link_in_an_exchange():
    """4 of 16 ranks on a host: 12/16 of each rank's vector go to other hosts, over one link, and so does the sum."""
    _, transfer_s = exchange(16_000, Cluster(16, 4, Link(0, 1e-8), Link(0, 0)))
    assert transfer_s == pytest.approx(2 * 4 * 12_000 * 1e-8)


def test_no_constant_is_negative():
    """A table whose times fall with the size."""
    found = fit([(2, 8, 1e-3), (2, 1 << 20, 1e-4), (4, 8, 1e-5)], STRATEGIES["ring"])
    assert min(found.latency_s, found.byte_s, found.call_s) >= 0


LENET_SHAPES = tuple(shape_of(shape) for _, shape in LENET.parameters())
SHAPES = ((1000, 125),) * 8
METHODS = ("none", "int8", "powersgd:1", "powersgd:4")
shapes = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=5).map(tuple)


def model(strategy="ring", method="none", every=1, of=SHAPES, link=None, overlap=None, call_s=0.0, spread=0.0):
    """A job of 32 images a rank, which take 32 ms; gradients of 4 MB in 8 arrays."""
    link = link or Link(1e-4, 1e-8, call_s)
    allreduce = STRATEGIES[strategy]
    allreduce = allreduce if overlap is None else allreduce._replace(overlap=overlap)
    workload = Workload(32, 0.0, 1e-3, 0.0, of, spread, sync_every=every)
    return StepModel(workload, allreduce, link, link, method=parse_method(method))


def test_without_overlap_all_is_sent_after_backward_and_a_costly_call_is_made_once():
    link = Link(1e-4, 1e-8)
    whole_s = sum(ring(4_000_000, Cluster(8, 1, link, link)))
    assert model().step(8, 32).communication == pytest.approx(whole_s)
    waits = [model("ddp", overlap=overlap).step(8, 32).communication for overlap in (1.0, 0.5, 0.0)]
    assert waits == sorted(waits) and waits[0] < waits[1] < whole_s == pytest.approx(waits[2])
    assert model("ddp", overlap=1.0, call_s=0.05).step(8, 32).communication == pytest.approx(0.05 + whole_s)


# Exact values: 0, 1 / sqrt(pi), 3 / (2 sqrt(pi)); the others are the integral of N x phi(x) Phi(x)^(N-1).
@pytest.mark.parametrize(
    ("number", "exact"),
    [(1, 0), (2, 1 / math.sqrt(math.pi)), (3, 1.5 / math.sqrt(math.pi)), (8, 1.4236), (64, 2.3437), (512, 3.0439)],
)
def test_expected_maximum_of_normal_values(number, exact):
    assert expected_maximum(number) == pytest.approx(exact, abs=0.03)
    assert model(spread=0.1).step(number, 32).stragglers == pytest.approx(0.1 * 0.032 * exact, abs=1e-4)
    assert model(spread=0.1, every=4).step(number, 32).stragglers == pytest.approx(0.05 * 0.032 * exact, abs=1e-4)


@given(st.sampled_from(METHODS), shapes, st.sampled_from(tuple(STRATEGIES)), st.sampled_from((1, 2, 8)))
def test_one_rank_takes_as_long_with_any_method(method, of, strategy, every):
    assert model(strategy, method, every, of).step(1, 32) == model(strategy, of=of).step(1, 32)


@pytest.mark.parametrize("method", ["none", "int8", "powersgd:2"])
def test_messages_are_those_that_a_mean_exchanges(method):
    class Recorded(module._Mirror):
        def allreduce(self, values):
            sent.append(values.nbytes)

        def exchange(self, name, vector, counts, lengths):
            packed.append(vector.nbytes)
            return super().exchange(name, vector, counts, lengths)

    sent, packed = [], []
    values = np.ones(count(LENET_SHAPES), np.float32)
    make_mean(Config(compression=method), Recorded(4)).average(values, LENET_SHAPES)
    expected = traffic(parse_method(method), LENET_SHAPES)
    assert sum(sent) == sum(expected.allreduces)
    # Parts of equal length, and of whole blocks, are a little longer; there are two exchanges.
    assert sum(packed) == pytest.approx(2 * expected.packed, rel=2e-3)


def test_packing_is_measured_with_the_code_that_packs(monkeypatch):
    assert packing_s(Method("none"), LENET_SHAPES, 8) == packing_s(Method("int8"), LENET_SHAPES, 1) == 0
    averaged = []

    def recorded(config, group):
        averaged.append((config.compression, group.size))
        return make_mean(config, group)

    monkeypatch.setattr(module, "make_mean", recorded)
    monkeypatch.setattr(module, "PACKINGS", 2)
    step = model("ring", "int8", 4, ((3, 5), (1, 7))).step(3, 32)
    assert step.packing > 0 and averaged == [("int8", 3)]
