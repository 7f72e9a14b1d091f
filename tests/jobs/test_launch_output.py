"""A full disk, a closed pipe or a reader that has stopped neither ends a healthy job nor keeps a failing one alive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.jobs import BIN, finish, run, start, wait_for

PROGRAM = """
import os, sys, time
rank = os.environ["RANK"]
for number in range(20):
    print("line", number, "of", rank, flush=True)
    time.sleep(0.02)
open(f"well-{rank}", "w").close()
"""


def launch(code: str, *options: str) -> list[str]:
    return ["python", "-m", "hvdtrain", "launch", "local", "-n", "2", *options, "--", "python", "-c", code]


@pytest.mark.parametrize(
    ("redirection", "said"),
    [
        ("> /dev/full", "hvdtrain: standard output cannot be written (No space left on device)"),
        ("2>&1 > /dev/full | cat >&2", "hvdtrain: standard output cannot be written (No space left on device)"),
        ("| head -1 >&2", "hvdtrain: standard output cannot be written (Broken pipe); the job continues without it"),
        pytest.param("> /dev/full 2>&1", "", marks=pytest.mark.matrix),
        pytest.param("2>&-", "", marks=pytest.mark.matrix),
        pytest.param("2> /dev/full", "", marks=pytest.mark.matrix),
    ],
)
def test_output_that_nobody_takes_does_not_end_the_job(tmp_path, redirection, said):
    (tmp_path / "program.py").write_text(PROGRAM)
    line = f"python -m hvdtrain launch local -n 2 -- python program.py {redirection}; exit ${{PIPESTATUS[0]}}"
    status, output = run(["bash", "-c", line], tmp_path, timeout_s=60)
    assert status == 0, output
    assert sorted(path.name for path in tmp_path.glob("well-*")) == ["well-0", "well-1"]
    assert output.count("cannot be written") == bool(said)
    assert said in output


def test_an_output_folder_on_a_full_disk(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    for rank in (0, 1):
        (logs / f"rank-{rank}.stdout").symlink_to("/dev/full")
    status, output = run(launch(PROGRAM, "--output-dir", "logs"), tmp_path, timeout_s=60)
    assert status == 0, output
    assert output.count("--output-dir logs cannot be written (No space left on device); the job continues") == 1
    assert output.count("of 0") == 20


def test_an_output_file_that_nobody_reads_keeps_no_job(tmp_path):
    """A named pipe: the job runs, and its signals are handled."""
    (tmp_path / "logs").mkdir()
    os.mkfifo(tmp_path / "logs" / "rank-0.stdout")
    process = start(launch("import time; print('begun', flush=True); time.sleep(60)", "--output-dir", "logs"), tmp_path)
    for _ in range(2):
        wait_for(lambda: "begun" in process.stdout.readline(), 20)
    process.terminate()
    status, _ = finish(process, 20)
    assert status == 128 + signal.SIGTERM
    assert (tmp_path / "logs" / "rank-1.stdout").read_text() == "begun\n"
    assert (tmp_path / "logs" / "rank-1.stderr").exists()


CHATTY = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    open("pid", "w").write(f"{os.getpid()} ")
    time.sleep(600)
while True:
    print("x" * 9999, flush=True)
"""


@pytest.mark.parametrize(
    "how", ["SIGKILL to a rank", pytest.param("SIGTERM to the launcher", marks=pytest.mark.matrix)]
)
def test_a_job_ends_although_nobody_reads_its_output(tmp_path, how):
    """As on a terminal that was stopped with Ctrl-S: a rank prints without end, then another dies."""
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    reading, writing = os.pipe()
    command = [sys.executable, *launch(CHATTY)[1:]]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=writing, stderr=writing, env=environment)
    os.close(writing)
    pid = tmp_path / "pid"
    wait_for(lambda: pid.exists() and pid.read_text().endswith(" "), 30)
    time.sleep(1)  # the pipe and the queue are full
    target, number = (int(pid.read_text()), signal.SIGKILL) if "rank" in how else (process.pid, signal.SIGTERM)
    os.kill(target, number)
    assert process.wait(40) == 128 + number
    os.close(reading)


def test_a_command_line_with_an_error_is_explained_once(tmp_path):
    """All ranks find it, in any order."""
    program = ["python", "-m", "hvdtrain.torch_lenet"]
    command = ["python", "-m", "hvdtrain", "launch", "local", "-n", "3", "--output-dir", "logs", "--", *program]
    status, output = run([*command, "--epochz", "3"], tmp_path)
    assert status == 2, output
    assert output.count("unrecognized arguments: --epochz") == 1, output
    written = [Path(path).read_text() for path in tmp_path.glob("logs/rank-*.stderr")]
    assert any("unrecognized arguments: --epochz" in text for text in written)


LONG = """
import os
for number in range(200_000):
    print(number, os.environ["RANK"], "x" * 50)
open("well-" + os.environ["RANK"], "w").close()
"""
SUSPENDED_S = 18
"""Longer than the kernel waits for acknowledgments of a host that may be lost."""


@pytest.mark.matrix
def test_a_launcher_that_is_suspended_gets_all_output_afterwards(tmp_path):
    """Ctrl-Z, or a suspended batch job: the ranks that print wait for it."""
    process = start(launch(LONG), tmp_path)
    wait_for(lambda: process.stdout.readline().startswith("["), 30)
    process.send_signal(signal.SIGSTOP)
    time.sleep(SUSPENDED_S)
    assert not list(tmp_path.glob("well-*"))
    process.send_signal(signal.SIGCONT)
    status, output = finish(process, 120)
    assert status == 0, output[-2000:]
    for rank in (0, 1):
        assert f"\n[{rank}] 199999 {rank} x" in output
