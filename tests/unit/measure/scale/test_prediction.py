"""Stragglers, failures and checkpoints, against simulation and limits."""

import math

import numpy as np
import pytest

from hvdtrain.measure.scale.prediction import Reliability, checkpoint_interval, slowdown
from hvdtrain.measure.scale.step import expected_maximum


# Exact values: 0, 1 / sqrt(pi), 3 / (2 sqrt(pi)); the others are the integral of N x phi(x) Phi(x)^(N-1).
@pytest.mark.parametrize(
    ("number", "exact"),
    [(1, 0), (2, 1 / math.sqrt(math.pi)), (3, 1.5 / math.sqrt(math.pi)), (8, 1.4236), (64, 2.3437), (512, 3.0439)],
)
def test_expected_maximum_of_normal_values(number, exact):
    assert expected_maximum(number) == pytest.approx(exact, abs=0.03)


def simulated_slowdown(reliability, hosts, seed=0):
    """Time of work with checkpoints at the optimal interval, and failures drawn from the exponential distribution."""
    random, mtbf_s = np.random.default_rng(seed), reliability.host_mtbf_s / hosts
    interval_s = checkpoint_interval(reliability, hosts)
    clock = done = 0.0
    next_failure = random.exponential(mtbf_s)
    while done < 3000 * interval_s:
        end = clock + interval_s + reliability.checkpoint_s
        if end <= next_failure:
            clock, done = end, done + interval_s
            continue
        clock = next_failure
        while True:  # a failure during a restart restarts it
            next_failure = clock + random.exponential(mtbf_s)
            if next_failure >= clock + reliability.restart_s:
                clock += reliability.restart_s
                break
            clock = next_failure
    return clock / done


@pytest.mark.parametrize("hosts", [1, 30, 300])
def test_slowdown_agrees_with_a_simulation(hosts):
    reliability = Reliability(host_mtbf_s=300_000, checkpoint_s=20, restart_s=90)
    assert slowdown(reliability, hosts) == pytest.approx(simulated_slowdown(reliability, hosts), rel=0.03)


@pytest.mark.parametrize("checkpoint_s", [30, 4_000, 7_800, 16_400, 20_000])
def test_the_interval_loses_least_time(checkpoint_s):
    """Daly's time for other intervals is longer, also where a checkpoint takes about as long as hosts work: 8640 s."""
    reliability = Reliability(host_mtbf_s=86_400, checkpoint_s=checkpoint_s, restart_s=0)
    best = checkpoint_interval(reliability, 10)

    def time(interval_s):
        return 8640 * math.expm1((interval_s + checkpoint_s) / 8640) / interval_s

    assert time(best) < min(time(best / 1.3), time(best * 1.3))


def test_short_checkpoints_have_youngs_interval():
    reliability = Reliability(host_mtbf_s=86_400, checkpoint_s=30, restart_s=0)
    assert checkpoint_interval(reliability, 10) == pytest.approx(math.sqrt(2 * 30 * 8640), rel=0.1)


def test_limits():
    never = Reliability(host_mtbf_s=math.inf, checkpoint_s=10, restart_s=10)
    assert (slowdown(never, 1000), checkpoint_interval(never, 1000)) == (1, math.inf)
    always = Reliability(host_mtbf_s=1, checkpoint_s=100, restart_s=10_000)
    assert slowdown(always, 1000) == math.inf
    free = Reliability(host_mtbf_s=3600, checkpoint_s=0, restart_s=0)
    assert slowdown(free, 1) == pytest.approx(1, abs=0.01)
