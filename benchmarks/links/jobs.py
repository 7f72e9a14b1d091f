"""The jobs of `run.py`: whole trainings for accuracy, short ones for speed, and what is read of their records."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from host_jobs import HostJob, Ranks
from rows import POWERSGD_START, Row, Task, as_peer, command

from hvdtrain.runs import metrics

INTERVAL, INTERVALS = 8, 5
"""Steps between two logging steps of a job for speed, and how many intervals it has; the first does not count."""
RUNTIME = {"checkpoint_every": "0s", "keep": "1", "hang_timeout": "600"}


class Jobs(NamedTuple):
    """How jobs are started. folder: of their runs and output.

    end_if_asked: called all the time while a job runs; what it raises ends the job.
    """

    spaces: Sequence[str]
    folder: Path
    end_if_asked: Callable[[], None]

    def train(self, row: Row, task: Task, seed: int, data: Path, epochs: int) -> dict[str, Any]:
        """A whole training: the result of a curve."""
        short = task if not epochs else task._replace(options={**task.options, "epochs": epochs})
        folder = self._run(row, short, seed, data, f"{_name(row, task)}-{seed}", (0, INTERVAL * 4))
        records = metrics.read(folder / metrics.NAME)
        tests = [record for record in records if record["kind"] == "test"]
        result = {
            "evaluations": [[record["step"], record["accuracy"]] for record in tests],
            "times": [round(record["time"] - _first_time(records, task), 3) for record in tests],
        }
        shutil.rmtree(folder)
        return result

    def time(self, row: Row, task: Task, data: Path) -> dict[str, Any]:
        """A short training: milliseconds of a step, and kilobytes that a host sends for it."""
        watched = Watched()
        every = steps_of_interval(row)
        name = f"{_name(row, task)}-speed"
        watched.path = self.folder / name / metrics.NAME
        folder = self._run(row, task, 0, data, name, (every * INTERVALS, every), watched)
        records = metrics.read(folder / metrics.NAME)
        speeds = [record["images_per_s"] for record in records if record["kind"] == "train"][1:]
        result = {
            "measured_ms": 1e3 * median(task.batch / speed for speed in speeds),
            "intervals_ms": [round(1e3 * task.batch / speed, 3) for speed in speeds],
            "sent_kb": watched.step_bytes(len(self.spaces)) / 1e3,
        }
        shutil.rmtree(folder)
        return result

    def _run(
        self,
        row: Row,
        task: Task,
        seed: int,
        data: Path,
        name: str,
        lengths: tuple[int, int],
        watched: Watched | None = None,
    ) -> Path:
        """Run a job to its end; returns its folder. lengths: most steps (0 for all), and steps between two logs."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)  # of a benchmark that was stopped
        steps, every = map(str, lengths)
        if row.program:
            options = as_peer(row, task, seed, data)
            program = [str(Path(__file__).with_name(row.program)), json.dumps(options), str(folder), steps, every]
        else:
            runtime = {"runs": self.folder, "name": name, "log_every": every, "max_steps": steps, **RUNTIME}
            given = [f"--{option.replace('_', '-')}={value}" for option, value in runtime.items()]
            program = ["-m", "hvdtrain", "train", *command(row, task, seed, data), *given, "--quiet"]
        horovod = row.strategy == "horovod"

        def watch(ranks: Ranks) -> None:
            self.end_if_asked()
            if watched:
                watched.look(ranks)

        HostJob(name, [sys.executable, *program], horovod, self.folder).run(self.spaces, watch)
        return folder


class Watched:
    """What hosts have sent when a job wrote its records of training."""

    def __init__(self) -> None:
        self.path = Path()
        self._at: list[tuple[int, int]] = []
        """Steps, and bytes that all hosts together had sent."""
        self._size = 0

    def look(self, ranks: Ranks) -> None:
        """Note what was sent if there is a new record."""
        try:
            size = self.path.stat().st_size
        except OSError:  # not written yet
            return
        if size == self._size:
            return
        self._size, sent = size, ranks.sent_bytes()
        trained = [record for record in metrics.read(self.path) if record["kind"] == "train"]
        if trained and sent is not None and trained[-1]["step"] not in dict(self._at):
            self._at.append((trained[-1]["step"], sent))

    def step_bytes(self, hosts: int) -> float:
        """Bytes of a step of one host, between the first record and the last one; NaN if fewer than two were seen."""
        if len(self._at) < 2:
            return float("nan")
        (first, before), (last, after) = self._at[0], self._at[-1]
        return (after - before) / (last - first) / hosts


def steps_of_interval(row: Row) -> int:
    """Steps between two logging steps of a job for speed: a multiple of the steps between two exchanges."""
    # The first interval of the hook has all steps that do not compress.
    steps = max(INTERVAL, POWERSGD_START) if "powersgd" in row.options.get("hook", "") else INTERVAL
    return -(-steps // row.sync_every) * row.sync_every


def _first_time(records: Sequence[dict[str, Any]], task: Task) -> float:
    """When the first step began, in seconds since 1970."""
    first = next(record for record in records if record["kind"] == "train")
    return float(first["time"] - first["step"] * task.batch / first["images_per_s"])


def _name(row: Row, task: Task) -> str:
    """For files."""
    return f"{task.name}-{row.name}".replace("/", "-").replace(":", "")
