"""Signals to the launcher and to ranks, time limits, and killed processes: all ranks end, no process stays behind."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.jobs import BIN, ROOT, run, running, wait_for
from support.signaled_job import CASES, run_signaled


def begin(folder: Path, by: str, code: str, **environment: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Start two ranks of a program; the launcher, and the file that holds what it prints."""
    output = folder / "output"
    line = ["python", "-m", "hvdtrain", "launch", by, "-n", "2", "--", "python", "-c", code]
    own = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    with open(output, "w") as file:
        return subprocess.Popen(
            line, cwd=folder, stdout=file, stderr=file, env={**os.environ, **own, **environment}
        ), output


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


LEAVING = """
import os, signal, sys, time, subprocess
child = subprocess.Popen(["sleep", "600"])
in_a_session = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
daemon = subprocess.run(["sh", "-c", "setsid sleep 600 > /dev/null 2>&1 & echo $!"], capture_output=True, text=True)
print("pid", os.getpid(), flush=True)
print("child", child.pid, flush=True)
print("session", in_a_session.pid, flush=True)
print("daemon", int(daemon.stdout), flush=True)
"""
STUBBORN = f"""
{LEAVING}
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""


def pids_of_all(output: Path) -> list[int]:
    """The two ranks, then the processes that they have started."""
    return [pid for line in ("pid", "child", "session", "daemon") for pid in pids(f"] {line} ", output)]


@pytest.mark.guarantee("no-process-left")
@pytest.mark.guarantee("killed-rank")
@pytest.mark.parametrize("by", ["local", "mpirun", "horovodrun"])
def test_a_killed_rank_ends_the_job_and_all_processes(tmp_path, by):
    """Also programs that ignore SIGTERM, and what they started themselves."""
    process, output = begin(tmp_path, by, STUBBORN)
    everything = pids_of_all(output)
    ranks = everything[:2]
    began = time.monotonic()
    os.kill(ranks[1], signal.SIGKILL)
    assert process.wait(30) == 128 + signal.SIGKILL
    took = time.monotonic() - began
    text = output.read_text()
    number = next(int(line[1]) for line in text.splitlines() if line.endswith(f"pid {ranks[1]}"))
    assert f"hvdtrain: rank {number} on {os.uname().nodename} was killed by SIGKILL; ending the others" in text
    wait_gone(everything, max(5 - took, 1))


@pytest.mark.guarantee("no-process-left")
@pytest.mark.parametrize("by", ["local", "mpirun", "horovodrun"])
def test_a_killed_launcher_leaves_no_process(tmp_path, by):
    process, output = begin(tmp_path, by, STUBBORN)
    everything = pids_of_all(output)
    process.kill()
    process.wait()
    wait_gone(everything, 5)


def agent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.guarantee("no-process-left")
@pytest.mark.parametrize(
    "by",
    ["local", pytest.param("mpirun", marks=pytest.mark.matrix), pytest.param("horovodrun", marks=pytest.mark.matrix)],
)
def test_a_killed_agent_leaves_no_process(tmp_path, by):
    """Its program dies with it; the processes that the program has started are orphans of the launcher."""
    process, output = begin(tmp_path, by, STUBBORN)
    everything = pids_of_all(output)
    os.kill(agent_of(everything[1]), signal.SIGKILL)
    assert process.wait(30) != 0
    wait_gone(everything, 5)


@pytest.mark.guarantee("no-process-left")
@pytest.mark.parametrize("by", ["local", pytest.param("mpirun", marks=pytest.mark.matrix)])
def test_a_job_that_ends_well_leaves_no_process(tmp_path, by):
    process, output = begin(tmp_path, by, LEAVING)
    assert process.wait(30) == 0
    wait_gone(pids_of_all(output), 5)


def test_agents_that_have_not_connected_end_with_their_launcher(tmp_path):
    """An agent that starts when its launcher is gone waits for it for a moment, not for --start-timeout."""
    (tmp_path / "sitecustomize.py").write_text(LATE_AGENT)
    process, _ = begin(tmp_path, "local", "", PYTHONPATH=f"{tmp_path}:{ROOT}")
    agents = [tmp_path / "agent-0", tmp_path / "agent-1"]
    wait_for(lambda: all(path.exists() and path.read_text() for path in agents), 20)
    process.kill()
    process.wait()
    (tmp_path / "go").touch()
    wait_gone([int(path.read_text()) for path in agents], 8)


LATE_AGENT = """
import os, time
if b"hvdtrain.jobs.agent" in open("/proc/self/cmdline", "rb").read():
    with open("agent-" + os.environ["HVDTRAIN_RANK"], "w") as file:
        file.write(str(os.getpid()))
    while not os.path.exists("go"):
        time.sleep(0.05)
"""


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


def test_ctrl_c_stops_the_job_and_again_ends_it(tmp_path):
    """The second time after 0.2 s; ranks that do not end by themselves are killed."""
    stubborn = STUBBORN.replace("SIGTERM, signal.SIG_IGN", "SIGINT, lambda *_: os.write(1, b'SIGINT\\n')")
    process, output = begin(tmp_path, "local", stubborn.replace("time.sleep(600)", "while True: time.sleep(1)"))
    everything = pids_of_all(output)
    process.send_signal(signal.SIGINT)
    wait_for(lambda: output.read_text().count("SIGINT") == 2, 10, output.read_text)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 128 + signal.SIGINT
    assert "hvdtrain: ended by SIGINT" in output.read_text()
    wait_gone(everything, 5)


def test_sigterm_repeated_at_once_is_one_request(tmp_path):
    """As Slurm, systemd and Kubernetes send it; also after the ranks have ended, until the launcher has."""
    slow = HANDLING.replace("sys.exit(75)", "time.sleep(0.5), sys.exit(75)")
    process, output = begin(tmp_path, "local", slow)
    pids("pid", output)
    deadline = time.monotonic() + 2  # repetitions within 3 s are one request
    while process.poll() is None and time.monotonic() < deadline:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.02)
    assert process.wait(30) == 75, output.read_text()
    assert output.read_text().count("received SIGTERM") == 2


def test_ctrl_c_ends_a_program_that_does_not_handle_it(tmp_path):
    """On a pseudo-terminal, whose Ctrl-C reaches the launcher only."""
    code = "import os, time\nos.write(1, f'pid {os.getpid()}\\n'.encode())\ntime.sleep(60)"
    line = [sys.executable, "-m", "hvdtrain", "launch", "local", "-n", "2", "--", "python", "-c", code]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, line, {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"})
    printed = b""
    while printed.count(b"pid ") < 2:
        printed += os.read(terminal, 4096)
    os.write(terminal, b"\x03")
    with contextlib.suppress(OSError):  # the last process has closed the terminal
        while received := os.read(terminal, 4096):
            printed += received
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGINT, printed
    assert printed.count(b"hvdtrain: ended by SIGINT") == 1, printed


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


def test_a_real_time_signal_ends_a_rank_as_any_other(tmp_path):
    """Python has no names for most of them."""
    code = "import os, time; time.sleep(60 * (os.environ['RANK'] == '0')); os.kill(os.getpid(), 40)"
    status, output = run(local(code), tmp_path, timeout_s=30)
    assert status == 128 + 40
    assert f"rank 1 on {os.uname().nodename} was killed by SIGRTMIN+6; ending the others" in output


def problems_of(folder: Path, cases: list[tuple[str, str, int]]) -> dict[tuple[str, str, int], str]:
    """What goes wrong in jobs that get a signal: case by case, a few at a time."""
    with ThreadPoolExecutor(6) as pool:
        jobs = pool.map(lambda case: run_signaled(folder / "-".join(map(str, case)), *case), cases)
        return {case: job.problem for case, job in zip(cases, jobs, strict=True) if job.problem}


def test_signals_to_each_process_in_each_phase(tmp_path):
    """Each process ends, none is left, nothing hangs."""
    numbers = iter((signal.SIGQUIT, 64, signal.SIGHUP, signal.SIGSEGV, 35, signal.SIGKILL, signal.SIGSTOP, 40))
    cases = [(process, phase, int(next(numbers))) for process, phases in CASES.items() for phase in phases]
    assert problems_of(tmp_path, cases) == {}


@pytest.mark.matrix
@pytest.mark.parametrize(("process", "phase"), [(process, phase) for process in CASES for phase in CASES[process]])
def test_all_signals_to_each_process_in_each_phase(tmp_path, process, phase):
    assert problems_of(tmp_path, [(process, phase, number) for number in range(1, 65)]) == {}
