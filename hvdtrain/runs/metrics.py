"""What a run measures: sums over the group, and where rank 0 writes them (JSON lines, TensorBoard, a plot)."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import platform
import statistics
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple, SupportsFloat

import numpy as np

from hvdtrain.interfaces import Group

log = logging.getLogger("hvdtrain")

SPIKE, SPIKE_NATS, SPIKE_MEMORY = 3.0, 0.5, 20
"""A loss is a spike above so many times the median of the intervals before it, and so much more; and how many count."""
SLOW, SLOW_S = 1.5, 0.1
"""A rank is slow that takes so many times the median's time for equal work, and so many seconds more."""
FLUSH_S = 10.0
"""How old what TensorBoard shows may be."""


class Interval(NamedTuple):
    """What all ranks saw since the last look."""

    loss: float
    """Mean loss over the interval's rows."""
    bad_rank: int
    """Rank whose own loss was first not finite, -1 where none."""
    bad_step: int
    """Step of that loss, -1 where none."""
    stop_rank: int = -1
    """First rank that was asked to stop, -1 where none."""


class LossMeter:
    """Collects the lazy losses of an interval, and joins them over the group with a single vector.

    Losses are read when they are joined, so that no step waits for the one before it.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._pending: list[tuple[int, SupportsFloat]] = []
        self._clear()

    def _clear(self) -> None:
        self._total, self._steps, self._bad_step = 0.0, 0, -1
        self._pending.clear()

    def add(self, step: int, loss: SupportsFloat) -> None:
        """This rank's loss of a step, weighted so that the mean over ranks is that of the global batch."""
        self._pending.append((step, loss))

    def _read(self, step: int, loss: SupportsFloat) -> None:
        value = float(loss)
        self._steps += 1
        if math.isfinite(value):
            self._total += value
        elif self._bad_step < 0:
            self._bad_step = step

    def join(self, stop: bool = False) -> Interval:
        """The interval over all ranks; call it on every rank at the same step. stop: this rank was asked to."""
        for step, loss in self._pending:
            self._read(step, loss)
        rank, size = self._group.rank, self._group.size
        vector = np.zeros(2 + 2 * size)
        vector[:2] = self._total, self._steps
        vector[2 + rank] = self._bad_step + 1
        vector[2 + size + rank] = stop
        joined = self._group.sum(vector)
        first, asked = joined[2 : 2 + size], joined[2 + size :]
        stop_rank = int(np.argmax(asked)) if asked.any() else -1
        self._clear()
        mean = joined[0] / max(joined[1], 1)
        if not first.any():
            return Interval(mean, -1, -1, stop_rank)
        bad_rank = int(np.argmin(np.where(first > 0, first, np.inf)))
        return Interval(mean, bad_rank, int(first[bad_rank]) - 1, stop_rank)


class Spikes:
    """Remembers the losses of the last intervals, and tells of one that jumps out."""

    def __init__(self) -> None:
        self._before: deque[float] = deque(maxlen=SPIKE_MEMORY)

    def usual(self, loss: float) -> float | None:
        """The median of the intervals before this one where `loss` (nats) is far above it, else None."""
        usual = statistics.median(self._before) if len(self._before) >= 5 else math.inf
        self._before.append(loss)
        return usual if loss > max(SPIKE * usual, usual + SPIKE_NATS) else None


def slow_ranks(seconds: list[float]) -> list[int]:
    """Ranks that took much longer than the median rank; `seconds` by rank, for equal work without any waiting."""
    usual = statistics.median(seconds)
    return [rank for rank, one in enumerate(seconds) if one > max(SLOW * usual, usual + SLOW_S)]


class Scores(NamedTuple):
    """An evaluation over all ranks' shares of the test set."""

    loss: float
    accuracy: float
    confusion: np.ndarray
    """int64 (classes, classes): rows true, columns predicted."""

    def per_class(self) -> list[float]:
        """Accuracy of each class, NaN for a class without test images."""
        counts = self.confusion.sum(1)
        with np.errstate(invalid="ignore"):
            return list(self.confusion.diagonal() / counts)


def join_scores(group: Group, loss: float, confusion: np.ndarray) -> Scores:
    """Sum this rank's (summed loss, confusion matrix) over the group: one process's scores, exactly."""
    joined = group.sum(np.concatenate([[loss], confusion.ravel()]))
    total = np.rint(joined[1:]).astype(np.int64).reshape(confusion.shape)
    return Scores(joined[0] / total.sum(), total.trace() / total.sum(), total)


class Writer:
    """A run's metrics on disk: one JSON object a line, and TensorBoard's events where asked for."""

    def __init__(self, folder: Path, tensorboard: bool) -> None:
        self.path = folder / "metrics.jsonl"
        self._file = open(self.path, "a", buffering=1)  # noqa: SIM115  (open as long as the run)
        self._lost = 0
        self._events = Events(folder / "tensorboard") if tensorboard else None

    def write(self, kind: str, step: int, **values: float | list[Any]) -> None:
        """One record, for example kind `train` or `test`. One that a full disk does not take is lost."""
        try:
            self._file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        except OSError as error:
            if not self._lost:
                log.warning("%s cannot be written (%s): training goes on without", self.path, error.strerror)
            self._lost += 1
        if self._events:
            scalars = {f"{kind}/{name}": value for name, value in values.items() if isinstance(value, int | float)}
            self._events.write(step, scalars)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what is left in its buffer
            self._file.close()
        if self._lost:
            log.warning("%s lacks %d record(s) that the disk did not take", self.path, self._lost)
        if self._events:
            self._events.close()


class Events:
    """TensorBoard's event file; the first record that the disk does not take is its last: none could be read after it.

    Not by tensorboardX's SummaryWriter: such a disk ends its thread, and then its caller waits for ever.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboardX.record_writer import RecordWriter

        folder.mkdir(exist_ok=True)
        self._path = folder / f"events.out.tfevents.{time.time():.0f}.{platform.node()}.{os.getpid()}"
        self._file: RecordWriter | None = RecordWriter(str(self._path))
        self._flushed = 0.0
        self._add(file_version="brain.Event:2")

    def write(self, step: int, scalars: dict[str, float]) -> None:
        from tensorboardX.summary import scalar

        for name, value in scalars.items():
            self._add(step=step, summary=scalar(name, value))

    def _add(self, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        if not self._file:
            return
        now = time.time()
        try:
            self._file.write(Event(wall_time=now, **content).SerializeToString())
            if now - self._flushed > FLUSH_S:
                self._file.flush()
                self._flushed = now
        except OSError as error:
            log.warning("%s cannot be written (%s): training goes on without", self._path, error.strerror)
            self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._file:
                self._file.close()
        self._file = None


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics.jsonl, in the order of steps; of a step done twice, by a resume, the later one."""
    latest: dict[tuple[str, int], dict[str, Any]] = {}
    for line in path.read_text(errors="replace").splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the line that a kill cut short
        if isinstance(record, dict) and isinstance(record.get("kind"), str) and isinstance(record.get("step"), int):
            latest[record["kind"], record["step"]] = record
    return sorted(latest.values(), key=lambda record: record["step"])


def plot(folder: Path, title: str) -> Path:
    """Draw loss and test accuracy over epochs into `folder/metrics.png`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    records = read(folder / "metrics.jsonl")
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left = figure.subplots()
    right = left.twinx()
    lines = []
    for axis, kind, name, style in (
        (left, "train", "loss", "C0-"),
        (left, "test", "loss", "C1o-"),
        (right, "test", "accuracy", "C2s--"),
    ):
        chosen = [record for record in records if record["kind"] == kind and {"epoch", name} <= record.keys()]
        x, y = ([record[key] for record in chosen] for key in ("epoch", name))
        lines += axis.plot(x, y, style, markersize=4, label=f"{kind} {name}")
    left.set(xlabel="epoch", ylabel="loss (nats)", title=title)
    left.set_ylim(bottom=0)
    right.set(ylabel="accuracy", ylim=(0, 1.01))
    left.legend(handles=lines, loc="center right")
    path = folder / "metrics.png"
    figure.savefig(path, dpi=120)
    return path
