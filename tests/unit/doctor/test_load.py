"""On a busy machine, what takes too long is a warning, and what load does not explain still fails."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest

from hvdtrain.doctor import examination
from hvdtrain.doctor.check import check, fail, ok, rows_of, run_check, warn
from hvdtrain.doctor.checks import machine, software
from hvdtrain.doctor.context import CheckContext
from hvdtrain.doctor.subprocesses import Completed
from hvdtrain.system.rank_info import RankInfo

BUSY = "this machine is busy: 7.5 processes for 2 core(s)"


@pytest.fixture(params=["busy", "quiet"])
def context(request, monkeypatch):
    """The doctor on a machine of two cores that is busy at the start, or never."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (7.5 if request.param == "busy" else 1.2, 3.0, 1.0))
    made = CheckContext(RankInfo("none", 0, 2, 0), 2, time.monotonic() + 60)
    monkeypatch.setattr(os, "getloadavg", lambda: (3.9, 3.0, 1.0))  # what the doctor itself adds is no reason
    return made


@check("machine", "job")
def check_made_up(context):
    """made up"""
    yield ok("a finding before")
    completed = context.once("made up", lambda: context.run(["sleep", "9"], 0.1))
    yield fail(completed.reason(), "a remedy")


def test_what_takes_too_long_is_a_warning_on_a_busy_machine(context):
    for _ in range(2):
        before, late = run_check(check_made_up, context)
        assert before["text"] == "a finding before"
        expected = fail("no end within 0 s", "a remedy")
        if context.load > 2:
            again = "run it again when this machine is quiet; if it fails then: a remedy"
            expected = warn(f"no end within 0 s; {BUSY}", again)
        assert (late["status"], late["text"], late["remedy"]) == expected


def test_in_a_job_all_ranks_stay_in_step(context):
    """A rank that is late on its busy machine says so in the exchange after the check."""
    context.job = SimpleNamespace(ring=SimpleNamespace(gather=lambda value: [value, ""]))
    _, row = examination._job_rows(context, [check_made_up])
    assert row["status"] == ("warn" if context.load > 2 else "fail") and row["text"].startswith("no end within 0 s")
    assert (BUSY in row["text"]) == (context.load > 2)


@pytest.mark.parametrize(
    ("status", "seconds", "late"),
    [(1, 31.0, True), (1, 4.0, False), (None, 4.0, True), (0, 99.0, False), (-14, 9, True)],
)
def test_only_what_a_time_limit_may_have_ended_is_late(status, seconds, late):
    """Those of launchers, Horovod and Gloo are 30 s."""
    assert Completed(status, "", "", 45, seconds).failed_late == late


def test_the_load_is_a_finding(context):
    (finding,) = machine.check_load(context)
    assert finding.status == ("warn" if context.load > 2 else "ok") and "for 2 core(s)" in finding.text
    assert bool(finding.remedy) == (finding.status == "warn")


def test_load_that_came_later_counts_if_the_doctor_cannot_have_made_it(context, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (6.5, 3.0, 1.0))
    assert context.busy() == (BUSY if context.load > 2 else "this machine is busy: 4.5 processes for 2 core(s)")


def test_only_failures_are_doubted():
    findings = [ok("a"), warn("a", "b"), fail("a", "b")]
    assert [row["status"] for row in rows_of(check_made_up, findings, "busy")] == ["ok", "warn", "warn"]
    assert [row["status"] for row in rows_of(check_made_up, findings)] == ["ok", "warn", "fail"]


def test_nothing_is_started_when_the_time_is_over(context):
    context.deadline = time.monotonic()
    for checked in (check_made_up, software.check_packages):
        late = run_check(checked, context)[-1]
        assert late["status"] == "warn" and "the time limit of all checks was reached" in late["text"]
