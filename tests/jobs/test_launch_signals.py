"""Signals to the launcher and to ranks, and killed processes: all ranks end, no process stays behind.

`faults/test_orders.py` does this to jobs that survive, at any moment.
Needs processes: what the kernel does with signals, groups, sessions and orphans.
"""

import contextlib
import os
import pty
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from support.jobs import BIN, PrintedJob, launch, running, wait_for

MATRIX = pytest.mark.matrix


class Job(PrintedJob):
    """Two ranks of a program without a framework."""

    def __init__(self, folder: Path, by: str, code: str, *options: str) -> None:
        program = ["python", "-S", "-c", code]
        super().__init__(folder, [*launch(by, 2, *options), *program])

    def wait_for(self, text: str, count: int = 2) -> None:
        wait_for(lambda: self.output.count(text) == count, 30, lambda: self.output)

    def pids(self, *lines: str) -> list[int]:
        """The numbers at the ends of lines that both ranks print."""

        def found(line: str) -> list[int]:
            whole = self.output.split("\n")[:-1]
            return [int(words.split()[-1]) for words in whole if f"] {line} " in words]

        wait_for(lambda: all(len(found(line)) == 2 for line in lines), 30, lambda: self.output)
        return [pid for line in lines for pid in found(line)]


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
PROCESSES = ("pid", "child", "session", "daemon")


@pytest.mark.guarantee("no-process-left")
@pytest.mark.guarantee("killed-rank")
@pytest.mark.parametrize("by", ["local", *(pytest.param(by, marks=MATRIX) for by in ("mpirun", "horovodrun"))])
def test_a_killed_rank_ends_the_job_and_all_processes(tmp_path, by):
    """Also programs that ignore SIGTERM, and what they started themselves."""
    job = Job(tmp_path, by, STUBBORN)
    everything = job.pids(*PROCESSES)
    began = time.monotonic()
    os.kill(everything[1], signal.SIGKILL)
    assert job.process.wait(30) == 128 + signal.SIGKILL
    took = time.monotonic() - began
    number = next(int(line[1]) for line in job.output.splitlines() if line.endswith(f"pid {everything[1]}"))
    assert f"hvdtrain: rank {number} on {os.uname().nodename} was killed by SIGKILL; ending the others" in job.output
    wait_gone(everything, max(5 - took, 1))


@pytest.mark.guarantee("no-process-left")
@pytest.mark.parametrize(
    ("end", "by"),
    [
        ("killed launcher", "mpirun"),
        ("killed agent", "local"),
        ("its own", "local"),
        *(pytest.param("killed launcher", by, marks=MATRIX) for by in ("local", "horovodrun")),
        *(pytest.param("killed agent", by, marks=MATRIX) for by in ("mpirun", "horovodrun")),
        pytest.param("its own", "mpirun", marks=MATRIX),
    ],
)
def test_other_ends_leave_no_process(tmp_path, end, by):
    """With its agent a program dies; the processes that the program has started are then orphans of the launcher."""
    job = Job(tmp_path, by, LEAVING if end == "its own" else STUBBORN)
    everything = job.pids(*PROCESSES)
    if end == "killed launcher":
        job.process.kill()
    elif end == "killed agent":
        agent = Path(f"/proc/{everything[1]}/stat").read_text().rpartition(")")[2].split()[1]
        os.kill(int(agent), signal.SIGKILL)
    assert (job.process.wait(30) == 0) is (end == "its own")
    wait_gone(everything, 5)


# A handler may run during print, so lines are written without print's buffer.
HANDLING = """
import os, signal, sys, time
def write(line):
    os.write(1, f"{line}\\n".encode())
def handle(number, _):
    write(f"received {signal.Signals(number).name}")
    if number != signal.SIGUSR1:
        time.sleep(0.3)
        sys.exit(75)
write(f"here {os.getpid()}")
time.sleep(0.3)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, handle)
while True:
    time.sleep(0.1)
"""


@pytest.mark.parametrize("by", ["local", *(pytest.param(by, marks=MATRIX) for by in ("mpirun", "horovodrun"))])
def test_signals_to_the_launcher_reach_all_ranks(tmp_path, by):
    """SIGUSR1 waits until the program handles it: one that still imports a framework would be ended by it.

    SIGTERM repeated at once is one request, as Slurm, systemd and Kubernetes send it; also after the ranks have ended,
    until the launcher has.
    """
    job = Job(tmp_path, by, HANDLING)
    job.pids("here")
    job.process.send_signal(signal.SIGUSR1)
    job.wait_for("received SIGUSR1")
    deadline = time.monotonic() + 2  # repetitions within 3 s are one request
    while job.process.poll() is None and time.monotonic() < deadline:
        job.process.send_signal(signal.SIGTERM)
        time.sleep(0.02)
    assert job.process.wait(30) == 75, job.output
    received = [f"[{rank}] received {name}" for name in ("SIGUSR1", "SIGTERM") for rank in (0, 1)]
    assert sorted(line for line in job.output.splitlines() if "received" in line) == sorted(received)


def test_ctrl_c_stops_the_job_and_again_ends_it(tmp_path):
    """The second time after 0.2 s; ranks that do not end by themselves are killed."""
    ignoring = "import os, signal, time\nsignal.signal(signal.SIGINT, lambda *_: os.write(1, b'SIGINT\\n'))\n"
    job = Job(tmp_path, "local", f"{ignoring}print('pid', os.getpid(), flush=True)\nwhile True: time.sleep(1)")
    everything = job.pids("pid")
    job.process.send_signal(signal.SIGINT)
    job.wait_for("SIGINT")
    time.sleep(0.3)
    assert job.process.poll() is None
    job.process.send_signal(signal.SIGINT)
    assert job.process.wait(30) == 128 + signal.SIGINT
    assert "hvdtrain: ended by SIGINT" in job.output
    wait_gone(everything, 5)


FLOODS = {
    "messages": """b'{"OpenedRun": {"folder": "a", "resumable": true, "checkpoint": ""}}'""",
    "lines": r"b'x\n' * 1000",
    "one line": "b'x' * 60000",
}


@pytest.mark.parametrize("flood", [pytest.param(name, marks=MATRIX if name != "lines" else ()) for name in FLOODS])
def test_an_agent_whose_program_says_more_than_it_can_read_still_handles_signals(tmp_path, flood):
    pipe = "int(os.environ['HVDTRAIN_AGENT_PIPE'].partition(':')[0])"
    job = Job(
        tmp_path,
        "local",
        f"import os\nprint('up', flush=True)\nos.fork()\nwhile True: os.write({pipe}, {FLOODS[flood]})",
    )
    job.wait_for("] up")
    job.process.terminate()
    assert job.process.wait(10) == 128 + signal.SIGTERM, job.output


@MATRIX
def test_sigterm_to_a_program_that_launches_ends_the_job(tmp_path):
    task = "import os, time\nprint('up', os.getpid(), os.getppid(), flush=True)\ntime.sleep(600)\n"
    (tmp_path / "task.py").write_text(task)
    job = PrintedJob(tmp_path, ["python", "-c", "import hvdtrain; hvdtrain.launch('task.py:Task')"])
    job.until(r"(\[0\] )?up", seconds=60)
    pids = [int(pid) for pid in re.search(r"up (\d+) (\d+)", job.output).groups()]
    job.process.terminate()
    wait_gone(pids, 15)


STOPS_ITSELF = "raise SystemExit(75)"
ASKED_BY_ITS_LAUNCHER = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
os.kill(os.getppid(), signal.SIGUSR1)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("options", "code", "status"),
    [
        ((), ASKED_BY_ITS_LAUNCHER, 75),  # as srun and mpirun signal their tasks
        ((), STOPS_ITSELF, 1),
        pytest.param(("--restarts", "1"), STOPS_ITSELF, 1, marks=MATRIX),
        pytest.param(("--survive",), STOPS_ITSELF, 1, marks=MATRIX),
        pytest.param(("--survive",), ASKED_BY_ITS_LAUNCHER, 75, marks=MATRIX),
    ],
)
def test_only_a_rank_that_was_asked_to_stop_has_stopped(tmp_path, options, code, status):
    """Whoever starts a stopped job again would start one that stops by itself for ever."""
    job = Job(tmp_path, "local", code, *options)
    assert job.process.wait(30) == status, job.output
    assert ("ended with exit status 75" in job.output) == (status == 1)


def test_ctrl_c_ends_a_program_that_does_not_handle_it(tmp_path):
    """On a pseudo-terminal, whose Ctrl-C reaches the launcher only."""
    program = ["sh", "-c", "echo pid $$; exec sleep 60"]
    line = [sys.executable, "-m", "hvdtrain", "launch", "local", "-n", "2", "--", *program]
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
