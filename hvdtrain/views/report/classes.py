"""Test accuracy of each class, over the runs that are compared."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from hvdtrain.views.report.runs import FinishedRun

MOST = 20
"""Classes that are listed, those of the lowest accuracy first."""


def class_lines(runs: Iterable[FinishedRun]) -> list[str]:
    """A line for each class: its name, and the median of the runs' accuracies with minimum and maximum."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for name, accuracy in run.per_class.items():
            found.setdefault(name, []).append(accuracy)
    by_median = sorted(found, key=lambda name: (statistics.median(found[name]), name))
    lines = [f"{name}: {_text(found[name])}" for name in by_median[:MOST]]
    return lines + [f"{len(by_median) - MOST} more classes with higher accuracies"] * (len(by_median) > MOST)


def _text(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{statistics.median(values):.4f}" + (f" ({low:.4f} to {high:.4f})" if low != high else "")
