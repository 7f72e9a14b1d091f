"""Subprocesses of the doctor: time limits, and the messages of probes."""

from __future__ import annotations

import os
import time

from support.doctor import script
from support.jobs import ROOT, running, wait_for

from hvdtrain.doctor import subprocesses
from hvdtrain.doctor.check import CheckContext, run_check
from hvdtrain.doctor.checks.launchers import check_slots
from hvdtrain.doctor.examination import CHECKS
from hvdtrain.doctor.subprocesses import probe_command
from hvdtrain.system.rank_info import RankInfo


def test_timeout_ends_a_subprocess_and_its_children(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocesses, "GRACE_S", 0.5)
    code = f"trap '' TERM; sleep 321 & echo $! > {tmp_path / 'pid'}; wait"
    completed = subprocesses.run(["sh", "-c", code], 1, dict(os.environ))
    assert completed.status is None
    assert "no end within" in completed.reason()
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not running(pid), 10)  # a killed process ends when it is scheduled next


def test_probe_ends_itself_at_its_time_limit():
    command = probe_command("exists", "/nothing", "100", limit_s=1)
    completed = subprocesses.run(command, 20, dict(os.environ, PYTHONPATH=str(ROOT)))
    assert "it hung" in completed.reason()
    assert subprocesses.run(["/no/such/program"], 1, {}).status == 127


def test_a_program_that_prints_without_end_fails():
    completed = subprocesses.run(["yes"], 60, dict(os.environ))
    assert completed.status == 1 and len(completed.out) == subprocesses.OUTPUT_BYTES
    assert subprocesses.run(["echo", "a"], 60, dict(os.environ)).out == "a\n"


HANGS_S = 300


def test_mpirun_that_hangs(tmp_path, monkeypatch):
    script(tmp_path / "mpirun", f"exec sleep {HANGS_S}")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    context = CheckContext(RankInfo("none", 0, 1, 0), 2, time.monotonic() + 1)
    findings = run_check(check_slots, context) + run_check(CHECKS[0], context)
    assert findings and time.monotonic() < context.deadline + HANGS_S / 2


def test_messages_of_probes_in_a_launcher_s_output():
    """After a rank's label, several on one line, and one that is truncated."""
    text = '[1]<stdout>:@doctor {"a": 1}@doctor {"b": {"c": 2}}\n\nother\n@doctor {"d": '
    assert subprocesses.read_messages(text) == [{"a": 1}, {"b": {"c": 2}}]
