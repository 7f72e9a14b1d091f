"""The runs that the page shows, and their curves: read in one place, for any number of clients, where they are new."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hvdtrain.errors import UserError
from hvdtrain.runs.changes import Changes
from hvdtrain.runs.history import HistoryReader
from hvdtrain.runs.metrics import CURVES, NAME
from hvdtrain.runs.search import find_runs
from hvdtrain.system.files import changed_at_ns
from hvdtrain.system.text import printable
from hvdtrain.views.listing import differing_options
from hvdtrain.views.run_state import RankView
from hvdtrain.views.run_view import RunFollower

READ_EVERY_S = 0.5
"""Clients that ask more often get what was read last."""
SHARE = 0.2
"""Of a slow folder, reading takes at most this share of the time."""
SETTLED_S = 3.0
"""A run that is over is not read again if its files were older than this when it was read."""
MAX_OPTIONS = 6
"""Of more options that differ between runs, those in which fewest do have no column."""
FOLDERS = ("", "heartbeats", "logs")
"""Folders of a run whose files are read."""


class ListedRun:
    """One run, and when it was read.

    name: what it is addressed by. root: the folder that it was found in, out of which no link of it leads.
    """

    def __init__(self, name: str, folder: Path, root: Path) -> None:
        self.name, self.folder, self.root = name, folder, root
        self.values: dict[str, Any] = {}
        self.ranks: tuple[RankView, ...] = ()
        self.is_left_out = False
        """Whether a link in it leads out of `root`."""
        self._follower = RunFollower(folder)
        self._signature: tuple[int, ...] = ()
        self._is_settled = False

    def read(self) -> None:
        """Read it unless it is over and its files are the same."""
        signature = tuple(changed_at_ns(self.folder / name) for name in ("", "heartbeats", "end.json", "metrics.jsonl"))
        if self._is_settled and signature == self._signature:
            return
        self.is_left_out = leads_out(self.folder, self.root)
        if self.is_left_out:
            return
        view = self._follower.look()
        self.values = {**view.values, "name": self.name}
        self.ranks, self._signature = view.ranks, signature
        self._is_settled = view.state.is_over and max(signature) < (time.time() - SETTLED_S) * 1e9


class Listing:
    """The runs at or below some paths. All methods may be called by several threads."""

    def __init__(self, paths: list[Path]) -> None:
        paths = list({path.resolve(): path for path in paths}.values())
        self._roots = {_label(path, paths): path for path in paths}
        self._runs: dict[str, ListedRun] = {}
        self._lock = threading.Lock()
        self._next_s = 0.0

    def values(self) -> dict[str, Any]:
        with self._lock:
            self._read()
            runs = [run.values for run in self._runs.values() if not run.is_left_out]
            names = differing_options([run["options"] for run in runs])[:MAX_OPTIONS]
            return {
                "options": names,
                "folders": [printable(str(path)) for path in self._roots.values()],
                "left_out": [run.name for run in self._runs.values() if run.is_left_out],
                "runs": [{**run, "options": {name: run["options"].get(name, "") for name in names}} for run in runs],
            }

    def run(self, name: str) -> ListedRun | None:
        """The run of that name, read just now; also by the name of its folder, where only one has it. None for none."""
        with self._lock:
            self._read()
            found = [run for full, run in self._runs.items() if name == full.rpartition("/")[2]]
            run = self._runs.get(name) or (found[0] if len(found) == 1 else None)
            return None if run is None or run.is_left_out else run

    def _read(self) -> None:
        began = time.monotonic()
        if began < self._next_s:
            return
        known, self._runs = self._runs, {}
        for name, (folder, root) in self._find().items():
            run = known.get(name)
            self._runs[name] = run if run and run.folder == folder else ListedRun(name, folder, root)
            self._runs[name].read()
        ended = time.monotonic()
        self._next_s = ended + max(READ_EVERY_S, (ended - began) * (1 / SHARE - 1))

    def _find(self) -> dict[str, tuple[Path, Path]]:
        """The folder of each run by its name, and the folder that it was found in."""
        places: dict[str, tuple[Path, Path]] = {}
        for label, root in self._roots.items():
            with contextlib.suppress(UserError):  # removed, or for the moment not reachable
                for folder in find_runs(root):
                    name = printable(folder.name or folder.resolve().name)
                    places.setdefault(f"{label}/{name}" if len(self._roots) > 1 else name, (folder, root))
        return places


def _label(path: Path, others: list[Path]) -> str:
    """A short name for a path: its last parts, as many as tell it from the others."""
    parts = path.resolve().parts[1:] or ("root",)
    count = 1
    while count < len(parts) and sum(other.resolve().parts[-count:] == parts[-count:] for other in others) > 1:
        count += 1
    return printable("/".join(parts[-count:]))


def leads_out(folder: Path, root: Path) -> bool:
    """Whether a run's folder, or something in it that is read, is a symbolic link to outside of `root`."""
    if not _is_inside(folder, root):
        return True
    return any(not _is_inside(path, root) for name in FOLDERS for path in _links(folder / name))


def _links(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_symlink()]
    except OSError:
        return []


def _is_inside(path: Path | str, root: Path) -> bool:
    real = os.path.realpath(path)
    return Path(real).is_relative_to(os.path.realpath(root))


MAX_POINTS = 800
"""Of one curve; a chart is about as many pixels wide."""
MAX_READERS = 24
"""Runs whose records are kept, so that only what was appended is read. Records of 10,000 steps take some 10 MB."""
MAX_CHANGES = 100
"""Changes of ranks that are shown: the newest."""


LOCK = threading.Lock()


@functools.lru_cache(MAX_READERS)
def _reader(folder: Path) -> HistoryReader:
    """The reader of a run's records, kept with what it has read."""
    return HistoryReader(folder / NAME)


def read_curves(folder: Path) -> dict[str, Any]:
    """The curves and the changes of ranks of a run. It may be called by several threads."""
    with LOCK:
        reader = _reader(folder)
        if reader.read().error:  # what was read before is gone
            reader = HistoryReader(folder / NAME)
        thinned = {name: curve.thinned(MAX_POINTS) for name, curve in reader.curves(CURVES).items() if curve}
        part, found = reader.part, Changes.of(reader)
    curves = {
        name if name in CURVES else name.removeprefix(f"{part} "): {
            "epochs": shortened(curve.epochs), "steps": curve.steps, "values": shortened(curve.values),
        }
        for name, curve in thinned.items()
    }  # fmt: skip
    last = [change._asdict() for change in found.changes[-MAX_CHANGES:]]
    return {"curves": curves, "changes": {"summary": found.summary, "last": last}}


def shortened(values: Iterable[float]) -> list[float]:
    """Values with the digits that a chart shows, as they are sent as text."""
    return [float(f"{value:.6g}") for value in values]
