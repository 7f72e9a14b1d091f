"""A script with a training loop of its own (`hvdtrain.start`): its rows, and how the loop knows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hvdtrain.config.option import facts
from hvdtrain.config.options import Config
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Dataset, Evaluated
from hvdtrain.tasks.user import UserTask, as_source


class Script(UserTask):
    """A script, which makes its model and its steps by itself. name: that of its file."""

    kind = "script"
    ignored_options = tuple(name for name, about in facts(Config).items() if about.by_script)


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


def check_by_row(what: str, values: Any, rows: int, kind: type[Any]) -> None:
    """Raise UserError unless these are a tensor with a value for each row. kind: the framework's class of tensors."""
    shape = tuple(values.shape) if isinstance(values, kind) else None
    if shape != (rows,):
        found = type(values).__name__ if shape is None else f"a tensor of shape {shape}"
        raise UserError(
            f"{what}: got {found}, not a value for each of {rows} row(s)",
            "give a tensor of one dimension; losses of PyTorch are one with reduction='none', those of Gluon always",
        )


def evaluated(found: Any, rows: int, kind: type[Any], total: Callable[[Any], float]) -> Evaluated:
    """The sums of what a script's `evaluate` has returned for these rows.

    total: the sum of a tensor in float64. Raises UserError for what are not losses, or losses and metrics, by row.
    """
    losses, metrics = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
    if not isinstance(metrics, Mapping):
        raise UserError(f"evaluate() returned metrics of type {type(metrics).__name__}", "return a dict of them")
    for name, values in {"": losses, **metrics}.items():
        check_by_row(f"evaluate(), {name}" if name else "evaluate()", values, rows, kind)
    return Evaluated(total(losses), {str(name): total(values) for name, values in metrics.items()})
