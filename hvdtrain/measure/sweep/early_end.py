"""Trials of a search that end early, as they do worse than others."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from hvdtrain.errors import Stopped
from hvdtrain.measure.sweep.study import signed
from hvdtrain.runs import metrics
from hvdtrain.runs.metrics import EVALUATIONS, MetricsReader, metrics_of
from hvdtrain.runs.run import Run
from hvdtrain.system.run_end import Failure, RunEnd
from hvdtrain.system.text import finite_number

if TYPE_CHECKING:
    import optuna

STOP = "STOP"
"""In a run's folder, the file that asks it to stop."""


class EarlyEnd:
    """Watches the run of a trial while it trains, and asks it to stop when its scores are worse than others."""

    def __init__(self, trial: optuna.Trial, folder: Path) -> None:
        """folder: of the run."""
        self._trial, self._folder = trial, folder
        self._reported = len(trial.storage.get_trial(trial._trial_id).intermediate_values)
        self._reader = MetricsReader(folder / metrics.NAME, only=EVALUATIONS)
        self._reason = ""

    def look(self) -> None:
        """Report the evaluations since the last look; ask the run to stop if it is to end."""
        if self._reason:
            return
        run = Run(self._folder)
        records = self._reader.read().of_kind(self._reader.part)
        scores = [run.score_of(finite_number(record.get("loss")), metrics_of(record)) for record in records]
        for number in range(self._reported + 1, len(scores) + 1):
            self._reported, score = number, scores[number - 1]
            self._trial.report(signed(score), number)
            if self._trial.should_prune():
                shown_score = f"{score.title} {score.value:.4g}" if score else "no finite score"
                self._reason = f"after evaluation {number}: {shown_score} is worse than that of other trials"
                with contextlib.suppress(OSError):  # it then trains to its end
                    (self._folder / STOP).touch()
                return

    def excuse(self) -> str:
        """Why the run ended early, which is then recorded in its folder; empty where it did not for this reason."""
        with contextlib.suppress(OSError):
            (self._folder / STOP).unlink(missing_ok=True)  # of a run that had ended already
        end = RunEnd.read(self._folder)
        if not self._reason or not end or end.status != "stopped":
            return ""
        RunEnd("pruned", Stopped.exit_status, Failure(self._reason, stands_alone=True)).write(self._folder)
        return f"pruned {self._reason}"
