"""The methods by which a task says what it is; names that only look like one of them are errors, not ignored."""

from __future__ import annotations

import difflib
from typing import Any

REQUIRED = ("data", "model")
"""Methods that a task has."""
OPTIONAL = ("losses", "metrics", "augment", "optimizer", "schedule")
"""Methods that a task may have, or set to None."""
ARGUMENTS = ("optimizer", "schedule")
"""Of these, names under which tasks also keep an argument, such as the text that --arg optimizer=adam gives."""
LIKENESS = 0.82
"""A name that is as similar to a method's as this is misspelt; `classes` and `argument` are not."""

_LOSSES = "losses(outputs, *targets), the loss of each row"
_METRICS = "metrics(outputs, *targets), a dict of a value for each row"
_AUGMENT = "augment(rows, generators)"
_DATA = "data(), with an object that makes rows where they do not fit into memory"
_OPTIMIZER = "optimizer(parameters), and schedule(optimizer, steps, epochs)"
ELSEWHERE = {
    # The names in PyTorch Lightning, Keras, transformers' Trainer and many scripts.
    "losses": dict.fromkeys(("loss", "loss_fn", "loss_function", "compute_loss", "criterion"), _LOSSES),
    "metrics": dict.fromkeys(("metric", "compute_metrics"), _METRICS),
    "augment": dict.fromkeys(("augmentation", "augmentations"), _AUGMENT),
    "optimizer": dict.fromkeys(("configure_optimizers", "create_optimizer", "optimizers"), _OPTIMIZER),
    "schedule": dict.fromkeys(("scheduler", "schedulers", "lr_scheduler", "configure_schedulers"), _OPTIMIZER),
    "": {
        **dict.fromkeys(("training_step", "train_step"), _LOSSES),
        **dict.fromkeys(("validation_step", "test_step"), _METRICS),
        **dict.fromkeys(("train_dataloader", "val_dataloader", "test_dataloader"), _DATA),
    },
}
"""By the method that a task lacks, names under which other programs have it, and what a task has instead.

Those under the empty name are never called. A task that has `losses` may call its own `loss`.
"""


def mistake(task: Any) -> tuple[str, str] | None:
    """Why a task's methods are not those of a task, and what to do; None where nothing is wrong."""
    for name in REQUIRED:
        if not callable(getattr(task, name, None)):
            return f"has no method {name}", "give the task that method (docs/own.md)"
    missing = [name for name in OPTIONAL if getattr(task, name, None) is None]
    for name in OPTIONAL:
        if name not in (*missing, *ARGUMENTS) and not callable(value := getattr(task, name)):
            return f"{name} is {type(value).__name__}, not a method", "make it a method, or give it another name"
    strangers = {stranger: instead for name in ("", *missing) for stranger, instead in ELSEWHERE[name].items()}
    for name in (name for name in dir(task) if not name.startswith("_") and name not in (*REQUIRED, *OPTIONAL)):
        (close,) = difflib.get_close_matches(name.lower(), missing, 1, LIKENESS) or ("",)
        instead = strangers.get(name.lower()) or (close and f"the name {close}")
        if instead and callable(getattr(task, name, None)):
            return f"{name} is not a method of a task, and nothing calls it", f"use {instead}; or call it _{name}"
    return None
