"""Prometheus: the newest values of a run in a text file, for the node exporter's textfile collector."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from hvdtrain.runs.trackers import Tracker, numbers, numbers_of_ranks
from hvdtrain.system.text import printable

FOLDER = "HVDTRAIN_PROMETHEUS_DIR"
"""Environment variable: the folder that the node exporter reads; without it the file is in the run's folder."""
STATUSES = ("training", "finished", "stopped", "failed")


class Prometheus(Tracker):
    """Writes the file after each record, atomically.

    Names of values are labels, as a task's metrics may have any name.
    """

    def start(self, run_id: str, config: dict[str, Any]) -> None:
        folder = os.environ.get(FOLDER)
        self._path = Path(folder, f"hvdtrain-{run_id}.prom") if folder else Path(config["folder"], "metrics.prom")
        self._labels = {"run": printable(Path(config["folder"]).name), "run_id": run_id}
        self._registry = CollectorRegistry()
        self._ranks: dict[tuple[str, str], set[int]] = {}
        """The ranks that have a value, by kind and name."""
        self._value = self._gauge("value", "Newest value of a run's records", "kind", "name")
        self._rank_value = self._gauge("rank_value", "Newest value of each rank", "kind", "name", "rank")
        self._step = self._gauge("step", "Training steps that are done")
        self._time = self._gauge("record_time_seconds", "When the newest record was made")
        self._status = self._gauge("run_status", "1 for what the run is doing, or how it ended", "status")
        self._step.labels(**self._labels).set(config["step"])
        self._write("training")

    def log(self, record: dict[str, Any]) -> None:
        kind = printable(record["kind"])
        self._step.labels(**self._labels).set(record["step"])
        self._time.labels(**self._labels).set(record.get("time", time.time()))
        for name, value in numbers(record):
            self._value.labels(**self._labels, kind=kind, name=printable(name)).set(value)
        for name, values in numbers_of_ranks(record):
            self._set_of_ranks(kind, printable(name), values)
        self._write("training")

    def _set_of_ranks(self, kind: str, name: str, values: dict[int, float]) -> None:
        """Set the values of the ranks that are there, and remove those of others."""
        for rank in self._ranks.get((kind, name), set()) - values.keys():
            self._rank_value.remove(*self._labels.values(), kind, name, rank)
        for rank, value in values.items():
            self._rank_value.labels(**self._labels, kind=kind, name=name, rank=rank).set(value)
        self._ranks[kind, name] = set(values)

    def end(self, status: str) -> None:
        self._write(status)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"hvdtrain_{name}", text, [*self._labels, *labels], registry=self._registry)

    def _write(self, status: str) -> None:
        for known in STATUSES:
            self._status.labels(**self._labels, status=known).set(known == status)
        write_to_textfile(str(self._path), self._registry)
