"""Checks in a job: values of all ranks, compared, and which of a link and the cores a step would wait for."""

import pytest

from hvdtrain.doctor.checks import job as link
from hvdtrain.doctor.checks.job import (
    COMPUTE_S,
    GRADIENT_BYTES,
    LinkTimes,
    clock_offset,
    differences,
    judge,
)
from hvdtrain.doctor.connected_job import wrong_size

SLOW = LinkTimes(ranks=2, small_s=0.0005, gradient_s=0.44, busy=False)


LINK = "the link, not the cores, is what a step waits for: "


@pytest.mark.parametrize(
    ("change", "status", "text", "remedies"),
    [
        ({"gradient_s": 0.002}, "ok", "over 2 ranks, an allreduce takes 0.50 ms for 8 bytes and 2.0 ms for", ()),
        ({}, "warn", LINK, ("--compression int8", "powersgd:4", "--sync-every 8", "docs/links.md")),
        ({}, "warn", "440.0 ms for the 516 kB of LeNet's gradients (9 Mbit/s)", ()),
        # Only fewer exchanges help where latency is most of it.
        ({"small_s": 0.3}, "warn", LINK, ("--sync-every 8", "not --compression")),
        # A link is not blamed for cores that are busy.
        ({"busy": True}, "warn", "so the link cannot be judged", ("not --compression",)),
        ({"busy": True, "gradient_s": 0.002}, "ok", "over 2 ranks", ()),
        # The limit is the time of computation.
        ({"gradient_s": 0.99 * COMPUTE_S}, "ok", "", ()),
        ({"gradient_s": 1.01 * COMPUTE_S}, "warn", "", ()),
    ],
)
def test_what_a_step_waits_for(change, status, text, remedies):
    finding = judge(SLOW._replace(**change))
    assert finding.status == status and text in finding.text
    assert finding.text.startswith(text) or text != LINK
    assert bool(finding.remedy) == (status != "ok")
    for remedy in remedies:
        assert (remedy.removeprefix("not ") in finding.remedy) != remedy.startswith("not ")


class Context:
    """A rank of a job in which each allreduce takes some seconds of a clock that only this advances."""

    def __init__(self, monkeypatch, seconds):
        self.job = self.ring = self.rank_info = self
        self.size, self.local_ranks, self.sent, self._now = 2, 1, [], 0.0
        self._seconds = seconds
        monkeypatch.setattr(link.time, "perf_counter", lambda: self._now)

    def allreduce(self, values):
        self.sent.append(values.nbytes)
        self._now += self._seconds[values.nbytes]

    def gather(self, value):
        return [value, value]

    def busy(self):
        return ""


@pytest.mark.parametrize(("seconds", "repeats"), [(0.1, 11), (4.0, 1)])
def test_a_slow_allreduce_is_measured_once(monkeypatch, seconds, repeats):
    context = Context(monkeypatch, {8: 0.001, GRADIENT_BYTES: seconds})
    (finding,) = link.check_link(context)
    assert context.sent.count(GRADIENT_BYTES) == repeats
    assert f"{seconds * 1e3:.1f} ms" in finding.text


def test_clock_offset():
    """Rank 1 is 5 s ahead; each gather takes 0.2 s, and no rank leaves it before all have entered."""
    zero = [(10.0, 10.2), (20.0, 20.1)]
    ahead = [(15.1, 15.2), (25.0, 25.1)]
    offset, uncertainty = clock_offset(ahead, zero)
    assert abs(offset - 5) <= uncertainty <= 0.2
    assert clock_offset(zero, zero)[0] == 0


def test_remedy_depends_on_the_launcher():
    for by, gloo, remedy in (
        ("mpirun", False, "the mpirun of the MPI"),
        ("launch local", True, "Horovod with Gloo"),
        ("srun", False, "srun --mpi=pmix"),
        ("launch srun", True, "Horovod with Gloo"),
    ):
        assert remedy in wrong_size(by, 2, 1, gloo).remedy


def test_differences_between_ranks():
    assert differences([{"a": "1"}, {"a": "1"}]) == {}
    assert differences([{"a": "1"}, {}, {"a": "1"}]) == {"a": "1 (rank 0, 2), none (rank 1)"}
