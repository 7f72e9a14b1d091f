"""What methods of --compression send and cost in the model, against the means that send it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.networks import LENET

from hvdtrain.collectives.compression import make_mean
from hvdtrain.collectives.mean import shape_of
from hvdtrain.config.compression import Method, parse_method
from hvdtrain.config.options import Config
from hvdtrain.measure.scale import compression
from hvdtrain.measure.scale.algorithms import Link, allreduce_time
from hvdtrain.measure.scale.communication import Communication, Coordination, Fit
from hvdtrain.measure.scale.compression import PLAIN, Combining, count, packing_s
from hvdtrain.measure.scale.step import StepModel
from hvdtrain.measure.scale.workload import Workload

LENET_SHAPES = tuple(shape_of(shape) for _, shape in LENET.parameters())
METHODS = ("none", "bf16", "int8", "powersgd:1", "powersgd:4")
combinings = st.builds(Combining, st.sampled_from(METHODS).map(parse_method), st.sampled_from((1, 2, 8)))
shapes = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=5).map(tuple)
algorithms = st.sampled_from(("ring", "mpi", "gloo", "horovod-gloo"))


def model(of, combining=PLAIN, algorithm="ring", link=None, **given):
    """A job without a measured cost of packing."""
    link = link or Link(1e-4, 1e-8)
    fit = Fit(link, 0.0, 0.0)
    coordination = Coordination("horovod-gloo") if algorithm == "horovod-gloo" else None
    workload = Workload(1, 0.0, 0.01, 0.0, 4 * count(of), len(of), spread=0.0, shapes=of)
    communication = Communication(algorithm, fit, fit, coordination=coordination)
    return StepModel(workload, communication, 0.0, combining=combining, **given)


def communication_s(step):
    return step.control + step.latency + step.transfer


class Counted(compression._Mirror):
    """A rank that counts the bytes that it sends to others, as if an allreduce sent the least."""

    sent = 0.0

    def allreduce(self, values):
        self.sent += 2 * (self.size - 1) / self.size * values.nbytes

    def exchange(self, parts):
        self.sent += (self.size - 1) / self.size * parts.nbytes
        return super().exchange(parts)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("method", METHODS)
def test_bytes_are_those_that_a_mean_sends(method, ranks):
    group = Counted(ranks)
    make_mean(Config(compression=method), group).average(np.ones(count(LENET_SHAPES), np.float32), LENET_SHAPES)
    # Parts of equal length, and of whole blocks, are a little longer.
    assert Combining(parse_method(method)).sent_bytes(LENET_SHAPES, ranks) == pytest.approx(group.sent, rel=2e-3)


@given(combinings, shapes, st.integers(2, 64))
def test_no_method_sends_more_than_none(combining, of, ranks):
    scales = 8 * ranks  # of blocks that are not full
    assert combining.sent_bytes(of, ranks) <= PLAIN.sent_bytes(of, ranks) + scales
    every_step = combining._replace(sync_every=1)
    assert combining.sent_bytes(of, ranks) == pytest.approx(every_step.sent_bytes(of, ranks) / combining.sync_every)


@given(combinings, shapes, algorithms)
def test_one_rank_takes_as_long_with_any_method(combining, of, algorithm):
    assert model(of, combining, algorithm).step(1, 1) == model(of, PLAIN, algorithm).step(1, 1)
    assert combining.sent_bytes(of, 1) == 0


@given(combinings, shapes, algorithms, st.integers(2, 64), st.floats(1e-12, 1e-6), st.floats(1, 1000))
def test_a_slower_link_never_makes_a_step_shorter(combining, of, algorithm, ranks, byte_s, factor):
    links = [Link(1e-5, byte_s), Link(1e-5, factor * byte_s), Link(factor * 1e-5, factor * byte_s)]
    seconds = [model(of, combining, algorithm, link).step(ranks, 1).seconds for link in links]
    assert seconds == sorted(seconds)


@given(st.sampled_from(METHODS), shapes, algorithms, st.integers(2, 64), st.integers(2, 100))
def test_local_steps_divide_what_a_sync_takes(method, of, algorithm, ranks, every):
    """By their number; one of each step is not hidden behind backward here, so it costs as much as a sync."""
    each, some = (
        model(of, Combining(parse_method(method), number), algorithm).step(ranks, 1) for number in (2, 2 * every)
    )
    assert communication_s(some) == pytest.approx(communication_s(each) / every)


@pytest.mark.parametrize("ranks", [2, 4, 7])
def test_packed_values_are_added_by_an_exchange_or_along_the_ring(ranks):
    packed = Combining(Method("int8"))
    size = packed.traffic(LENET_SHAPES).packed
    link = Link(1e-4, 1e-8)
    part = (ranks - 1) / ranks * size
    ring = model(LENET_SHAPES, packed, "ring", link).step(ranks, 1)
    assert (ring.latency, ring.transfer) == pytest.approx((2 * (ranks - 1) * 1e-4, 2 * part * 1e-8))
    others = model(LENET_SHAPES, packed, "mpi", link).step(ranks, 1)
    assert (others.latency, others.transfer) == pytest.approx((2e-4, 2 * part * 1e-8))
    horovod = model(LENET_SHAPES, packed, "horovod-gloo", link)
    agreement = allreduce_time("horovod-gloo", 64, horovod.communication.cluster(ranks)).seconds
    assert horovod.step(ranks, 1).control == pytest.approx(2 * agreement + 2 * 4 * 1e-4)


def test_ranks_of_a_host_share_its_link_in_an_exchange():
    """4 of 16 ranks on a host: 12/16 of each rank's vector go to other hosts, over one link, and so does the sum."""
    fit, memory = Fit(Link(0, 1e-8), 0.0, 0.0), Fit(Link(0, 0), 0.0, 0.0)
    communication = Communication("mpi", fit, memory, ranks_per_host=4)
    assert communication.call(16_000, 16, packed=True).transfer == pytest.approx(2 * 4 * 12_000 * 1e-8)


def test_horovod_casts_to_fp16_itself_while_backward_computes():
    fp16 = model(LENET_SHAPES, Combining(Method("fp16")), "horovod-gloo", packing_s=lambda _: 1.0)
    half = tuple((rows, columns) for rows, columns in LENET_SHAPES)
    assert fp16.step(4, 1).packing == 0
    plain = model(half, PLAIN, "horovod-gloo")
    plain = replace(plain, workload=replace(plain.workload, gradient_bytes=2 * count(half), shapes=()))
    assert fp16.step(4, 1) == plain.step(4, 1)


def test_packing_is_measured_with_the_code_that_packs(monkeypatch):
    assert packing_s(Method("none"), LENET_SHAPES, 8) == 0
    assert packing_s(Method("int8"), LENET_SHAPES, 1) == 0
    averaged = []
    average = compression.make_mean

    def recorded(config, group):
        averaged.append((config.compression, group.size))
        return average(config, group)

    monkeypatch.setattr(compression, "make_mean", recorded)
    monkeypatch.setattr(compression, "MEASURED_S", 0)
    assert packing_s(Method("int8"), ((3, 5), (1, 7)), 3) > 0
    assert averaged == [("int8", 3)]
