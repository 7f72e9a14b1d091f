"""On a busy machine, what takes too long is a warning, and what load does not explain still fails."""

from __future__ import annotations

import time

import pytest

from hvdtrain.doctor import load
from hvdtrain.doctor.check import check, doubted, fail, ok, run_check, warn
from hvdtrain.doctor.checks import horovod, job, machine
from hvdtrain.doctor.context import CheckContext
from hvdtrain.doctor.load import Load
from hvdtrain.doctor.subprocesses import Completed
from hvdtrain.system.rank_info import RankInfo


@pytest.fixture(params=["busy", "quiet"])
def context(request, monkeypatch, tmp_path):
    """The doctor on a machine that is busy at the start, or never."""
    monkeypatch.setattr(load, "LOAD", tmp_path / "loadavg")
    monkeypatch.setattr(load, "PRESSURE", tmp_path / "none")
    monkeypatch.setattr(load.os, "cpu_count", lambda: 2)
    load.LOAD.write_text("7.50 3.00 1.00 9/200 1234\n" if request.param == "busy" else "1.20 3.00 9.00 2/200 1234\n")
    made = CheckContext(RankInfo("none", 0, 1, 0), 2, time.monotonic() + 60)
    load.LOAD.write_text("2.50 3.00 1.00 9/200 1234\n")  # what the doctor itself adds is no reason
    return made


def expected(context) -> str:
    return "warn" if context.load.is_high() else "fail"


def test_what_takes_too_long_is_a_warning_on_a_busy_machine(context):
    asked = []

    @check("machine", "host")
    def check_made_up(context):
        """made up"""
        yield ok("a finding before")
        completed = context.once("made up", lambda: asked.append(1) or context.run(["sleep", "9"], 0.1))
        yield fail(completed.reason(), "a remedy")

    for _ in range(2):
        before, late = run_check(check_made_up, context)
        assert (before.text, late.status) == ("a finding before", expected(context))
    assert len(asked) == 1
    if late.status == "warn":
        assert late.text.startswith(
            "sleep took more than 0 s; this machine is busy (7.5 processes on average for 2 core"
        )
        assert late.remedy == "run it again when this machine is quiet: python -m hvdtrain doctor --only made-up"


def test_the_load_is_a_finding(context):
    (finding,) = machine.check_load(context)
    assert finding.status == ("warn" if context.load.is_high() else "ok") and "for 2 core(s)" in finding.text
    assert bool(finding.remedy) == (finding.status == "warn")


def test_an_allreduce_that_fails_may_be_late_but_a_wrong_sum_is_not(context):
    ended = Completed(1, "", "rank 1 did not start in time", 45)
    finding = horovod._judge("mpirun", ended, context.busy())
    assert finding.status == expected(context) and "did not start in time" in finding.text
    context.job = type("Job", (), {"hosts": ["a", "b"]})
    assert not context.busy(since=time.monotonic() - 20), "what failed at once has another reason"
    failed = {"reason": "it hung", "busy": context.busy(since=time.monotonic() - 31)}
    assert job._judge(context, [{}, failed]).status == expected(context)
    wrong = {"seconds": {"8": 1.0}, "correct": False}
    assert job._judge(context, [wrong]).status == "fail"


def test_load_that_came_later_counts_if_the_doctor_cannot_have_made_it(context):
    load.LOAD.write_text("4.50 3.00 1.00 9/200 1234\n")
    assert context.busy()


def test_only_failures_are_doubted():
    for finding in (ok("a"), warn("a", "b")):
        assert doubted(finding, "load") == finding
    assert doubted(fail("a", "b"), "") == fail("a", "b")
    assert doubted(fail("a", "b"), "load") == warn(
        "a; this machine is busy (load)", "run it again when this machine is quiet; if it fails then: b"
    )


def test_pressure_shows_what_the_average_does_not_show_yet(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "PRESSURE", tmp_path / "cpu")
    for text, high in (("some avg10=63.10 avg60=9.0", True), ("some avg10=12.00 avg60=90.0", False), ("x", False)):
        load.PRESSURE.write_text(f"{text}\nfull avg10=99.00 avg60=0\n")
        assert Load.read()._replace(processes=0.1).is_high() == high
    monkeypatch.setattr(load, "LOAD", tmp_path / "none")
    monkeypatch.setattr(load, "PRESSURE", tmp_path / "none")
    assert Load.read()[:2] == (0.0, 0.0)
