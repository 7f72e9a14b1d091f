"""Which of a link and the cores a step would wait for, from the times of allreduces."""

import pytest

from hvdtrain.doctor.checks import link
from hvdtrain.doctor.checks.link import COMPUTE_S, GRADIENT_BYTES, LinkTimes, judge

SLOW = LinkTimes(ranks=2, small_s=0.0005, gradient_s=0.44, waited_share=0.05, crowded=False)


def test_a_fast_link_is_fine():
    finding = judge(SLOW._replace(gradient_s=0.002))
    assert (finding.status, finding.remedy) == ("ok", "")
    assert "over 2 ranks, an allreduce takes 0.50 ms for 8 bytes and 2.0 ms for the 516 kB" in finding.text


def test_a_link_that_takes_longer_than_computation_is_named_with_what_sends_less():
    finding = judge(SLOW)
    assert finding.status == "warn"
    assert finding.text.startswith("the link, not the cores, is what a step waits for: ")
    assert "440.0 ms for the 516 kB of LeNet's gradients (9 Mbit/s)" in finding.text
    for option in ("--compression auto", "powersgd:2", "--sync-every 8", "docs/links.md", "--compare-compression"):
        assert option in finding.remedy


def test_where_latency_is_most_of_it_only_fewer_exchanges_help():
    finding = judge(SLOW._replace(small_s=0.3))
    assert finding.text.startswith("the link, not the cores")
    assert "--sync-every 8" in finding.remedy and "--compression" not in finding.remedy


@pytest.mark.parametrize("change", [{"waited_share": 0.6}, {"crowded": True}], ids=str)
def test_a_link_is_not_blamed_for_cores_that_are_busy(change):
    finding = judge(SLOW._replace(**change))
    assert finding.status == "warn"
    assert "so the link cannot be judged" in finding.text
    assert "--compression" not in finding.remedy
    assert judge(SLOW._replace(gradient_s=0.002, **change)).status == "ok"


def test_the_limit_is_the_time_of_computation():
    assert judge(SLOW._replace(gradient_s=0.99 * COMPUTE_S)).status == "ok"
    assert judge(SLOW._replace(gradient_s=1.01 * COMPUTE_S)).status == "warn"


def test_bandwidth_counts_what_each_link_carries():
    assert LinkTimes(4, 0, 1.0, 0, False).mbit_s == pytest.approx(1.5 * GRADIENT_BYTES * 8 / 1e6)


class Context:
    """A rank of a job in which each allreduce takes some seconds of a clock that only this advances."""

    def __init__(self, monkeypatch, seconds):
        self.job = self.rank_info = self
        self.size, self.local_ranks, self.sent, self._now = 2, 1, [], 0.0
        self._seconds = seconds
        monkeypatch.setattr(link.time, "perf_counter", lambda: self._now)

    def allreduce(self, values):
        self.sent.append(values.nbytes)
        self._now += self._seconds[values.nbytes]

    def gather(self, value):
        return [value, value]


@pytest.mark.parametrize(("seconds", "repeats"), [(0.1, 11), (4.0, 1)])
def test_a_slow_allreduce_is_measured_once(monkeypatch, seconds, repeats):
    context = Context(monkeypatch, {8: 0.001, GRADIENT_BYTES: seconds})
    (finding,) = link.check_link(context)
    assert context.sent.count(GRADIENT_BYTES) == repeats
    assert f"{seconds * 1e3:.1f} ms" in finding.text
