"""A job that goes on when ranks are lost, whose records are read while ranks are killed."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from support.jobs import ROOT, running
from support.same_bits import MEASURED, weights_hash
from support.tasks.counting import OPTIONS as COUNTING_OPTIONS

from faults.watched_job import MARK, Mismatch, WatchedJob
from hvdtrain.runs import checkpoints, metrics
from hvdtrain.runs.metrics import decoded

SUPPORT = ROOT / "tests" / "support"
RANKS, SHARDS = 4, 5
LAUNCH_AT_ONCE = """
import sys
from hvdtrain.__main__ import main
from hvdtrain.jobs import memberships

memberships.FIRST_PAUSE_S = memberships.QUICK_S = 0.0
main(["launch", *sys.argv[1:]])
"""
"""Starts a lost rank again at once however often it is lost."""
START_S = 0.3
"""No process takes less time from its start until it trains with the others."""


class Training(NamedTuple):
    """What a job trains."""

    program: str
    """What `support/killable.py` runs; the framework takes the place of {}."""
    options: tuple[str, ...]
    steps_per_epoch: int
    frameworks: tuple[str, ...] = ()
    """The frameworks that have it, where the program or the task is of one; empty: all."""


TRAININGS = {
    "network": Training("{}", ("--data", "digits", "--lr", "0.02"), 23),
    "task": Training("{}", ("--model", str(SUPPORT / "tasks" / "of_{}.py:Classifier"), "--optimizer", "adam"), 2),
    "own optimizer": Training(
        "{}", ("--model", str(SUPPORT / "tasks" / "own_optimizers.py:Noisy"), "--batch-size", "32"), 4, ("torch",)
    ),
    "rows": Training("{}", ("--model", str(SUPPORT / "tasks" / "counting.py:Counting"), *COUNTING_OPTIONS), 8),
    "loop of torch": Training(str(SUPPORT / "user_loop.py"), ("--batch-size", "20"), 12, ("torch",)),
    "loop of mxnet": Training(str(SUPPORT / "user_loop_gluon.py"), ("--batch-size", "20"), 12, ("mxnet",)),
}
"""`rows`: its weights count how often each row was used. The loops also draw random numbers."""


def trainings_of(framework: str) -> list[str]:
    """The names of those that a framework has."""
    return [name for name, one in TRAININGS.items() if framework in (one.frameworks or (framework,))]


@dataclass
class SurvivingJob(WatchedJob):
    """By default, one of RANKS ranks that survives."""

    training: str = "network"
    max_steps: int = 400

    def __post_init__(self) -> None:
        (self.folder / "orders").mkdir(parents=True, exist_ok=True)
        self.pids: dict[int, int] = {}
        """The process of each rank that trains, or may train, and has the state of training."""
        self.step = 0
        """The last recorded step."""
        self.history: list[dict[str, Any]] = []
        """All that was recorded so far, in its order."""
        self.members = list(range(self.ranks))
        """The ranks that train, by position, as was recorded last."""
        self._members_time, self._offset = 0.0, 0
        super().__post_init__()

    def _launch(self) -> list[str]:
        return [sys.executable, "-c", LAUNCH_AT_ONCE]

    def _command(self) -> list[str]:
        one = TRAININGS[self.training]
        options = [option.replace("{}", self.framework) for option in one.options]
        lasting = ["--epochs", str(-(-self.max_steps // one.steps_per_epoch)), "--max-steps", str(self.max_steps)]
        kept = ["--log-every", "1", "--checkpoint-every", "25", "--device", "cpu", "--name", "run"]
        program = [sys.executable, str(SUPPORT / "killable.py"), one.program.replace("{}", self.framework)]
        sharded = ["--strategy", self.strategy, "--shards", str(SHARDS)]
        return [*program, *options, *lasting, *kept, *sharded, *self.options]

    def _environment(self) -> dict[str, str]:
        return {
            **super()._environment(),
            "HVDTRAIN_TEST_FOLDER": str(self.folder),
            "FRAMEWORK": self.framework,
            "STATE": "1",
            "HVDTRAIN_TEST_PATIENCE_S": "3",
        }

    def read(self) -> bool:
        """Read what was recorded since; whether that has a step."""
        path, before = self.run / metrics.NAME, self.step
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            self._offset = min(self._offset, path.stat().st_size)
            file.seek(self._offset)
            data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offset += len(whole)
            for line in whole.splitlines():
                record = decoded(line)
                if record:  # else the beginning of a line, by a process that was killed
                    self._take(record)
        return self.step > before

    def _take(self, record: dict[str, Any]) -> None:
        self.history.append(record)
        if record["kind"] == "members":
            self.members, self._members_time = record["ranks"], record["time"]
        elif record["kind"] == "train":
            # All of them have done a step together, so that each has the state.
            since = self._members_time or record["time"]
            self.pids = {rank: self.started(rank, before=since - START_S) for rank in self.members}
            self.step = max(self.step, record["step"])

    def started(self, rank: int, before: float = float("inf")) -> int:
        """The process of a rank; 0 if there is none, or if it started later."""
        path = self.folder / "pids" / str(rank)
        with contextlib.suppress(FileNotFoundError):
            return int(path.read_text()) if path.stat().st_mtime < before else 0
        return 0

    @property
    def holders(self) -> list[int]:
        """The ranks that have the state of training and still run, by position."""
        return [rank for rank, pid in self.pids.items() if self.runs(pid)]

    @property
    def starting(self) -> list[int]:
        """The ranks whose processes run, but do not train yet."""
        pids = {rank: self.started(rank) for rank in range(self.ranks)}
        return [rank for rank, pid in pids.items() if pid != self.pids.get(rank) and self.runs(pid)]

    def runs(self, pid: int) -> bool:
        """Whether it is a process of this job that runs: its number may have gone to another one."""
        mark = f"{MARK}={self.folder}".encode()
        with contextlib.suppress(OSError):
            return bool(pid) and running(pid) and mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return False

    def kill(self, rank: int, signal_number: int = 9) -> None:
        """Kill the newest process of a rank."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.started(rank), signal_number)

    def kill_agent(self, rank: int) -> None:
        """Kill the agent of a rank, and not the rank itself."""
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.started(rank)).parent()
            if parent and parent.pid != self.process.pid:
                parent.kill()

    def order_kill(self, phase: str, delay_s: float = 0.0) -> None:
        """Let the next rank that begins a phase be killed so much later; `phase-RANK` is for one rank."""
        draft = self.folder / "order"
        draft.write_text(f"{delay_s:.4f}")
        draft.replace(self.folder / "orders" / phase)

    def changes(self, what: str) -> list[dict[str, Any]]:
        """The records of members that were `lost`, or have `joined`, so far; without those of the start."""
        self.read()
        changes = [record for record in self.history if record["kind"] == "members" and record["number"] > 1]
        return [record for record in changes if record[what]]

    def compare(self, undisturbed: SurvivingJob) -> None:
        """Raise Mismatch unless both have the same parameters, and have recorded the same steps and evaluations."""
        if weights_hash(self.run) != weights_hash(undisturbed.run):
            raise Mismatch(f"the parameters' hash is not that of an undisturbed process:\n{self.output}")
        found, expected = self.records(), undisturbed.records()
        if self.training == "rows":
            self._check_counts()
        # Checkpoints are also due by time, so that each has some that the other one has not.
        steps = {key for key in expected.keys() | found.keys() if key[0] != "checkpoint"}
        for key in steps | (expected.keys() & found.keys()):
            if found.get(key) != expected.get(key):
                raise Mismatch(f"{key} is {found.get(key)}, but of an undisturbed process {expected.get(key)}")

    def records(self) -> dict[tuple[str, int], dict[str, Any]]:
        """What was recorded by kind and step, without times and speeds; the same wherever it was recorded twice."""
        found: dict[tuple[str, int], dict[str, Any]] = {}
        for line in (self.run / metrics.NAME).read_bytes().splitlines():
            record = decoded(line)
            if record and record["kind"] in ("train", "test", "checkpoint"):
                values = {name: value for name, value in record.items() if name not in MEASURED}
                if found.setdefault((record["kind"], record["step"]), values) != values:
                    raise Mismatch(f"two records of a step differ: {values}, {found[record['kind'], record['step']]}")
        return found

    def _check_counts(self) -> None:
        (counts,) = checkpoints.newest(self.run)[1].weights.values()
        epochs = self.max_steps / TRAININGS["rows"].steps_per_epoch
        if (counts != -epochs).any():
            wrong = {row: -float(count) for row, count in enumerate(counts.ravel()) if count != -epochs}
            raise Mismatch(f"in {epochs:g} epochs, rows were used this often: {wrong}")
