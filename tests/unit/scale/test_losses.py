"""Stragglers, failures and checkpoints, against simulation and limits."""

import math

import numpy as np
import pytest

from hvdtrain.scale.failures import Reliability, checkpoint_interval, slowdown
from hvdtrain.scale.stragglers import expected_maximum


@pytest.mark.parametrize("number", [1, 2, 8, 64, 512])
def test_expected_maximum_of_normal_values(number):
    drawn = np.random.default_rng(1).standard_normal((4000, number)).max(axis=1).mean()
    assert expected_maximum(number) == pytest.approx(drawn, abs=0.06)


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


def test_the_interval_loses_least_time():
    """Daly's time for other intervals is longer."""
    reliability = Reliability(host_mtbf_s=86_400, checkpoint_s=30, restart_s=0)
    best = checkpoint_interval(reliability, 10)
    assert best == pytest.approx(math.sqrt(2 * 30 * 8640), rel=0.1)  # Young's

    def time(interval_s):
        return 8640 * math.expm1((interval_s + 30) / 8640) / interval_s

    assert time(best) < min(time(best / 1.3), time(best * 1.3))


def test_limits():
    never = Reliability(host_mtbf_s=math.inf, checkpoint_s=10, restart_s=10)
    assert (slowdown(never, 1000), checkpoint_interval(never, 1000)) == (1, math.inf)
    always = Reliability(host_mtbf_s=1, checkpoint_s=100, restart_s=10_000)
    assert slowdown(always, 1000) == math.inf
    free = Reliability(host_mtbf_s=3600, checkpoint_s=0, restart_s=0)
    assert slowdown(free, 1) == pytest.approx(1, abs=0.01)
