"""The doctor's command line, its quick checks, its documentation, merged reports, and its subprocesses."""

from __future__ import annotations

import json
import os
import time

from support.environment import script
from support.in_process import command
from support.jobs import ROOT, running, wait_for
from support.jobs import run as run_command

from hvdtrain.doctor import subprocesses
from hvdtrain.doctor.check import run_check
from hvdtrain.doctor.checks.horovod import check_mpi
from hvdtrain.doctor.context import CheckContext
from hvdtrain.doctor.examination import CHECKS, merge
from hvdtrain.doctor.quick import QUICK
from hvdtrain.doctor.subprocesses import probe_command
from hvdtrain.system.rank_info import RankInfo
from hvdtrain.system.text import format_ranks


def test_options(tmp_path):
    for options in (["--only", "nonsense"], ["--ranks", "0"], ["--nonsense"]):
        assert command(tmp_path, "doctor", *options)[0] == 2
    status, text = command(tmp_path, "doctor", "--json", "--only", "limits")
    assert status == 0 and json.loads(text)["findings"][0]["check"] == "limits"
    status, text = command(tmp_path, "doctor", "--help")
    assert status == 0 and all(check.name in text for check in CHECKS) and "horovod-size" in text


def test_quick_checks_start_no_process():
    """It needs a new process: an audit hook stays, and NumPy is not imported yet."""
    code = (
        "import sys\nfrom hvdtrain.doctor import examine_host\n"
        "forbidden = {'subprocess.Popen', 'os.fork', 'os.exec', 'os.posix_spawn', 'os.system', 'socket.getaddrinfo'}\n"
        "def audit(event, _):\n    assert event not in forbidden, event\n"
        "sys.addaudithook(audit)\nrows = examine_host()\n"
        "print(len(rows), 'crashed' in str(rows), 'numpy' in sys.modules)"
    )
    status, text = run_command(["python", "-c", code], ROOT)
    assert status == 0, text
    count, crashed, numpy = text.split()
    assert int(count) >= len(QUICK) and (crashed, numpy) == ("False", "False")


def test_docs_name_the_quick_checks():
    page = (ROOT / "docs" / "doctor.md").read_text()
    assert ", ".join(check.name for check in QUICK) in page.replace("\n", " ")


def test_merge_joins_equal_findings():
    row = {"check": "c", "topic": "machine", "status": "ok", "text": "t", "remedy": ""}
    other = {**row, "text": "u"}
    reports = [{"rank": rank, "host": f"h{rank}", "findings": [row if rank < 2 else other]} for rank in range(3)]
    first, second = merge(reports)
    assert first["ranks"] == [0, 1] and first["hosts"] == ["h0", "h1"] and not first["everywhere"]
    assert second["ranks"] == [2]
    assert format_ranks([0, 1, 2, 3, 7]) == "0-3, 7"


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
    findings = run_check(check_mpi, context) + run_check(CHECKS[0], context)
    assert findings and time.monotonic() < context.deadline + HANGS_S / 2
