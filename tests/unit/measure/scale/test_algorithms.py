"""The formulas of allreduce algorithms, and what follows from them."""

import math

import pytest

from hvdtrain.measure.scale.algorithms import ALGORITHMS, CHOICES, EXCHANGE, Cluster, Link, allreduce_time

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


def test_a_ring_over_hosts_has_the_latency_of_its_hops_and_the_bandwidth_of_the_slowest():
    time = allreduce_time("ring", 1 << 20, Cluster(8, 4, LINK, FAST))
    assert time.latency_s == pytest.approx(2 * 7 / 8 * (2 * LINK.latency_s + 6 * FAST.latency_s))
    assert time.transfer_s == pytest.approx(7 / 8 * (1 << 20) * (2 * LINK.byte_s + LINK.sum_byte_s))
