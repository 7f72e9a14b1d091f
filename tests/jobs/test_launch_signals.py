"""Signals to the launcher and to ranks, time limits, and killed processes: all ranks end, no process stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.jobs import BIN, run, running, wait_for


def begin(folder: Path, by: str, code: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Start two ranks of a program; the launcher, and the file that holds what it prints."""
    output = folder / "output"
    line = ["python", "-m", "hvdtrain", "launch", by, "-n", "2", "--", "python", "-c", code]
    own = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    with open(output, "w") as file:
        return subprocess.Popen(line, cwd=folder, stdout=file, stderr=file, env={**os.environ, **own}), output


def pids(line: str, output: Path) -> list[int]:
    """The number at the end of a line that both ranks print."""

    def found() -> list[int]:
        return [int(words.split()[-1]) for words in output.read_text().split("\n")[:-1] if line in words]

    wait_for(lambda: len(found()) == 2, 30, output.read_text)
    return found()


def wait_gone(pids: list[int], seconds: float) -> None:
    try:
        wait_for(lambda: not any(map(running, pids)), seconds)
    finally:
        for pid in filter(running, pids):
            os.kill(pid, signal.SIGKILL)


STUBBORN = """
import os, signal, sys, time, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"])
print("pid", os.getpid(), flush=True)
print("child", child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("by", ["local", "mpirun", "horovodrun"])
def test_a_killed_rank_ends_the_job_and_all_processes(tmp_path, by):
    """Also programs that ignore SIGTERM, and what they started themselves."""
    process, output = begin(tmp_path, by, STUBBORN)
    ranks, children = pids("pid", output), pids("child", output)
    began = time.monotonic()
    os.kill(ranks[1], signal.SIGKILL)
    assert process.wait(30) == 128 + signal.SIGKILL
    took = time.monotonic() - began
    text = output.read_text()
    number = next(int(line[1]) for line in text.splitlines() if line.endswith(f"pid {ranks[1]}"))
    assert f"hvdtrain: rank {number} on {os.uname().nodename} was killed by SIGKILL; ending the others" in text
    wait_gone([*ranks, *children], max(5 - took, 0.5))


@pytest.mark.parametrize("by", ["local", "mpirun", "horovodrun"])
def test_a_killed_launcher_leaves_no_process(tmp_path, by):
    process, output = begin(tmp_path, by, STUBBORN)
    found = pids("pid", output) + pids("child", output)
    process.kill()
    process.wait()
    wait_gone(found, 5)


# A handler may run during print, so lines are written without print's buffer.
HANDLING = """
import os, signal, sys, time
def write(line):
    os.write(1, f"{line}\\n".encode())
def handle(number, _):
    write(f"received {signal.Signals(number).name}")
    if number != signal.SIGUSR1:
        sys.exit(75)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, handle)
write(f"pid {os.getpid()}")
while True:
    time.sleep(0.1)
"""


@pytest.mark.parametrize("by", ["local", "mpirun", "horovodrun"])
def test_signals_to_the_launcher_reach_all_ranks(tmp_path, by):
    process, output = begin(tmp_path, by, HANDLING)
    pids("pid", output)
    process.send_signal(signal.SIGUSR1)
    wait_for(lambda: output.read_text().count("received SIGUSR1") == 2, 10, output.read_text)
    process.send_signal(signal.SIGINT if by == "local" else signal.SIGTERM)
    assert process.wait(30) == 75
    text = output.read_text()
    assert sorted(line for line in text.splitlines() if "USR1" in line) == [f"[{i}] received SIGUSR1" for i in (0, 1)]


def test_sigusr1_waits_until_the_program_handles_it(tmp_path):
    """A program that still imports a framework would be ended by it."""
    late = f"import os, time\nprint('here', os.getpid(), flush=True)\ntime.sleep(0.3)\n{HANDLING}"
    process, output = begin(tmp_path, "local", late)
    pids("here", output)
    process.send_signal(signal.SIGUSR1)
    pids("pid", output)
    wait_for(lambda: output.read_text().count("received SIGUSR1") == 2, 10, output.read_text)
    process.terminate()
    assert process.wait(30) == 75, output.read_text()


def local(code: str, *options: str, ranks: int = 2) -> list[str]:
    return ["python", "-m", "hvdtrain", "launch", "local", "-n", str(ranks), *options, "--", "python", "-c", code]


def test_the_time_limit_stops_the_ranks(tmp_path):
    status, output = run(local(HANDLING, "--time-limit", "1"), tmp_path)
    assert (status, output.count("received SIGTERM")) == (75, 2), output
    assert "the time limit of 1 s is reached" in output
