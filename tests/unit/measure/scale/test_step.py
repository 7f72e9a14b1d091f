"""The parts of a step: overlap against a simulation, the slowest rank, and methods of --compression."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.networks import LENET

from hvdtrain.collectives.compression import make_mean, traffic
from hvdtrain.collectives.mean import count, shape_of
from hvdtrain.config.forms import Method, parse_method
from hvdtrain.config.options import Config
from hvdtrain.measure.scale import step as module
from hvdtrain.measure.scale.allreduce import STRATEGIES, Cluster, Link, ring
from hvdtrain.measure.scale.measured import Workload
from hvdtrain.measure.scale.step import StepModel, expected_maximum, packing_s

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


def finished_by_simulation(messages, seconds, backward_s):
    """When the last message is done: each becomes ready during backward, and waits for the one before."""
    done = 0.0
    for number in range(1, messages + 1):
        done = max(done, number / messages * backward_s) + seconds
    return done - backward_s


@pytest.mark.parametrize("gb_s", [0.05, 0.3, 5.0])
def test_perfect_overlap_is_the_best_of_a_simulation(gb_s):
    link = Link(1e-4, 1e-9 / gb_s)
    step = model("ddp", link=link, overlap=1.0).step(4, 32)
    seconds = {m: STRATEGIES["ddp"].seconds(math.ceil(4_000_000 / m), Cluster(4, 1, link, link)) for m in (1, 2, 4, 8)}
    expected = min(finished_by_simulation(m, each, 2 / 3 * step.compute) for m, each in seconds.items())
    assert step.communication == pytest.approx(expected)


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

        def exchange(self, parts):
            packed.append(parts.nbytes)
            return super().exchange(parts)

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
