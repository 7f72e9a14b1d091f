"""The trackers that there are: hvdtrain's own, and those of packages that name one as an entry point."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points

from hvdtrain.errors import UserError
from hvdtrain.runs.trackers.interface import Tracker
from hvdtrain.system.text import did_you_mean, printable

GROUP = "hvdtrain.trackers"
"""The group of entry points."""
OWN = {
    "mlflow": "hvdtrain.runs.trackers.mlflow:MLflow",
    "prometheus": "hvdtrain.runs.trackers.prometheus:Prometheus",
    "tensorboard": "hvdtrain.runs.trackers.tensorboard:TensorBoard",
    "wandb": "hvdtrain.runs.trackers.wandb:WeightsAndBiases",
}
"""hvdtrain's own, which no package replaces."""
EXTRAS = {"mlflow": ("MLFLOW_DISABLE_TELEMETRY", "true"), "wandb": ("WANDB_ERROR_REPORTING", "false")}
"""Those that need the extra of their name, and the variable by which its library reports nothing to its makers."""


def check(names: Sequence[str]) -> None:
    """Import the trackers of these names. Raises UserError for one that does not exist, or cannot be imported."""
    for name in names:
        load(name)


def load(name: str) -> Callable[[], Tracker]:
    """What makes the tracker of this name. Raises UserError if it does not exist, or cannot be imported."""
    found = installed()
    if name not in found:
        known = ", ".join(sorted(found))
        shown = printable(name)
        raise UserError(f"--tracker {shown}: no such tracker{did_you_mean(name, found)}", f"choose from {known}")
    if name in EXTRAS:
        os.environ.setdefault(*EXTRAS[name])
    try:
        made = found[name].load()
    except Exception as error:
        reason = printable(f"{type(error).__name__}: {error}")
        install = f"pip install 'hvdtrain[{name}]'" if name in EXTRAS else "install what it needs, or leave it out"
        raise UserError(f"--tracker {name}: it cannot be imported ({reason})", install) from None
    if not callable(made):
        raise UserError(f"--tracker {name}: {found[name].value} is not a class", "correct its entry point")
    return made


def installed() -> dict[str, EntryPoint]:
    """The trackers, by name."""
    importlib.invalidate_caches()
    others = {one.name: one for one in entry_points(group=GROUP)}
    return {**others, **{name: EntryPoint(name, value, GROUP) for name, value in OWN.items()}}
