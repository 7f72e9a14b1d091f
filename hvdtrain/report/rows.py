"""Rows of runs that differ only in repetition, and how they compare with each other."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hvdtrain.errors import UserError
from hvdtrain.interfaces import Checkpoint
from hvdtrain.report.runs import Run
from hvdtrain.runs import checkpoints

# Options that decide how long a step takes: those of a row and of what it is compared with are equal.
DECIDE_SPEED = ("model", "data", "precision", "remainder", "optimizer", "accumulate", "clip_norm", "on_nan")
# Options that say how ranks meet, which one process has no use for.
HOW_RANKS_MEET = ("framework", "strategy", "api", "kvstore", "recipe", "compression")


class Spread(NamedTuple):
    """Of some repetitions."""

    median: float
    least: float
    greatest: float
    number: int


def spread(values: Iterable[float | None]) -> Spread | None:
    """Median, least and greatest of what was measured; None where nothing was."""
    measured = [value for value in values if value is not None]
    return Spread(statistics.median(measured), min(measured), max(measured), len(measured)) if measured else None


@dataclass
class Row:
    """Runs that differ only in repetition, and how they compare with others."""

    runs: list[Run]
    note: str = ""
    """Settings in which this row differs from most runs."""
    scaling: Scaling | None = None
    difference: Difference | None = None

    def __post_init__(self) -> None:
        first = self.run = self.runs[0]
        self.framework, self.strategy = str(first.options["framework"]), first.strategy
        self.size = f"{first.ranks} × {first.devices}"
        self.images_per_s = spread(run.images_per_s for run in self.runs)
        self.epoch_s = spread(run.epoch_s for run in self.runs)
        self.accuracy = spread(run.accuracy for run in self.runs)
        self.peak_rss_mb = spread(run.peak_rss_mb for run in self.runs)
        measured = [run.shares for run in self.runs if run.shares]
        self.shares = tuple(map(statistics.fmean, zip(*measured, strict=True))) if measured else None

    @property
    def label(self) -> str:
        return f"{self.framework} {self.strategy}, {self.size}" + (f", {self.note}" if self.note else "")


class Scaling(NamedTuple):
    """How a row compares with that of one replica."""

    kind: str
    """`strong`: both have the same global batch; `weak`: the same batch of a replica."""
    base: Row
    speedup: float
    """images/s of the row over those of the base."""
    efficiency: float
    """Speedup over the number of replicas."""
    serial_fraction: float | None
    """Experimentally determined serial fraction, for strong scaling over more than one replica."""


class Difference(NamedTuple):
    """How far a row's parameters are from those of one process."""

    largest: float | None
    """max |difference| over all parameters and repetitions; None for the run that others are compared with."""
    reference: Run


def make_rows(runs: list[Run]) -> list[Row]:
    """The rows, in the order of the table, compared with each other."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in sorted(runs, key=lambda run: str(run.folder)):
        groups.setdefault(run.identity, []).append(run)
    rows = [Row(group) for group in groups.values()]
    usual = {name: values.most_common(1)[0][0] for name, values in count_settings(runs).items()}
    for row in rows:
        row.note = ", ".join(
            f"{name.replace('_', '-')} {value}" for name, value in row.run.settings.items() if value != usual.get(name)
        )
    rows.sort(key=_order)
    references = References(runs)
    for row in rows:
        row.scaling = scaling(row, rows)
        row.difference = references.difference(row)
    return rows


def _order(row: Row) -> tuple[Any, ...]:
    run = row.run
    return (row.framework, row.note, run.options["strategy"] != "single", row.strategy, run.replicas, run.ranks)


def count_settings(runs: Iterable[Run]) -> dict[str, Counter[str]]:
    """setting: how many of the runs have which value."""
    counts: dict[str, Counter[str]] = {}
    for run in runs:
        for name, value in run.settings.items():
            counts.setdefault(name, Counter())[value] += 1
    return counts


def scaling(row: Row, rows: list[Row]) -> Scaling | None:
    """The row against that of one replica: strategy single, else its own strategy; None where there is none."""
    run, measured = row.run, row.images_per_s
    weak = run.options["batch_scope"] == "per-rank" and run.ranks > 1
    bases = [
        (preference, sum(run.settings[name] != base.run.settings.get(name) for name in run.settings), number)
        for number, base in enumerate(rows)
        if (preference := _preference(run, base.run)) is not None
        and base.run.global_batch * (run.replicas if weak else 1) == run.global_batch
        and base.images_per_s
    ]
    if not bases or not measured:
        return None
    base = rows[min(bases)[2]]
    assert base.images_per_s
    speedup, p = measured.median / base.images_per_s.median, run.replicas
    serial = karp_flatt(speedup, p) if p > 1 and not weak else None
    return Scaling("weak" if weak else "strong", base, speedup, speedup / p, serial)


def _preference(run: Run, base: Run) -> int | None:
    """How well `base` stands for one replica of `run`, 0 best; None where it does not."""
    alike = all(run.settings.get(name) == base.settings.get(name) for name in (*DECIDE_SPEED, "device", "machine"))
    if not alike or base.replicas > 1 or base.options["framework"] != run.options["framework"]:
        return None
    if base.options["strategy"] == "single":
        return 0 if base.options["api"] == run.options["api"] else 1 if base.options["api"] == "auto" else 2
    return 3 if base.strategy == run.strategy else None


def karp_flatt(speedup: float, replicas: int) -> float:
    """Experimentally determined serial fraction, (1 / S - 1 / p) / (1 - 1 / p).

    Karp and Flatt, Measuring parallel processor performance, CACM 33(5), 1990.
    """
    return (1 / speedup - 1 / replicas) / (1 - 1 / replicas)


class References:
    """Runs of one process, which others that train the same network on the same batches should equal."""

    def __init__(self, runs: list[Run]) -> None:
        self._checkpoints: dict[Path, Checkpoint | None] = {}
        self._runs: dict[tuple[Any, ...], list[Run]] = {}
        for run in sorted(runs, key=lambda run: (run.options["api"] != "auto", str(run.folder))):
            if run.options["strategy"] == "single" and run.replicas == 1:
                self._runs.setdefault(self._training(run), []).append(run)

    @staticmethod
    def _training(run: Run) -> tuple[Any, ...]:
        """What decides the parameters at the end, however ranks meet.

        The linear scaling rule makes the batch of --batch-scope per-rank, and its learning rate, those of one process.
        """
        options = {name: value for name, value in run.options.items() if name not in HOW_RANKS_MEET}
        scale = run.ranks if options.pop("batch_scope") == "per-rank" else 1
        options["lr"] = f"{options['lr'] * scale:.9g}"
        options["batch_size"] = run.global_batch
        return (run.steps, *sorted((name, str(value)) for name, value in options.items()))

    def difference(self, row: Row) -> Difference | None:
        """The largest over the row's runs; None where no run of one process is comparable."""
        pairs = [(run, reference) for run in row.runs if (reference := self._reference(run))]
        if not pairs:
            return None
        others = [(run, reference) for run, reference in pairs if run is not reference]
        found = [(self._largest(run, reference), reference) for run, reference in others]
        return Difference(*max(found, key=lambda one: one[0])) if found else Difference(None, pairs[0][1])

    def _reference(self, run: Run) -> Run | None:
        """The run of one process to compare with, of the same framework where there is one."""
        alike = self._runs.get(self._training(run), [])
        own = self._end(run)
        for candidate in sorted(alike, key=lambda one: one.options["framework"] != run.options["framework"]):
            end = self._end(candidate)
            if own and end and own.data == end.data and _shapes(own) == _shapes(end):
                return candidate
        return None

    def _end(self, run: Run) -> Checkpoint | None:
        """The checkpoint of a run's last step; None where it is gone, damaged or not finite."""
        if run.folder not in self._checkpoints:
            try:
                saved = checkpoints.newest(run.folder)[1]
            except (UserError, OSError):
                saved = None
            whole = saved and saved.position.step == run.steps and _finite(saved)
            self._checkpoints[run.folder] = saved if whole else None
        return self._checkpoints[run.folder]

    def _largest(self, run: Run, reference: Run) -> float:
        own, other = self._end(run), self._end(reference)
        assert own and other
        names = own.weights
        return max(float(np.abs(np.subtract(own.weights[n], other.weights[n], dtype=np.float64)).max()) for n in names)


def _finite(saved: Checkpoint) -> bool:
    return bool(saved.weights) and all(value.size and np.isfinite(value).all() for value in saved.weights.values())


def _shapes(saved: Checkpoint) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in saved.weights.items()}


def count_of(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
