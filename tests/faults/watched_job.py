"""A training job whose progress, output and processes are watched while a fault is injected."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from support.cluster import Slurm
from support.jobs import PROGRAMS, ROOT, start, wait_for

from hvdtrain.runs import metrics

STEPS, EVERY = 40, 5
"""Steps of a job, and steps from one checkpoint to the next."""
HANG_S = 5.0
OPTIONS = ["--max-steps", str(STEPS), "--lr", "0.02", "--checkpoint-every", str(EVERY), "--log-every", "1"]
OPTIONS += ["--device", "cpu", "--name", "run", "--resume", "auto", "--hang-timeout", f"{HANG_S:g}"]
NUMPY = "numpy"
"""In the place of a framework: `support/numpy_learner.py`."""
MARK = "HVDTRAIN_TEST_CASE"
"""Environment variable by which all processes of a case are found."""
STEP_S = "HVDTRAIN_TEST_STEP_S"


class Mismatch(AssertionError):
    """A job did not handle its fault as promised."""


@dataclass
class WatchedJob:
    """A job, by default of two ranks, started at once."""

    folder: Path
    launcher: str
    framework: str
    program: str = "slowly"
    """The function of support/programs.py that trains."""
    launch_options: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    step_s: float = 0.1
    """Seconds by which each step is longer."""
    ranks: int = 2
    strategy: str = ""
    """By default horovod; without a framework, ring."""
    shards: int = 0
    """--shards, with which any number of ranks of any strategy ends with the same bits; 0 trains without."""
    cluster: Slurm | None = None
    """Where it runs, if not on this machine itself: rank 0 on host1, rank 1 on host2."""

    def __post_init__(self) -> None:
        self.run = self.folder / "runs" / "run"
        self.strategy = self.strategy or ("ring" if self.framework == NUMPY else "horovod")
        self.lines: list[tuple[float, str]] = []
        launch = [*self._launch(), self.launcher, "-n", str(self.ranks), *self.launch_options, "--"]
        self.began = time.time()
        self.process = self._start([*launch, *self._command()])
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _launch(self) -> list[str]:
        return [sys.executable, "-m", "hvdtrain", "launch"]

    def _command(self) -> list[str]:
        program = [sys.executable, str(PROGRAMS), self.program, self.framework, *OPTIONS, *self.options]
        return [*program, "--strategy", self.strategy, "--shards", str(self.shards)]

    def _environment(self) -> dict[str, str]:
        return {MARK: str(self.folder), STEP_S: str(self.step_s), "PYTHONPATH": str(ROOT)}

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        environment = self._environment()
        if not self.cluster:
            return start(command, self.folder, **environment)
        if self.launcher != "srun":
            return self.cluster.hosts.start("host1", command, self.folder, **environment)
        return self.cluster.start(["salloc", "--quiet", "--nodes=2", *command], self.folder, **environment)

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append((time.time(), line.rstrip()))

    @property
    def output(self) -> str:
        return "\n".join(line for _, line in self.lines)

    def steps(self) -> dict[int, float]:
        """Losses by step, as the latest attempt recorded them so far."""
        path = self.run / "metrics.jsonl"
        found = metrics.read(path) if path.exists() else []
        return {one["step"]: one["loss"] for one in found if one["kind"] == "train"}

    def wait_for_step(self, step: int) -> int:
        """Wait until that step is recorded; returns the last step."""
        self.wait(lambda: max(self.steps(), default=0) >= step, 120)
        return max(self.steps())

    def pid(self, rank: int) -> int:
        """Process id of a rank, as this machine counts."""
        if self.cluster:
            on_host = self.cluster.hosts.processes(f"host{rank + 1}")
            pattern = re.compile(rf"\S*python \S*{re.escape(PROGRAMS.name)}")
            return next(pid for pid, line in on_host.items() if pattern.match(line))
        return int(json.loads((self.run / "heartbeats" / f"rank-{rank}.json").read_text())["pid"])

    def attempts(self) -> list[dict[str, Any]]:
        """The record of a job with restarts, once an attempt has ended."""
        return list(json.loads((self.run / "attempts.json").read_text()))

    def set_disk(self, answer: str) -> None:
        """How the disk behaves for the program `disk`: the name of an error, seconds of delay, or "" for normal."""
        if answer:
            (self.folder / "disk.new").write_text(answer)
            (self.folder / "disk.new").rename(self.folder / "disk")
        else:
            (self.folder / "disk").unlink()

    def set_disk_for(self, delay_s: float, step: int, seconds: float) -> None:
        """From that step on, let each operation of the disk take `delay_s` seconds, for so many seconds."""
        self.wait_for_step(step)
        self.set_disk(f"{delay_s}")
        time.sleep(seconds)
        self.set_disk("")

    def reported(self, text: str, since: float, within_s: float) -> float:
        """When a line with this text was printed, at `since` or later; waits for it."""

        def when() -> float | None:
            return next((at for at, line in self.lines if at >= since and text in line), None)

        self.wait(lambda: when() is not None, within_s, f"{text!r} within {within_s} s")
        at = when()
        assert at
        return at

    def end(self, status: int, within_s: float = 180, cleanup_s: float = 3) -> float:
        """Wait for the end with that exit status; when it ended. All processes must be gone after `cleanup_s`."""
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise Mismatch(f"no end within {within_s} s:\n{self.output}") from None
        ended = time.time()
        self._reader.join(5)
        if self.process.returncode != status:
            raise Mismatch(f"exit status {self.process.returncode} instead of {status}:\n{self.output}")
        self.wait(lambda: not remaining_processes(self.folder), cleanup_s, "no process left behind")
        return ended

    def final_output(self, within_s: float = 120) -> str:
        """The whole output, once the job has ended."""
        self.process.wait(within_s)
        self._reader.join(5)
        return self.output

    def wait(self, condition: Callable[[], object], within_s: float, what: str = "a step") -> None:
        wait_for(condition, within_s, lambda: f"{what}:\n{self.output}", Mismatch)

    def check_time(self, seconds: float, limit_s: float, what: str) -> None:
        if seconds > limit_s:
            raise Mismatch(f"{what} after {seconds:.1f} s, but should within {limit_s:g} s:\n{self.output}")


def remaining_processes(folder: Path) -> list[psutil.Process]:
    """Processes of the cases below a folder that still run, on all hosts that this machine makes."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            case = one.environ().get(MARK)
            if case and Path(case).is_relative_to(folder) and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found
