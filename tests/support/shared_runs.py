"""Trainings that test cases share: starting a framework takes longer than most of them, so one job does many."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvdtrain.interfaces.learner import Checkpoint
from support.jobs import Ended, newest, several, try_each
from support.stack import precision_problem, require_precision

STARTS_ONCE = re.compile(r"ddp|(keras-fit-)?multiworker|(module-)?kvstore-dist(-device)?")
"""Strategies that a process can start only once: torch.distributed, TensorFlow's collectives, MXNet's servers."""
RANKED = {"torch": ("local", 2), "mxnet": ("gloo", 3), "tensorflow": ("gloo", 2)}
"""Launcher and number of ranks of the job in which the short suite makes a framework's runs over ranks."""


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
        return f"{self.framework}-{self.by}-{self.ranks}-{self.name}"

    @property
    def resumes(self) -> bool:
        return "--resume" in self.options

    @property
    def precision(self) -> str:
        return self.options[self.options.index("--precision") + 1] if "--precision" in self.options else "fp32"

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.options if self.resumes else (*self.options, "--name", self.folder_name)

    @property
    def job(self) -> tuple[str, str, int, str]:
        """What the runs of one job have in common."""
        own = self.own_job or any(map(STARTS_ONCE.fullmatch, self.options))
        return self.framework, self.by, self.ranks, f"{self.folder_name} {self.resumes}" if own else ""


def over_ranks(framework: str, name: str, *options: str, by: str = "", ranks: int = 0, own_job: bool = False):
    """A run over the ranks of RANKED, or by another launcher, or on another number of ranks."""
    launcher, count = RANKED[framework]
    return SharedRun(framework, name, options, by or launcher, ranks or count, own_job)


def resumed(of: SharedRun, whole: int, part: int) -> tuple[SharedRun, SharedRun, SharedRun]:
    """A run of `whole` steps, one that is interrupted after `part` steps, and the latter resumed."""

    def steps(name: str, count: int) -> SharedRun:
        return dataclasses.replace(of, name=f"{of.name}-{name}", options=(*of.options, "--max-steps", str(count)))

    one, other = steps("whole", whole), steps("part", part)
    resume = (*one.options, "--resume", f"runs/{other.folder_name}")
    return one, other, dataclasses.replace(other, options=resume)


class SharedJobs:
    """Starts a job, with all its runs, when a test asks for the first of them. A run that failed fails its tests."""

    def __init__(self, folder: Path, runs: Iterable[SharedRun]) -> None:
        self._folder, self._runs = folder, tuple(dict.fromkeys(runs))
        self._finish = functools.cache(self._start)

    def folder(self, shared: SharedRun) -> Path:
        """The folder of a run."""
        self.output(shared)
        return self._folder / "runs" / shared.folder_name

    def output(self, shared: SharedRun) -> str:
        """The output of a run's job."""
        assert shared in self._runs, "the test's `trains` mark must name this run"
        require_precision(shared.framework, shared.precision)
        status, output = self._finish(shared.job)[shared]
        assert status == 0, f"{shared.folder_name} failed:\n{output[-6000:]}"
        return output

    def newest(self, shared: SharedRun) -> Checkpoint:
        """The newest checkpoint of a run."""
        return newest(self.folder(shared))

    def assert_resumed(self, runs: tuple[SharedRun, SharedRun, SharedRun]) -> Checkpoint:
        """What `resumed` made ends bit for bit as without the interruption; returns that checkpoint."""
        whole, part, rest = runs
        self.folder(part)  # it may be another job than that which resumes it
        one, other = self.newest(rest), self.newest(whole)
        assert one.position == other.position
        for arrays, expected in ((one.weights, other.weights), (one.optimizer.arrays, other.optimizer.arrays)):
            assert arrays.keys() == expected.keys()
            assert all(np.array_equal(array, expected[name]) for name, array in arrays.items())
        return other

    def _start(self, job: tuple[str, str, int, str]) -> dict[SharedRun, Ended]:
        framework, by, ranks, _ = job
        mine = (shared for shared in self._runs if shared.job == job)
        runs = sorted((one for one in mine if not precision_problem(framework, one.precision)), key=_order)
        arguments = {shared: shared.arguments for shared in runs}
        return try_each(arguments, lambda some: several(framework, some, by, ranks), self._folder)


def _order(shared: SharedRun) -> tuple[bool, bool, bool]:
    """TensorFlow can split the CPU only before its first operation; MXNet's Module sets a variable for its process, and
    its bf16 changes all later graphs."""
    last = shared.framework == "mxnet" and "bf16" in shared.options
    strategy = " ".join(shared.options)
    return "mirrored" not in strategy, last, "module" in strategy


def trains(*params: Any, runs: Iterable[SharedRun], id: str, short: bool = True, marks: Iterable[Any] = ()) -> Any:
    """A case of a test that needs these runs; if it is not `short`, of the matrix."""
    marks = [pytest.mark.trains(*runs), *marks, *([] if short else [pytest.mark.matrix])]
    return pytest.param(*params, marks=marks, id=id)
