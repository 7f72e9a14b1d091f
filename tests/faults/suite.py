"""What all faults share: folders, a cluster, the weights of undisturbed jobs; and a row of the table of results."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.cluster import HOST_NEEDS, SLURM_NEEDS, Hosts, Slurm, need
from support.same_bits import weights_hash

from faults.surviving_job import SurvivingJob
from faults.watched_job import NUMPY, Mismatch, WatchedJob
from hvdtrain.runs import checkpoints

HEAD = """\
| fault | launcher | framework | detected after s | recovered after s | steps lost | afterwards |
| --- | --- | --- | --- | --- | --- | --- |"""

SHARDS = 5
MAX_RANKS = 4
STRATEGIES = {"local": ("horovod", "ring"), "mpirun": ("horovod", "mpi")}
"""Those with --shards, by the launcher that starts their ranks; all others start Horovod's only."""


@dataclass
class Row:
    """The result of a case; None where a number of seconds or steps does not apply."""

    fault: str
    launcher: str
    framework: str
    detected_s: float | None = None
    recovered_s: float | None = None
    """From the fault to the next step, minus the time from the first start to the first step."""
    lost: int | None = None
    state: str = "same weights"
    ran: bool = True

    def line(self) -> str:
        def shown(value: float | None, form: str) -> str:
            return "" if value is None else format(value, form)

        figures = (shown(self.detected_s, ".1f"), shown(self.recovered_s, ".1f"), shown(self.lost, "d"))
        return f"| {' | '.join((self.fault, self.launcher, self.framework, *figures, self.state))} |"


class Suite:
    """Runs cases below one folder. `random` makes the choices of a case; seed it before each."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self._numbers = itertools.count()
        self._weights: dict[str, dict[str, np.ndarray]] = {}
        self._hashes: dict[str, str] = {}
        self._undisturbed: dict[tuple[str, str, int], SurvivingJob] = {}
        self.kills: Counter[str] = Counter()
        """Kills that jobs have survived, by kind."""
        self._cluster: Slurm | None = None
        self.shards = 0
        """--shards of the next jobs; without it, they have two ranks of Horovod."""
        self.cleanup = contextlib.ExitStack()
        """Removes what was made for the cases."""

    def cluster(self) -> Slurm:
        """Three hosts, two of them Slurm's nodes. Raises pytest.skip.Exception if this machine cannot make them."""
        if not self._cluster:
            need((*HOST_NEEDS, *SLURM_NEEDS), "iproute2 util-linux openssh-server openssh-client slurm-wlm munge")
            hosts = Hosts(self.new_folder(), 3)
            self.cleanup.callback(hosts.down)
            hosts.up()
            slurm = Slurm(hosts, self.new_folder())
            slurm.up()
            self._cluster = slurm
        return self._cluster

    def new_folder(self) -> Path:
        made = self.folder / f"case-{next(self._numbers)}"
        made.mkdir()
        return made

    def job(self, launcher: str, framework: str, program: str = "slowly", **more: Any) -> WatchedJob:
        """Start a job of two ranks; with --shards, of one of the strategies that have it."""
        return WatchedJob(**{
            **{"folder": self.new_folder(), "launcher": launcher, "framework": framework, "program": program},
            **{"strategy": self._draw_strategy(launcher, framework), "shards": self.shards, **more},
        })  # fmt: skip

    def _draw_strategy(self, launcher: str, framework: str) -> str:
        if framework == NUMPY or not self.shards:
            return ""
        ddp = ("ddp",) * (launcher == "local" and framework == "torch")
        return self.random.choice([*STRATEGIES.get(launcher, ("horovod",)), *ddp])

    def continued(self, job: WatchedJob) -> WatchedJob:
        """Start the same command again; with --shards, on another number of ranks, with any of the strategies."""
        ranks, strategy = job.ranks, job.strategy
        if job.shards:
            ranks = self.random.choice([count for count in range(1, MAX_RANKS + 1) if count != job.ranks])
            strategy = "single" if ranks == 1 else self._draw_strategy(job.launcher, job.framework)
        program = {"ranks": ranks, "strategy": strategy, "shards": job.shards}
        return WatchedJob(job.folder, job.launcher, job.framework, **program)

    def check_weights(self, job: WatchedJob) -> None:
        """The job must have ended at the weights of an undisturbed job, bit for bit; with --shards, of one process."""
        if job.shards:
            if weights_hash(job.run) != self._hash_of_one_process(job.framework, job.shards):
                raise Mismatch(f"the weights' hash differs from that of an undisturbed process:\n{job.output}")
            return
        if job.framework not in self._weights:
            undisturbed = WatchedJob(self.new_folder(), "local", job.framework, step_s=0.0)
            undisturbed.end(0)
            self._weights[job.framework] = checkpoints.newest(undisturbed.run)[1].weights
        for name, value in checkpoints.newest(job.run)[1].weights.items():
            if not np.array_equal(value, self._weights[job.framework][name]):
                raise Mismatch(f"{name} differs from an undisturbed job:\n{job.output}")

    def _hash_of_one_process(self, framework: str, shards: int) -> str:
        if framework not in self._hashes:
            one = WatchedJob(
                *(self.new_folder(), "local", framework), ranks=1, strategy="single", shards=shards, step_s=0.0
            )
            one.end(0)
            self._hashes[framework] = weights_hash(one.run)
        return self._hashes[framework]

    def undisturbed(self, framework: str, training: str, steps: int) -> SurvivingJob:
        """One process that trains as the ranks of a job that survives, once it has ended."""
        key = framework, training, steps
        if key not in self._undisturbed:
            one = SurvivingJob(
                *(self.new_folder(), "local", framework),
                ranks=1, strategy="single", step_s=0.0, training=training, max_steps=steps,
            )  # fmt: skip
            one.end(0)
            self._undisturbed[key] = one
        return self._undisturbed[key]

    def check_not_restarted(self, job: WatchedJob) -> None:
        """The job, started with --restarts, must have ended in its first attempt."""
        if len(job.attempts()) > 1:
            raise Mismatch(f"it was restarted:\n{job.output}")

    def check_resumes(self, job: WatchedJob) -> WatchedJob:
        """`continued` must go on to the weights of an undisturbed job; returns the second job."""
        again = self.continued(job)
        again.end(0)
        self.check_weights(again)
        return again
