"""MLflow: a run of hvdtrain is a run of MLflow, found again by hvdtrain's id."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from hvdtrain.runs.trackers import Tracker, scalars
from hvdtrain.system.text import printable

TAG = "hvdtrain.run_id"
EXPERIMENT = "hvdtrain"
"""Where MLFLOW_EXPERIMENT_NAME names no other."""
FILES = "mlruns"
"""The folder next to the runs' folders that holds MLflow's files where MLFLOW_TRACKING_URI names no server."""
NOT_IN_NAMES = re.compile(r"[^\w\-. :/]", re.ASCII)
NAME_CHARACTERS, VALUE_CHARACTERS, BATCH = 250, 500, 100
"""What MLflow accepts."""
STATUSES = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MLflow(Tracker):
    """Logs the options as parameters and the records as metrics.

    MLflow keeps all values that a metric had at a step, so records that the run had before are not logged again.
    """

    def start(self, run_id: str, config: dict[str, Any]) -> None:
        folder = Path(config["folder"])
        self._client = MlflowClient(tracking_uri=_store(folder))
        self._experiment = self._find_experiment()
        found = self._client.search_runs([self._experiment], f"tags.`{TAG}` = '{run_id}'", max_results=1)
        earlier = found[0] if found else None
        self._continued = earlier is not None
        tags = {TAG: run_id, "hvdtrain.folder": printable(str(folder))}
        run = earlier or self._client.create_run(self._experiment, tags=tags, run_name=printable(folder.name))
        self._id = run.info.run_id
        if earlier:
            self._client.update_run(self._id, status="RUNNING")
        new = [Param(name, value) for name, value in _parameters(config) if name not in run.data.params]
        for first in range(0, len(new), BATCH):
            self._client.log_batch(self._id, params=new[first : first + BATCH])

    def log(self, record: dict[str, Any]) -> None:
        values = scalars(record)
        if not values or (self._continued and record["repeated"]):
            return
        at = int(record.get("time", time.time()) * 1000)
        self._client.log_batch(
            self._id,
            metrics=[Metric(_name(name), value, at, record["step"]) for name, value in values.items()],
        )

    def end(self, status: str) -> None:
        self._client.set_terminated(self._id, status=STATUSES.get(status, "FAILED"))

    def _find_experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        experiment = self._client.get_experiment_by_name(name)
        return experiment.experiment_id if experiment else self._client.create_experiment(name)


def _store(folder: Path) -> str | None:
    """Where the runs are stored; None for what MLFLOW_TRACKING_URI says."""
    if os.environ.get("MLFLOW_TRACKING_URI"):
        return None
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # else MLflow 3 asks for a database
    return (folder.parent / FILES).as_uri()


def _parameters(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The options that decide the results, and on what the run trains."""
    values = {**config["config"], **{name: config.get(name, "") for name in ("ranks", "device", "controller")}}
    for name, value in values.items():
        yield _name(name), printable(str(value))[:VALUE_CHARACTERS]


def _name(text: str) -> str:
    return NOT_IN_NAMES.sub("_", text)[:NAME_CHARACTERS]
