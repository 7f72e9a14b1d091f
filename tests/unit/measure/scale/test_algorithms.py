"""Formulas of allreduce algorithms, constants of links fitted to tables of allreduces, published measurements."""

import math
import runpy
import statistics

import numpy as np
import pytest
from support.jobs import ROOT

from hvdtrain.measure.scale.algorithms import ALGORITHMS, CHOICES, EXCHANGE, Cluster, Link, allreduce_time
from hvdtrain.measure.scale.communication import Communication, Fit, Measured, fit
from hvdtrain.measure.scale.inputs import NAMES, library

LINK = Link(latency_s=1e-4, byte_s=1e-8, sum_byte_s=1e-9)
FAST = Link(latency_s=1e-6, byte_s=1e-10)
SIZES = (8, 1 << 10, 1 << 20, 1 << 27)


def one_rank_per_host(ranks, link=LINK):
    return Cluster(ranks, 1, link, link)


@pytest.mark.parametrize("p", [2, 4, 8, 64])
@pytest.mark.parametrize("n", SIZES)
def test_formulas_of_thakur_rabenseifner_and_gropp(p, n):
    a, b, g, lg = LINK.latency_s, LINK.byte_s, LINK.sum_byte_s, math.log2(p)
    part = (p - 1) / p * n
    expected = {
        "ring": 2 * (p - 1) * a + 2 * part * b + part * g,
        "recursive doubling": lg * (a + n * b + n * g),
        "Rabenseifner": 2 * lg * a + 2 * part * b + part * g,
        "exchange": 2 * a + 2 * part * b,
    }
    for name, seconds in expected.items():
        assert allreduce_time(name, n, one_rank_per_host(p)).seconds == pytest.approx(seconds), name


@pytest.mark.parametrize("name", [*ALGORITHMS, *CHOICES])
@pytest.mark.parametrize("ranks_per_host", [1, 3, 4])
@pytest.mark.parametrize(("network", "local"), [(LINK, FAST), (FAST, LINK)], ids=["fast hosts", "slow hosts"])
def test_more_ranks_and_bytes_never_take_less_time(name, ranks_per_host, network, local):
    def seconds(size, ranks):
        return allreduce_time(name, size, Cluster(ranks, ranks_per_host, network, local)).seconds

    assert seconds(8, 1) == 0
    # An exchange uses links in a host less, the more hosts there are: it may gain where those are the slower ones.
    for size in SIZES if name != EXCHANGE or network is LINK else ():
        powers = [seconds(size, 2**k) for k in range(1, 9)]
        assert powers == sorted(powers)
    for ranks in (2, 3, 5, 7, 12, 100):
        times = [seconds(size, ranks) for size in SIZES]
        assert times == sorted(times)
        assert times[0] > 0


def test_surplus_ranks_cost_two_more_messages():
    time = {p: allreduce_time("recursive doubling", 1000, one_rank_per_host(p)).seconds for p in (4, 5)}
    assert time[5] - time[4] == pytest.approx(2 * LINK.latency_s + 1000 * (2 * LINK.byte_s + LINK.sum_byte_s))


@pytest.mark.parametrize(
    ("library", "ranks", "size", "used"),
    [
        ("mpi", 64, 8, "recursive doubling"),
        ("mpi", 64, 1 << 27, "Rabenseifner"),
        ("horovod-gloo", 2, 4 << 20, "recursive doubling"),
        ("horovod-gloo", 2, (4 << 20) + 1, "ring"),
        ("horovod-gloo", 3, 128 << 10, "recursive doubling"),
        ("horovod-gloo", 64, (128 << 10) + 1, "ring"),
    ],
)
def test_a_library_chooses_the_best_of_its_algorithms_and_horovod_over_gloo_by_size_alone(library, ranks, size, used):
    cluster = one_rank_per_host(ranks)
    assert allreduce_time(library, size, cluster) == allreduce_time(used, size, cluster)


def test_a_hierarchical_allreduce_uses_the_network_less():
    """Over hosts with fast links inside, it has the latency of few hosts; recursive doubling shares its link."""
    cluster, size = Cluster(64, 8, LINK, FAST), 1 << 20
    times = {name: allreduce_time(name, size, cluster) for name in ALGORITHMS}
    assert times["hierarchical"].latency_s < times["ring"].latency_s
    assert times["recursive doubling"].transfer_s > 8 * 2 * size * LINK.byte_s
    network_bytes = 2 * 7 / 8 * size
    assert times["hierarchical"].transfer_s > network_bytes * LINK.byte_s
    assert times["hierarchical"].transfer_s < 1.2 * network_bytes * LINK.byte_s


MEASURED_LINK = Link(latency_s=5e-5, byte_s=2e-9)
MEASURED_SIZES = (8, 1024, 1 << 16, 1 << 20, 1 << 24)


def table(algorithm, ranks, call_s=0.0, noise=0.0):
    random = np.random.default_rng(0)
    for p in ranks:
        for size in MEASURED_SIZES:
            seconds = call_s + allreduce_time(algorithm, size, Cluster(p, 1, MEASURED_LINK, MEASURED_LINK)).seconds
            yield Measured(p, size, seconds * random.lognormal(0, noise))


@pytest.mark.parametrize("library", ["ring", "mpi", "nccl"])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_fit_finds_the_constants_that_made_the_table(library, noise):
    found = fit(list(table(library, (2, 4, 8), 1e-4 if library == "ring" else 0.0, noise)), library)
    tolerance = 0.05 + 4 * noise
    assert found.link.latency_s == pytest.approx(MEASURED_LINK.latency_s, rel=tolerance)
    assert found.link.byte_s == pytest.approx(MEASURED_LINK.byte_s, rel=tolerance)
    if library == "ring":
        assert found.call_s == pytest.approx(1e-4, rel=2 * tolerance)
    assert found.error <= 2 * noise + 1e-9
    for one in () if noise else table(library, (16, 64), 1e-4 if library == "ring" else 0.0):
        predicted = sum(Communication(library, found, found).call(one.size, one.ranks))
        assert predicted == pytest.approx(one.seconds, rel=0.05)
    assert (found.sizes, found.most_ranks) == (MEASURED_SIZES, 8)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [2, 8])
def test_with_one_number_of_ranks_the_prediction_there_is_the_table(name, ranks):
    """Also where no straight line goes through the table, and with Horovod's coordination: the ratio to it is kept."""
    of = library(name)
    measured = [Measured(ranks, size, 1e-4 + size**0.8 * 1e-8) for size in MEASURED_SIZES]
    found = fit(measured, of.algorithm, of.row_coordination)
    communication = Communication(of.algorithm, found, found, 1, of.coordination)
    for one in measured:
        assert sum(communication.call(one.size, ranks)) == pytest.approx(one.seconds)
    assert found.call_s == 0


@pytest.mark.parametrize("cycle_s", [1e-4, 1e-3, 5e-3])
def test_horovods_cycle_is_no_latency(cycle_s):
    """Its wait does not grow with the number of ranks, and the links are those of Gloo itself."""
    of = library("horovod-gloo", cycle_s)
    assert (of.row, of.algorithm, of.row_coordination) == ("gloo", "gloo", None)
    found = fit(list(table("ring", (2,))), of.algorithm, of.row_coordination)
    assert found.link.latency_s == pytest.approx(MEASURED_LINK.latency_s, rel=0.01)
    communication = Communication(of.algorithm, found, found, 1, of.coordination)
    assert communication.call(8, 64).control == pytest.approx(cycle_s / 2 + 126 * MEASURED_LINK.latency_s, rel=0.01)


@pytest.mark.parametrize("ranks", [4, 8, 64])
def test_slower_links_in_a_host_bring_their_fit(ranks):
    """More hosts are never faster than one, where the links between them are the faster ones."""
    local = Fit(Link(2e-5, 1e-9), 1.5e-4, 0.2, MEASURED_SIZES, (1.5,) * len(MEASURED_SIZES), 4)
    network = Fit(Link(1e-6, 1e-10), 0.0, 0.0, most_ranks=2)
    communication = Communication("gloo", network, local, 4)
    assert communication.used(ranks) is local
    assert sum(communication.call(1 << 19, ranks)) >= sum(communication.call(1 << 19, 4))
    assert Communication("gloo", network, local, 1).used(ranks) is network


def test_no_constant_is_negative():
    """A table whose times fall with the size."""
    found = fit([Measured(2, 8, 1e-3), Measured(2, 1 << 20, 1e-4), Measured(4, 8, 1e-5)], "ring")
    assert min(found.link.latency_s, found.link.byte_s, found.call_s) >= 0


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
