"""Losses of ranks in jobs of `launch --survive`, measured for survive.py."""

from __future__ import annotations

import itertools
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from faults.surviving_job import RANKS, SurvivingJob
from support.cluster import HOST_NEEDS, Hosts, Slurm, need
from support.jobs import wait_for

STEP_S = 0.1
STEPS = 1_000_000
"""More than a job makes until it is ended."""
LIMIT_S = 120.0
HANG_S = 3.0
Figures = dict[str, list[float]]


class Measured:
    """A job whose losses are measured one after the other, each when all ranks train."""

    def __init__(self, job: SurvivingJob) -> None:
        self.job = job
        self.to_next_step: list[float] = []
        self.to_report: list[float] = []
        self.join: list[float] = []

    def lose(self, rank: int, inject: Callable[[], object], report: str = "continue") -> None:
        """Lose a rank, and wait for its replacement."""
        self.wait_for_all()
        lost = time.time()
        inject()
        self.wait(lambda: self._changes(lost, "lost") and self._step_after(self._changes(lost, "lost")[0]))
        change = self._changes(lost, "lost")[0]
        self.to_next_step.append(self._step_after(change) - lost)
        self.to_report += [at - lost for at, line in self.job.lines if at >= lost and report in line][:1]

    def wait_for_all(self) -> None:
        """Until all ranks have trained together for some steps."""
        self.wait(lambda: len(self.job.members) == RANKS)
        step = self.job.step
        self.wait(lambda: self.job.step > step + 2)

    def wait(self, condition: Callable[[], object]) -> None:
        def read() -> object:
            self.job.read()
            return condition() or self.job.process.poll() is not None

        wait_for(read, LIMIT_S, lambda: self.job.output)
        assert self.job.process.poll() is None, self.job.output

    def _changes(self, since: float, what: str) -> list[dict[str, Any]]:
        """The records of members that were lost or have joined since then."""
        return [one for one in self.job.changes(what) if one["time"] >= since]

    def _step_after(self, change: dict[str, Any]) -> float:
        """When the first step after a change ended; 0 if none has."""
        after = self.job.history[self.job.history.index(change) :]
        return float(next((one["time"] for one in after if one["kind"] == "train"), 0.0))

    def figures(self) -> Figures:
        """In s: of losses, from the loss; of joining, how much longer the step with it was than those around it."""
        history = self.job.history
        joins = [history.index(one) for one in self.job.changes("joined")]
        pauses = []
        for number in joins:
            before = [one["time"] for one in history[:number] if one["kind"] == "train"][-6:]
            after = [one["time"] for one in history[number:] if one["kind"] == "train"][:1]
            if after and len(before) > 1:
                usual = statistics.median(later - earlier for earlier, later in itertools.pairwise(before))
                pauses.append(max(after[0] - before[-1] - usual, 0.0))
        return {
            "to_report_s": self.to_report,
            "to_next_step_s": self.to_next_step,
            "others_wait_for_replacement_s": pauses,
        }


@contextmanager
def job(folder: Path, framework: str, strategy: str, *options: str, **more: Any) -> Iterator[Measured]:
    """A job that trains until the block ends."""
    folder.mkdir(parents=True)
    placed = {"launcher": "local", "launch_options": ["--survive"], **more}
    fixed = {"ranks": RANKS, "step_s": STEP_S, "max_steps": STEPS, "options": list(options)}
    measured = Measured(SurvivingJob(folder, framework=framework, strategy=strategy, **fixed, **placed))
    try:
        yield measured
    finally:
        if measured.job.process.poll() is None:
            launcher = psutil.Process(measured.job.process.pid)
            if measured.job.cluster:  # it was started by nsenter, which ends with its status
                (launcher,) = launcher.children()
            launcher.terminate()
        measured.job.end(75, within_s=60, cleanup_s=20)


def measure_kills(folder: Path, framework: str, strategy: str, count: int, generator: random.Random) -> Figures:
    """kill -9 of any rank."""
    with job(folder, framework, strategy) as measured:
        for _ in range(count):
            rank = generator.randrange(RANKS)
            measured.wait_for_all()
            time.sleep(generator.uniform(0, 0.3))
            measured.lose(rank, lambda rank=rank: measured.job.kill(rank), "was killed by SIGKILL")  # type: ignore[misc]
        measured.wait_for_all()
        return measured.figures()


def measure_stops(folder: Path, framework: str, strategy: str, count: int, generator: random.Random) -> Figures:
    """SIGSTOP of any rank; without the seconds that a hang takes to count as one."""
    with job(folder, framework, strategy, "--hang-timeout", f"{HANG_S:g}") as measured:
        for _ in range(count):
            rank = generator.randrange(RANKS)
            measured.lose(rank, lambda rank=rank: measured.job.kill(rank, signal.SIGSTOP))  # type: ignore[misc]
        measured.wait_for_all()
        figures = measured.figures()
        return {
            "beyond_hang_timeout_s": [seconds - HANG_S for seconds in figures["to_next_step_s"]],
            **figures,
        }


def measure_cable(folder: Path, framework: str, strategy: str, count: int) -> Figures:
    """The cable of a host with one rank is pulled, and plugged in again once the others go on."""
    need(HOST_NEEDS, "iproute2 util-linux openssh-server openssh-client")
    (folder / "hosts").mkdir(parents=True)
    hosts = Hosts(folder / "hosts", RANKS)
    try:
        hosts.up()
        places = ["--survive", "--interface", "eth0", "-H", ",".join(f"{name}:1" for name in hosts.names)]
        more = {"launcher": "horovodrun", "launch_options": places, "cluster": Slurm(hosts, folder)}
        with job(folder / "job", framework, strategy, **more) as measured:
            for number in range(count):
                rank = 1 + number % (RANKS - 1)  # the launcher is on the host of rank 0
                name = hosts.names[rank]
                try:
                    measured.lose(rank, lambda name=name: hosts.cable(name, plugged=False))  # type: ignore[misc]
                finally:
                    hosts.cable(name, plugged=True)
            return measured.figures()
    finally:
        hosts.down()
