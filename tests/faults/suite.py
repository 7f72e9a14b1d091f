"""What all faults share: folders, a cluster, the weights of undisturbed jobs; and a row of the table of results."""

from __future__ import annotations

import contextlib
import itertools
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from support.cluster import HOST_NEEDS, SLURM_NEEDS, Hosts, Slurm, need

from faults.watched_job import Mismatch, WatchedJob
from hvdtrain.runs import checkpoints

HEAD = """\
| fault | launcher | framework | detected after s | recovered after s | steps lost | afterwards |
| --- | --- | --- | --- | --- | --- | --- |"""


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
    """Runs cases below one folder, with random choices that the seed decides."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self._numbers = itertools.count()
        self._weights: dict[str, dict[str, np.ndarray]] = {}
        self._cluster: Slurm | None = None
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

    def check_weights(self, job: WatchedJob) -> None:
        """The job must have ended at the weights of an undisturbed job, bit for bit."""
        if job.framework not in self._weights:
            undisturbed = WatchedJob(self.new_folder(), "local", job.framework)
            undisturbed.end(0)
            self._weights[job.framework] = checkpoints.newest(undisturbed.run)[1].weights
        for name, value in checkpoints.newest(job.run)[1].weights.items():
            if not np.array_equal(value, self._weights[job.framework][name]):
                raise Mismatch(f"{name} differs from an undisturbed job:\n{job.output}")

    def check_not_restarted(self, job: WatchedJob) -> None:
        """The job, started with --restarts, must have ended in its first attempt."""
        if len(job.attempts()) > 1:
            raise Mismatch(f"it was restarted:\n{job.output}")

    def check_resumes(self, job: WatchedJob) -> WatchedJob:
        """The same command again must continue to the weights of an undisturbed job; returns the second job."""
        again = WatchedJob(job.folder, job.launcher, job.framework)
        again.end(0)
        self.check_weights(again)
        return again
