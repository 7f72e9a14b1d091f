"""How far the parameters of runs are from those of a single process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hvdtrain.config.option import facts
from hvdtrain.config.options import Config
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Checkpoint
from hvdtrain.runs import checkpoints
from hvdtrain.views.report.rows import Row, WeightDifference
from hvdtrain.views.report.runs import LAYERS, FinishedRun

OF_DISTRIBUTION = [name for name, about in facts(Config).items() if about.only_distributes]
"""Options that only decide how the work is distributed, so a single process may differ in them."""


class References:
    """Runs of a single process; other runs with the same network and batches should end with equal parameters."""

    def __init__(self, runs: list[FinishedRun]) -> None:
        self._checkpoints: dict[Path, Checkpoint | None] = {}
        self._references: dict[tuple[Any, ...], list[FinishedRun]] = {}
        for run in sorted(runs, key=lambda run: (run.options["api"] != "auto", str(run.folder))):
            if run.options["strategy"] == "single" and run.replicas == 1:
                self._references.setdefault(_training(run), []).append(run)

    def difference(self, row: Row) -> WeightDifference | None:
        """The largest difference over the row's runs; None if no run of a single process is comparable."""
        pairs = [(run, reference) for run in row.runs if (reference := self._reference(run))]
        if not pairs:
            return None
        others = [(run, reference) for run, reference in pairs if run is not reference]
        found = [(self._largest(run, reference), reference) for run, reference in others]
        return WeightDifference(*max(found, key=lambda one: one[0])) if found else WeightDifference(None, pairs[0][1])

    def _reference(self, run: FinishedRun) -> FinishedRun | None:
        """The run of a single process to compare with, preferably of the same framework."""
        candidates = self._references.get(_training(run), [])
        own = self._last_checkpoint(run)
        for candidate in sorted(candidates, key=lambda one: one.options["framework"] != run.options["framework"]):
            other = self._last_checkpoint(candidate)
            if own and other and own.data == other.data and _shapes(own) == _shapes(other):
                return candidate
        return None

    def _last_checkpoint(self, run: FinishedRun) -> Checkpoint | None:
        """The checkpoint of a run's last step; None if it is missing, damaged or not finite."""
        if run.folder not in self._checkpoints:
            try:
                saved = checkpoints.newest(run.folder)[1]
            except (UserError, OSError):
                saved = None
            usable = saved and saved.position.step == run.steps and _is_finite(saved)
            self._checkpoints[run.folder] = saved if usable else None
        return self._checkpoints[run.folder]

    def _largest(self, run: FinishedRun, reference: FinishedRun) -> float:
        own, other = self._last_checkpoint(run), self._last_checkpoint(reference)
        assert own and other
        differences = (np.subtract(value, other.weights[name], dtype=np.float64) for name, value in own.weights.items())
        return max(float(np.abs(one).max()) for one in differences)


def _training(run: FinishedRun) -> tuple[Any, ...]:
    """What decides the parameters at the end, however the work is distributed.

    By the linear scaling rule, --batch-scope per-rank has the batch and the learning rate of a single process with the
    global batch.
    """
    options = {name: value for name, value in run.options.items() if name not in OF_DISTRIBUTION}
    scale = run.ranks if options.pop("batch_scope") == "per-rank" else 1
    options["lr"] = f"{options['lr'] * scale:.9g}"
    options["batch_size"] = run.global_batch
    return (run.steps, run.settings.get(LAYERS), *sorted((name, str(value)) for name, value in options.items()))


def _is_finite(saved: Checkpoint) -> bool:
    return bool(saved.weights) and all(value.size and np.isfinite(value).all() for value in saved.weights.values())


def _shapes(saved: Checkpoint) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in saved.weights.items()}
