"""The curves that the page draws, how much slower one rank is than the others, and which ranks left and joined.

They are thinned to what a screen shows, and kept until the run's metrics change.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from hvdtrain.runs.changes import Changes
from hvdtrain.runs.metrics import CURVES, NAME, MetricsReader
from hvdtrain.runs.rank_times import RankTimes

MAX_POINTS = 800
"""Of one curve; a chart is about as many pixels wide."""
MAX_RUNS = 64
"""Runs whose curves are kept."""
MAX_READERS = 24
"""Runs whose records are also kept, so that only what was appended is read. Records of 10,000 steps take some 10 MB."""
MAX_GROUPS = 240
"""Of more logging steps, neighbors are averaged."""
MAX_SAMPLES = 4 * MAX_GROUPS
"""Logging steps that are looked at."""
MAX_LINES = 8
"""Of more ranks, only those that were slowest lately have a line, and the others are within the band."""
SLOWEST = 3
MAX_CHANGES = 100
"""Changes of ranks that are shown: the newest."""
MAX_S = 1e9
"""A longer logging step does not count."""


class Drawn(NamedTuple):
    """What the page draws of a run's metrics, and the state of the file that it is from."""

    signature: tuple[int, ...]
    values: dict[str, Any]


class CurveStore:
    """The curves of the runs that were asked for last. All methods may be called by several threads."""

    def __init__(self) -> None:
        self._drawn: OrderedDict[Path, Drawn] = OrderedDict()
        self._readers: OrderedDict[Path, MetricsReader] = OrderedDict()
        self._lock = threading.Lock()

    def curves(self, folder: Path, is_over: bool) -> dict[str, Any]:
        """The curves of a run by their names, the spread of its ranks, and what happened to them.

        is_over: whether nothing more is appended soon, so that its records need not be kept.
        """
        signature = _signature(folder / NAME)
        with self._lock:
            kept = self._drawn.get(folder)
            if kept is None or kept.signature != signature:
                kept = Drawn(signature, self._draw(folder, is_over))
            _keep(self._drawn, folder, kept, MAX_RUNS)
            return kept.values

    def _draw(self, folder: Path, is_over: bool) -> dict[str, Any]:
        reader = self._readers.pop(folder, None) or MetricsReader(folder / NAME)
        reader.read()
        if not is_over:
            _keep(self._readers, folder, reader, MAX_READERS)
        curves = {}
        named = {name: reader.curve(name) for name in (*CURVES, *reader.metrics())}
        for name, whole in {**reader.logged(), **named}.items():
            if curve := whole.thinned(MAX_POINTS):
                curves[name] = {
                    "epochs": _short(curve.epochs), "steps": curve.steps, "values": _short(curve.values)
                }  # fmt: skip
        found = Changes.of(reader)
        changes = {"summary": found.summary, "last": [change._asdict() for change in found.changes[-MAX_CHANGES:]]}
        return {"curves": curves, "spread": spread(reader.rank_times(MAX_SAMPLES)), "changes": changes}


def _keep(store: OrderedDict[Path, Any], folder: Path, value: Any, most: int) -> None:
    """Make it the newest of at most so many."""
    store[folder] = value
    store.move_to_end(folder)
    if len(store) > most:
        store.popitem(last=False)


def _short(values: list[float]) -> list[float]:
    """Values with the digits that a chart shows, as they are sent as text."""
    return [float(f"{value:.6g}") for value in values]


def _signature(path: Path) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def spread(intervals: list[RankTimes]) -> dict[str, Any] | None:
    """The time of each rank for its own rows, as a multiple of the median rank's, by logging step.

    intervals: at most MAX_SAMPLES. Returns steps, epochs, the least and the greatest multiple, and a line for each rank
    that is shown alone, with None where it was not there; None for a run of one rank, or one that measured nothing.
    """
    intervals = [interval for interval in intervals if max(time.local for time in interval.times.values()) < MAX_S]
    ranks = sorted({rank for interval in intervals for rank in interval.times})
    if len(ranks) < 2:
        return None
    groups = _groups(intervals)
    ratios = [_ratios(group) for group in groups]
    shown = ranks if len(ranks) <= MAX_LINES else _slowest(ratios)
    return {
        "ranks": len(ranks),
        "knows_waiting": all(time.communicate is not None for time in intervals[-1].times.values()),
        "steps": [group[-1].step for group in groups],
        "epochs": [group[-1].epoch for group in groups],
        "least": [min(of_ranks.values()) for of_ranks in ratios],
        "greatest": [max(of_ranks.values()) for of_ranks in ratios],
        "lines": [{"rank": rank, "values": [of_ranks.get(rank) for of_ranks in ratios]} for rank in shown],
    }


def _groups(intervals: list[RankTimes]) -> list[list[RankTimes]]:
    count = min(len(intervals), MAX_GROUPS)
    return [
        intervals[number * len(intervals) // count : (number + 1) * len(intervals) // count] for number in range(count)
    ]


def _ratios(group: list[RankTimes]) -> dict[int, float]:
    """By rank, of those that were there in one of these logging steps."""
    seconds: dict[int, list[float]] = {}
    for interval in group:
        for rank, time in interval.times.items():
            seconds.setdefault(rank, []).append(time.local)
    means = {rank: fmean(of_rank) for rank, of_rank in seconds.items()}
    middle = median(means.values())
    return {rank: round(mean / middle, 4) if middle > 0 else 1.0 for rank, mean in means.items()}


def _slowest(ratios: list[dict[int, float]]) -> list[int]:
    """The ranks that were slowest in the last quarter."""
    seen: dict[int, list[float]] = {}
    for of_ranks in ratios[-max(len(ratios) // 4, 1) :]:
        for rank, ratio in of_ranks.items():
            seen.setdefault(rank, []).append(ratio)
    means = {rank: fmean(values) for rank, values in seen.items()}
    return sorted(sorted(means, key=means.__getitem__)[-SLOWEST:])
