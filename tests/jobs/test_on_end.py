"""launch --on-end: the command runs once, after the last attempt, and is told how the job ended."""

from __future__ import annotations

import os
import signal

import pytest
from support.jobs import finish, run, start

NAMES = ("STATUS", "EXIT_STATUS", "RANK", "REASON", "RUN")
TOLD = " ".join(['printf "%s|"', *(f'"$HVDTRAIN_{name}"' for name in NAMES), ">> told"])
HANG = """
import json, os, sys, time
from pathlib import Path
run = Path("runs/run/heartbeats")
run.mkdir(parents=True)
from hvdtrain.system.agent_pipe import OpenedRun, send
send(OpenedRun(os.path.abspath("runs/run"), False))
(run.parent / "config.json").write_text('{"id": "0123456789abcdef"}')
end = {"status": "hung", "exit_status": 1, "reason": "no step for 30 s: rank 1 holds up the others", "rank": 1}
(run.parent / "end.json").write_text(json.dumps(end))
sys.exit("hvdtrain: rank 0: rank 1 has made no step for 30 s")
"""


def launch(ranks, *options, program):
    return ["python", "-m", "hvdtrain", "launch", "local", "-n", str(ranks), *options, "--", "python", "-c", program]


def told(folder):
    return (folder / "told").read_text().split("|")[:-1]


def test_a_killed_rank_with_restarts(tmp_path):
    """Once, after the last attempt, with its failure; the command's own failure changes nothing."""
    program = "import os, time; os.environ['RANK'] == '1' and os.kill(os.getpid(), 9); time.sleep(60)"
    given = ["--restarts", "1", "--on-end", f"{TOLD}; exit 5"]
    status, output = run(launch(2, *given, program=program), tmp_path)
    assert status == 137, output
    assert output.endswith("hvdtrain: the command of --on-end ended with exit status 5\n")
    ended, exit_status, rank, reason, folder = told(tmp_path)
    assert (ended, exit_status, rank, folder) == ("failed", "137", "1", "")
    assert reason == f"rank 1 on {os.uname().nodename} was killed by SIGKILL"


def test_a_hostile_reason(tmp_path):
    program = (
        r"import sys; sys.exit('$(touch injected)`touch injected`\'; touch injected; \x1b[2J http://me:word@host')"
    )
    status, output = run(launch(1, "--on-end", TOLD, program=program), tmp_path)
    assert status == 1, output
    ended, _, rank, reason, _ = told(tmp_path)
    assert (ended, rank) == ("failed", "0")
    assert "$(touch injected)`touch injected`'; touch injected; " in reason
    assert "\x1b" not in reason and "word" not in reason
    assert os.listdir(tmp_path) == ["told"]


def test_a_hang(tmp_path):
    status, output = run(launch(1, "--on-end", TOLD, program=HANG), tmp_path)
    assert status == 1, output
    ended, _, rank, reason, folder = told(tmp_path)
    assert (ended, folder) == ("hung", str(tmp_path / "runs" / "run"))
    assert (rank, reason) == ("1", "no step for 30 s: rank 1 holds up the others")


def test_a_hang_of_an_earlier_job_is_not_that_of_this_one(tmp_path):
    old = HANG.replace("sys.exit", 'os.utime(run.parent / "end.json", (1e9, 1e9))\nsys.exit')
    status, output = run(launch(1, "--on-end", TOLD, program=old), tmp_path)
    assert status == 1, output
    ended, _, rank, reason, _ = told(tmp_path)
    assert (ended, rank) == ("failed", "0")
    assert "has made no step for 30 s" in reason


@pytest.mark.parametrize("program", ["", "raise SystemExit(75)"])
def test_ends_that_are_no_failures(tmp_path, program):
    status, output = run(launch(1, "--on-end", TOLD, program=program), tmp_path)
    assert status == (75 if program else 0), output
    assert told(tmp_path)[:3] == (["stopped", "75", ""] if program else ["finished", "0", ""])


def test_a_job_that_was_asked_to_end(tmp_path):
    """A signal during the command changes neither the command nor the job's status."""
    command = launch(1, "--on-end", f"sleep 1; {TOLD}", program="import time; print('up', flush=True); time.sleep(60)")
    process = start(command, tmp_path)
    assert process.stdout.readline().strip().endswith("up")
    os.kill(process.pid, signal.SIGTERM)
    next(line for line in iter(process.stdout.readline, "") if "ended by SIGTERM" in line)
    os.kill(process.pid, signal.SIGTERM)
    status, output = finish(process, 20)
    assert status == 143, output
    assert told(tmp_path)[:2] == ["stopped", "143"]


def test_a_job_that_cannot_start(tmp_path):
    (tmp_path / "file").touch()
    status, output = run(launch(1, "--output-dir", "file/below", "--on-end", TOLD, program=""), tmp_path)
    assert status == 2, output
    ended, exit_status, _, reason, _ = told(tmp_path)
    assert (ended, exit_status) == ("failed", "2")
    assert reason.startswith("--output-dir file/below cannot be created (")
