"""A script with a training loop of its own (`hvdtrain.start`): its rows, and how the loop knows them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvdtrain.interfaces import Dataset
from hvdtrain.tasks.own import OwnTask, as_source

DECIDED_BY_SCRIPT = (
    "accumulate",
    "batch_norm",
    "compile",
    "data",
    "image_size",
    "init",
    "lr",
    "lr_gamma",
    "lr_step_epochs",
    "momentum",
    "nesterov",
    "optimizer",
    "precision",
    "recipe",
    "schedule",
    "set",
    "warmup_epochs",
    "weight_decay",
)
"""Options of `Config` that have no meaning where a script makes its model, its data and its optimizer."""


class Script(OwnTask):
    """A script, which makes its model and its steps by itself. name: that of its file."""

    kind = "script"
    decides = DECIDED_BY_SCRIPT


class NoRows:
    """The test rows of a script that evaluates nothing."""

    fingerprint = "no rows"

    def __len__(self) -> int:
        return 0

    def __getitem__(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        raise IndexError("there are no rows")


def make_script(name: str, train: Any, test: Any, skip_bad_rows: bool) -> Script:
    """A script with these rows, which are what a task's data() returns. test: None for no evaluation.

    Raises UserError for rows of another kind.
    """
    trained = as_source(f"{name}: the training rows", train, skip_bad_rows)
    tested = NoRows() if test is None else as_source(f"{name}: the test rows", test, skip_bad_rows)
    return Script(name, {}, None, Dataset(name, trained, tested, ()), 0, skip_bad_rows)
