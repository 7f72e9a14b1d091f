"""hvdtrain watch of real jobs. It needs processes: ranks are stopped and killed, and the screen names them."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs import finish, launcher, start
from support.stack import FASTEST, FRAMEWORKS, cases
from support.terminal import TerminalCommand

from hvdtrain.system.files import read_json

WITHIN_S = 20.0
"""It takes two seconds, but a busy machine may need longer."""


def pid_of(rank: int, folder: Path) -> int:
    return int(read_json(folder / "heartbeats" / f"rank-{rank}.json")["pid"])


@contextlib.contextmanager
def watched(command: list[str], folder: Path) -> Iterator[tuple[subprocess.Popen[str], TerminalCommand]]:
    """A job whose run is `run`, and hvdtrain watch of it in a terminal; both are ended."""
    job = start(command, folder)
    terminal = TerminalCommand(["python", "-m", "hvdtrain", "watch", "runs/run", "--wait"], folder, 100, 30)
    try:
        yield job, terminal
    finally:
        terminal.process.kill()
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, {FASTEST}))
def test_stopped_killed_and_restarted_rank(tmp_path, framework):
    """A rank is stopped, resumed and killed; the job is restarted, and then asked to end."""
    launch = launcher("local", 2)
    options = ["--strategy", "ring" if framework == "torch" else "horovod", "--name", "run", "--epochs", "500"]
    command = [*launch[:-1], "--restarts", "1", "--", "python", "-m", f"hvdtrain.{framework}_lenet", *options]
    with watched([*command, "--checkpoint-every", "1s", "--log-every", "5"], tmp_path) as (job, terminal):
        folder = tmp_path / "runs" / "run"
        terminal.wait_for_frame("training  run(.|\n)*images/s", 120)
        stopped = pid_of(1, folder)
        os.kill(stopped, signal.SIGSTOP)
        terminal.wait_for_frame(r"waiting  run *\n(.|\n)*no heartbeat of rank 1", WITHIN_S)
        os.kill(stopped, signal.SIGCONT)
        terminal.wait_for_frame("training  run", WITHIN_S)
        os.kill(pid_of(1, folder), signal.SIGKILL)
        terminal.wait_for_frame(r"restarting  run *\n +rank 1 on \S+ was killed by SIGKILL", WITHIN_S)
        terminal.wait_for_frame("training  run", 120)
        job.send_signal(signal.SIGTERM)
        status, output = finish(job)
        assert terminal.finish() == status == 75, output[-2000:]
        after = terminal.output.partition("\x1b[?1049l")[2]
        assert re.search(r"stopped\S* +run", after) and "asked to stop by SIGTERM" in after
