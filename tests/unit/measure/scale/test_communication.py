"""Constants of links, fitted to tables of allreduces."""

import numpy as np
import pytest

from hvdtrain.measure.scale.algorithms import Cluster, Link, allreduce_time
from hvdtrain.measure.scale.communication import Communication, Fit, Measured, fit
from hvdtrain.measure.scale.inputs import NAMES, library

LINK = Link(latency_s=5e-5, byte_s=2e-9)
SIZES = (8, 1024, 1 << 16, 1 << 20, 1 << 24)


def table(algorithm, ranks, call_s=0.0, noise=0.0):
    random = np.random.default_rng(0)
    for p in ranks:
        for size in SIZES:
            seconds = call_s + allreduce_time(algorithm, size, Cluster(p, 1, LINK, LINK)).seconds
            yield Measured(p, size, seconds * random.lognormal(0, noise))


@pytest.mark.parametrize("library", ["ring", "mpi", "nccl"])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_fit_finds_the_constants_that_made_the_table(library, noise):
    found = fit(list(table(library, (2, 4, 8), 1e-4 if library == "ring" else 0.0, noise)), library)
    tolerance = 0.05 + 4 * noise
    assert found.link.latency_s == pytest.approx(LINK.latency_s, rel=tolerance)
    assert found.link.byte_s == pytest.approx(LINK.byte_s, rel=tolerance)
    if library == "ring":
        assert found.call_s == pytest.approx(1e-4, rel=2 * tolerance)
    assert found.error <= 2 * noise + 1e-9
    for one in () if noise else table(library, (16, 64), 1e-4 if library == "ring" else 0.0):
        predicted = sum(Communication(library, found, found).call(one.size, one.ranks))
        assert predicted == pytest.approx(one.seconds, rel=0.05)
    assert (found.sizes, found.most_ranks) == (SIZES, 8)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [2, 8])
def test_with_one_number_of_ranks_the_prediction_there_is_the_table(name, ranks):
    """Also where no straight line goes through the table, and with Horovod's coordination: the ratio to it is kept."""
    of = library(name)
    measured = [Measured(ranks, size, 1e-4 + size**0.8 * 1e-8) for size in SIZES]
    found = fit(measured, of.algorithm, of.row_coordination)
    communication = Communication(of.algorithm, found, found, 1, of.coordination)
    for one in measured:
        assert sum(communication.call(one.size, ranks)) == pytest.approx(one.seconds)
    assert found.call_s == 0


def test_with_two_numbers_of_ranks_the_cost_of_a_call_is_in_the_prediction_once():
    of = library("horovod-gloo")
    link = Fit(LINK, 1e-4, 0.0)
    made = Communication(of.algorithm, link, link, 1, of.coordination)
    measured = [Measured(ranks, size, sum(made.call(size, ranks))) for ranks in (4, 8) for size in SIZES]
    found = fit(measured, of.algorithm, of.coordination)
    assert found.call_s == pytest.approx(1e-4, rel=0.01)
    communication = Communication(of.algorithm, found, found, 1, of.coordination)
    for size in (64, 1 << 22):
        assert sum(communication.call(size, 64)) == pytest.approx(sum(made.call(size, 64)), rel=0.01)


@pytest.mark.parametrize("cycle_s", [1e-4, 1e-3, 5e-3])
def test_horovods_cycle_is_no_latency(cycle_s):
    """Its wait does not grow with the number of ranks, and the links are those of Gloo itself."""
    of = library("horovod-gloo", cycle_s)
    assert (of.row, of.algorithm, of.row_coordination) == ("gloo", "gloo", None)
    found = fit(list(table("ring", (2,))), of.algorithm, of.row_coordination)
    assert found.link.latency_s == pytest.approx(LINK.latency_s, rel=0.01)
    communication = Communication(of.algorithm, found, found, 1, of.coordination)
    assert communication.call(8, 64).control == pytest.approx(cycle_s / 2 + 126 * LINK.latency_s, rel=0.01)


@pytest.mark.parametrize("ranks", [4, 8, 64])
def test_slower_links_in_a_host_bring_their_fit(ranks):
    """More hosts are never faster than one, where the links between them are the faster ones."""
    local = Fit(Link(2e-5, 1e-9), 1.5e-4, 0.2, SIZES, (1.5,) * len(SIZES), 4)
    network = Fit(Link(1e-6, 1e-10), 0.0, 0.0, most_ranks=2)
    communication = Communication("gloo", network, local, 4)
    assert communication.used(ranks) is local
    assert sum(communication.call(1 << 19, ranks)) >= sum(communication.call(1 << 19, 4))
    assert Communication("gloo", network, local, 1).used(ranks) is network


def test_only_horovods_ranks_agree_first():
    """Its own ring is compared with as the strategy `ring`, without Horovod."""
    link = Fit(LINK, 0.0, 0.0)
    of = library("horovod-gloo", cycle_s=5e-3)
    communication = Communication(of.algorithm, link, link, 1, of.coordination)
    assert communication.by("ring").call(1 << 20, 8).control == 0
    assert communication.by("mpi").call(1 << 20, 8).control == pytest.approx(2.5e-3 + 3 * LINK.latency_s, rel=0.01)
    assert (communication.message_bytes, communication.by("ring").message_bytes) == (128 << 20, float("inf"))
    assert not any(library(name).coordination for name in NAMES if not name.startswith("horovod"))


def test_no_constant_is_negative():
    """A table whose times fall with the size."""
    found = fit([Measured(2, 8, 1e-3), Measured(2, 1 << 20, 1e-4), Measured(4, 8, 1e-5)], "ring")
    assert min(found.link.latency_s, found.link.byte_s, found.call_s) >= 0


def test_one_rank_does_not_communicate():
    communication = Communication("ring", Fit(LINK, 1.0, 0.0), Fit(LINK, 1.0, 0.0))
    assert sum(communication.call(1 << 20, 1)) == 0
