"""Trainings that test cases share: starting a framework takes longer than most of them, so one job does many."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from support.jobs import run, several


@dataclass(frozen=True)
class SharedRun:
    """A training with these options. Runs of the same framework and launcher are parts of one job.

    name: unique among the runs of a framework and a launcher. own_job: of a run that cannot share its processes.
    """

    framework: str
    name: str
    options: tuple[str, ...]
    by: str = "alone"
    ranks: int = 1
    own_job: bool = False

    @property
    def folder_name(self) -> str:
        return f"{self.framework}-{self.by}-{self.name}"

    @property
    def resumes(self) -> bool:
        return "--resume" in self.options

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.options if self.resumes else (*self.options, "--name", self.folder_name)

    @property
    def job(self) -> tuple[str, str, int, bool, str]:
        """What the runs of one job have in common. A resumed run needs a new process, as it has for users."""
        return self.framework, self.by, self.ranks, self.resumes, self.folder_name if self.own_job else ""


class SharedJobs:
    """Starts a job, with all its runs, when a test asks for the first of them."""

    def __init__(self, folder: Path, runs: Iterable[SharedRun]) -> None:
        self._folder, self._runs = folder, tuple(dict.fromkeys(runs))
        self._finish = functools.cache(self._start)  # a job that failed fails all its tests, but is not repeated

    def folder(self, shared: SharedRun) -> Path:
        """The folder of a run."""
        self.output(shared)
        return self._folder / "runs" / shared.folder_name

    def output(self, shared: SharedRun) -> str:
        """The output of a run's job."""
        assert shared in self._runs, "the test's `trains` mark must name this run"
        status, output = self._finish(shared.job)
        assert status == 0, output[-6000:]
        return output

    def _start(self, job: tuple[str, str, int, bool, str]) -> tuple[int, str]:
        framework, by, ranks, *_ = job
        runs = sorted((shared for shared in self._runs if shared.job == job), key=_order)
        command = several(framework, [shared.arguments for shared in runs], by, ranks)
        return run(command, self._folder, timeout_s=600)


def _order(shared: SharedRun) -> tuple[bool, bool]:
    """TensorFlow can split the CPU only before its first operation; MXNet's Module sets a variable for its process."""
    return "mirrored" not in shared.options, "module" in shared.options
