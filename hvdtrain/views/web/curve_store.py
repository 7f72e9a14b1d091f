"""The curves that the page draws: thinned to what a screen shows, and kept until a run's metrics change."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.views.monitor.curves import FIGURES, CurveReader, thinned
from hvdtrain.views.web.spread import MOST_SAMPLES, spread

MOST_POINTS = 800
"""Of one curve; a chart is about as many pixels wide."""
MOST_RUNS = 64
"""Runs whose curves are kept."""
MOST_READERS = 24
"""Runs whose records are kept, too, so that only what was appended is read. Records of 10,000 steps take some 10 MB."""


class Drawn(NamedTuple):
    """What the page draws of a run's metrics, and the state of the file that it is from."""

    signature: tuple[int, ...]
    values: dict[str, Any]


class CurveStore:
    """The curves of the runs that were asked for last. All methods may be called by several threads."""

    def __init__(self) -> None:
        self._drawn: OrderedDict[Path, Drawn] = OrderedDict()
        self._readers: OrderedDict[Path, CurveReader] = OrderedDict()
        self._lock = threading.Lock()

    def curves(self, folder: Path, is_over: bool) -> dict[str, Any]:
        """The curves of a run by their names, and the spread of its ranks.

        is_over: whether nothing more is appended soon, so that its records need not be kept.
        """
        signature = _signature(folder / "metrics.jsonl")
        with self._lock:
            kept = self._drawn.get(folder)
            if kept is None or kept.signature != signature:
                kept = Drawn(signature, self._draw(folder, is_over))
            _keep(self._drawn, folder, kept, MOST_RUNS)
            return kept.values

    def _draw(self, folder: Path, is_over: bool) -> dict[str, Any]:
        reader = self._readers.pop(folder, None) or CurveReader(folder)
        reader.read()
        if not is_over:
            _keep(self._readers, folder, reader, MOST_READERS)
        curves = {}
        for name in FIGURES:
            if curve := thinned(reader.curve(name), MOST_POINTS):
                curves[name] = {
                    "epochs": _short(curve.epochs), "steps": curve.steps, "values": _short(curve.values)
                }  # fmt: skip
        return {"curves": curves, "spread": spread(reader.parts(MOST_SAMPLES))}


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
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
