"""The curves of runs for charts: thinned, and read again only where something was appended."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from hvdtrain.runs.changes import Changes
from hvdtrain.runs.metrics import CURVES, NAME, MetricsReader

MAX_POINTS = 800
"""Of one curve; a chart is about as many pixels wide."""
MAX_READERS = 24
"""Runs whose records are kept, so that only what was appended is read. Records of 10,000 steps take some 10 MB."""
MAX_CHANGES = 100
"""Changes of ranks that are shown: the newest."""


class CurveStore:
    """The records of the runs that were asked for last. All methods may be called by several threads."""

    def __init__(self) -> None:
        self._readers: OrderedDict[Path, MetricsReader] = OrderedDict()
        self._lock = threading.Lock()

    def curves(self, folder: Path) -> dict[str, Any]:
        """The curves of a run by their names, and what happened to its ranks."""
        with self._lock:
            reader = self._readers.pop(folder, None) or MetricsReader(folder / NAME)
            if reader.read().error:  # what was read before is gone
                reader = MetricsReader(folder / NAME)
            self._readers[folder] = reader
            if len(self._readers) > MAX_READERS:
                self._readers.popitem(last=False)
            named = {name: reader.curve(name) for name in (*CURVES, *reader.metrics())}
            thinned = {name: curve.thinned(MAX_POINTS) for name, curve in {**reader.logged(), **named}.items() if curve}
            found = Changes.of(reader)
        curves = {
            name: {"epochs": _short(curve.epochs), "steps": curve.steps, "values": _short(curve.values)}
            for name, curve in thinned.items()
        }
        last = [change._asdict() for change in found.changes[-MAX_CHANGES:]]
        return {"curves": curves, "changes": {"summary": found.summary, "last": last}}


def _short(values: list[float]) -> list[float]:
    """Values with the digits that a chart shows, as they are sent as text."""
    return [float(f"{value:.6g}") for value in values]
