"""The parts of a step, and predictions made of them; stragglers, failures and checkpoints against simulations."""

import dataclasses
import math

import numpy as np
import pytest

from hvdtrain.measure.scale.algorithms import Link
from hvdtrain.measure.scale.communication import Communication, Coordination, Fit
from hvdtrain.measure.scale.output import findings
from hvdtrain.measure.scale.prediction import Job, Reliability, checkpoint_interval, predict, predict_all, slowdown
from hvdtrain.measure.scale.step import StepModel, expected_maximum
from hvdtrain.measure.scale.workload import Workload

WORKLOAD = Workload(32, 0.0, 1e-3, 0.0, 4_000_000, 8, spread=0.0, images=60_000, epochs=10, global_batch=32)
NEVER = Reliability(math.inf, 1, 60)


def links(latency_s=1e-4, gb_s=0.1, call_s=0.0):
    return Fit(Link(latency_s, 1e-9 / gb_s), call_s, 0.05)


def model(algorithm="ring", overlap=0.0, messages=1, network=None, workload=WORKLOAD, coordination=None, **given):
    network = network or links()
    communication = Communication(algorithm, network, network, coordination=coordination)
    return StepModel(workload, communication, overlap, messages, **given)


def job(of=None, scaling="weak", reliability=NEVER, price=0.0):
    return Job(of or model(), scaling, 32, reliability, 600_000, price)


def finished_by_simulation(messages, seconds, backward_s):
    """When the last message is done: each becomes ready during backward, and waits for the one before."""
    done = 0.0
    for number in range(1, messages + 1):
        done = max(done, number / messages * backward_s) + seconds
    return done - backward_s


@pytest.mark.parametrize("messages", [1, 2, 5, 8])
@pytest.mark.parametrize("gb_s", [0.05, 0.3, 5.0])
def test_perfect_overlap_is_that_of_a_simulation(messages, gb_s):
    made = model(overlap=1.0, messages=messages, network=links(gb_s=gb_s))
    seconds = sum(made.communication.call(math.ceil(4_000_000 / messages), 4))
    step = made.step(4, 32)
    expected = finished_by_simulation(messages, seconds, 2 / 3 * step.compute)
    assert step.latency + step.transfer == pytest.approx(expected)


def test_the_best_number_of_messages_is_as_good_as_any():
    best = model(overlap=1.0, messages=0).step(8, 32).seconds
    assert best <= min(model(overlap=1.0, messages=number).step(8, 32).seconds for number in (1, 2, 4, 8))
    cost = links(call_s=0.05)
    few = model(overlap=1.0, messages=0, network=cost).step(8, 32)
    assert few.control == pytest.approx(0.05, rel=0.5)  # with a costly call, one message


def test_storage_that_is_too_slow_is_waited_for():
    step = model(storage_images_s=1000.0).step(8, 32)
    assert step.seconds == pytest.approx(8 * 32 / 1000)
    assert predict(job(model(storage_images_s=1000.0)), 8).limited_by == "input"


def test_weak_scaling_keeps_the_images_of_a_rank_and_strong_those_of_the_step():
    weak, strong = predict(job(), 4), predict(job(scaling="strong"), 4)
    assert (weak.rows, strong.rows) == (32, 8)
    assert weak.images_per_s.value == pytest.approx(4 * 32 / weak.step.seconds)
    assert strong.images_per_s.value == pytest.approx(32 / strong.step.seconds)
    assert predict(job(scaling="strong"), 64).rows == 1  # the fullest rank


def test_a_range_contains_the_value_and_grows_beyond_the_ranks_measured():
    measured = dataclasses.replace(links(), most_ranks=4)
    spread = dataclasses.replace(WORKLOAD, spread=0.05)
    predictions = predict_all(job(model(network=measured, workload=spread)), [2, 8, 64])
    widths = []
    for one in predictions:
        assert one.images_per_s.low < one.images_per_s.value < one.images_per_s.high
        widths.append(one.images_per_s.high / one.images_per_s.low)
    assert widths == sorted(widths)


@pytest.mark.parametrize(
    ("change", "limit"),
    [
        ({"workload": dataclasses.replace(WORKLOAD, spread=0.5), "network": links(1e-9, 100)}, "the slowest rank"),
        ({"network": links(1e-9, 100, call_s=0.1)}, "the cost of a call"),
        ({"network": links(1e-9, 100), "coordination": Coordination("mpi", 0.1)}, "Horovod's control plane"),
        ({"network": links(1e-2, 100)}, "latency of the allreduce"),
        ({"network": links(1e-9, 0.01)}, "bandwidth of the allreduce"),
        ({"network": links(1e-9, 100)}, "computation"),
    ],
)
def test_what_limits_is_named(change, limit):
    assert predict(job(model(**change)), 16).limited_by == limit


def test_failures_take_time_and_money():
    often = Reliability(host_mtbf_s=3600 * 24, checkpoint_s=10, restart_s=60)
    without, with_failures = predict(job(price=2.0), 64), predict(job(reliability=often, price=2.0), 64)
    assert without.hours == pytest.approx(600_000 / without.images_per_s.value / 3600)
    assert without.cost == pytest.approx(without.hours * 64 * 2)
    assert with_failures.slowdown > 1.1
    assert with_failures.hours == pytest.approx(without.hours * with_failures.slowdown)
    assert math.isnan(predict(job(), 4).cost)


def test_findings_name_the_ranks_and_the_remedy():
    slow = job(model("gloo", network=links(latency_s=2e-4, gb_s=1.0)))
    sentences = "\n".join(findings(slow, predict_all(slow, [1, 2, 4, 8, 16, 32, 64, 128])))
    assert "latency of the allreduce limits training" in sentences
    assert "Gloo's ring is too slow: use MPI" in sentences
    strong = job(model(network=links(latency_s=1e-3, gb_s=1.0)), scaling="strong")
    assert findings(strong, predict_all(strong, [1, 2, 4, 64]))[-1].startswith("More than ")
    fast = job(model(network=links(1e-9, 100)))
    assert findings(fast, predict_all(fast, [1, 2, 64])) == ["Up to 64 ranks, efficiency is at least 95%."]


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


def test_limits():
    never = Reliability(host_mtbf_s=math.inf, checkpoint_s=10, restart_s=10)
    assert (slowdown(never, 1000), checkpoint_interval(never, 1000)) == (1, math.inf)
    always = Reliability(host_mtbf_s=1, checkpoint_s=100, restart_s=10_000)
    assert slowdown(always, 1000) == math.inf
    free = Reliability(host_mtbf_s=3600, checkpoint_s=0, restart_s=0)
    assert slowdown(free, 1) == pytest.approx(1, abs=0.01)
