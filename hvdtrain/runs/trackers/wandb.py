"""Weights & Biases: a run of hvdtrain is a run of W&B with the same id."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import wandb

from hvdtrain.runs.metrics import NAME, MetricsReader
from hvdtrain.runs.trackers import Tracker, scalars
from hvdtrain.system.network import is_offline
from hvdtrain.system.text import printable

PROJECT = "hvdtrain"
"""Where WANDB_PROJECT names no other."""
LOGIN_S = 1.0
"""How long W&B may ask for a key on a terminal, which training does not wait for."""


class WeightsAndBiases(Tracker):
    """Logs the options as W&B's config, and the records as its history.

    What a process that was killed had not sent, and offline had not written, comes from the run's folder when the run
    is resumed. The steps of W&B's history only increase, so that it has those that are repeated once.
    """

    def start(self, run_id: str, config: dict[str, Any]) -> None:
        folder = Path(config["folder"])
        offline = is_offline() or os.environ.get("WANDB_MODE") == "offline"
        self._run = wandb.init(
            id=run_id,
            resume=None if offline else "allow",  # offline, each part has all records up to its end
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=printable(folder.name),
            dir=os.environ.get("WANDB_DIR") or str(folder),
            config={name: config.get(name) for name in ("config", "ranks", "device", "controller", "versions")},
            mode="offline" if offline else None,
            reinit="create_new",
            settings=wandb.Settings(
                console="off",  # the ranks' output stays here
                silent=True,
                disable_git=True,
                disable_code=True,
                x_disable_meta=True,  # it has the command line, which may have a password in --on-end
                login_timeout=LOGIN_S,
                stop_fn=lambda: None,  # else its web page could interrupt training
            ),
        )
        # Those of the steps before this process began, which may already have added others.
        earlier = MetricsReader(folder / NAME).read().all() if config["step"] else ()
        for record in earlier:
            if record["step"] <= config["step"]:
                self.log(record)

    def log(self, record: dict[str, Any]) -> None:
        values = scalars(record)
        if values and record["step"] >= self._run.step:
            self._run.log(values, step=record["step"])

    def end(self, status: str) -> None:
        self._run.summary["hvdtrain_status"] = status
        self._run.finish(exit_code=int(status == "failed"))
