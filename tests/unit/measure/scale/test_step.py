"""The parts of a step, and predictions made of them."""

import dataclasses
import math

import pytest

from hvdtrain.measure.scale.algorithms import Link
from hvdtrain.measure.scale.communication import Communication, Coordination, Fit
from hvdtrain.measure.scale.output import findings
from hvdtrain.measure.scale.prediction import Job, Reliability, predict, predict_all
from hvdtrain.measure.scale.step import StepModel
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


def test_overlap_hides_only_what_it_can():
    times = [model(overlap=share, messages=4).step(8, 32).seconds for share in (1.0, 0.5, 0.0)]
    assert times[0] < times[1] < times[2]
    assert times[1] == pytest.approx((times[0] + times[2]) / 2)


def test_the_best_number_of_messages_is_as_good_as_any():
    best = model(overlap=1.0, messages=0).step(8, 32).seconds
    assert best <= min(model(overlap=1.0, messages=number).step(8, 32).seconds for number in (1, 2, 4, 8))
    cost = links(call_s=0.05)
    few = model(overlap=1.0, messages=0, network=cost).step(8, 32)
    assert few.control == pytest.approx(0.05, rel=0.5)  # with a costly call, one message


def test_one_rank_only_computes():
    step = model().step(1, 32)
    assert step.seconds == step.compute == pytest.approx(0.032)


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


def test_the_reach_ends_where_efficiency_is_lost_first():
    """Three ranks take one more round of recursive doubling than four."""
    latency = job(model("mpi", network=links(latency_s=7e-4, gb_s=1e6)))
    predictions = predict_all(latency, [2, 3, 4])
    good = [one.efficiency.value >= 0.95 for one in predictions]
    assert good == [True, False, True]
    assert findings(latency, predictions)[0] == "Up to 2 ranks, efficiency is at least 95%."


def test_only_horovod_sends_before_backward_ends_by_mpi():
    gloo, horovod = model("gloo", overlap=0.5), model("horovod-gloo", overlap=0.5, coordination=Coordination("mpi"))
    assert (gloo.by("mpi").overlap, horovod.by("mpi").overlap, horovod.by("ring").overlap) == (0, 0.5, 0)
