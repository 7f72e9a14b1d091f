"""How much slower one rank is than the others, over the time of a run."""

from __future__ import annotations

from statistics import fmean, median
from typing import Any

MOST_POINTS = 240
"""Of more logging steps, neighbours are averaged."""
MOST_SAMPLES = 4 * MOST_POINTS
"""Logging steps that are looked at."""
MOST_LINES = 8
"""Of more ranks, only those that were slowest lately have a line, and the others are within the band."""
SLOWEST = 3
MOST_S = 1e9
"""A longer logging step is none."""


def spread(parts: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Each rank's own time, computing and waiting for data, as a multiple of the median rank's, by logging step.

    parts: as `CurveReader.parts` has them, at most MOST_SAMPLES. Returns steps, epochs, the least and the greatest
    multiple, and a line for each rank that is shown alone; None for a run of one rank, or one that measured nothing.
    """
    rows = [row for row in ({**part, "own": _own(part)} for part in parts) if row["own"]]
    size = len(rows[-1]["own"]) if rows else 0
    rows = [row for row in rows if len(row["own"]) == size]
    if size < 2:
        return None
    groups = _groups(rows)
    ratios = [_ratios(group) for group in groups]
    shown = range(size) if size <= MOST_LINES else _slowest(ratios)
    return {
        "ranks": size,
        "knows_waiting": bool(rows[-1]["communicate_s"]),
        "steps": [group[-1]["step"] for group in groups],
        "epochs": [group[-1]["epoch"] for group in groups],
        "least": [round(min(one), 4) for one in ratios],
        "greatest": [round(max(one), 4) for one in ratios],
        "lines": [{"rank": rank, "values": [round(one[rank], 4) for one in ratios]} for rank in shown],
    }


def _own(part: dict[str, Any]) -> list[float]:
    """The time of each rank in which it did not wait for others."""
    compute, data = part["compute_s"], part["data_s"]
    own = [one + other for one, other in zip(compute, data, strict=True)] if len(data) == len(compute) else compute
    return own if max(own, default=MOST_S) < MOST_S else []


def _groups(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    count = min(len(rows), MOST_POINTS)
    return [rows[number * len(rows) // count : (number + 1) * len(rows) // count] for number in range(count)]


def _ratios(group: list[dict[str, Any]]) -> list[float]:
    own = [fmean(values) for values in zip(*(row["own"] for row in group), strict=True)]
    middle = median(own)
    return [value / middle if middle > 0 else 1.0 for value in own]


def _slowest(ratios: list[list[float]]) -> list[int]:
    """The ranks that were slowest in the last quarter."""
    last = ratios[-max(len(ratios) // 4, 1) :]
    means = [fmean(values) for values in zip(*last, strict=True)]
    return sorted(sorted(range(len(means)), key=means.__getitem__)[-SLOWEST:])
