"""Runs of scripts with a training loop of their own, in the process of a test."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager as ContextManager
from pathlib import Path

import numpy as np

import hvdtrain
from hvdtrain.config.options import Config, Framework, RuntimeOptions

NUMBERS = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
CONFIG = {"strategy": "single", "epochs": 2, "batch_size": 12}


def starter(runs: Path, framework: Framework | None = None) -> Callable[..., ContextManager]:
    """Starts a run of this name, by default `run`, with some options, as hvdtrain.start does."""
    return lambda name="run", **options: hvdtrain.start(
        Config(**{**CONFIG, **options}),
        RuntimeOptions(runs=runs, name=name, device="cpu", quiet=True),
        framework=framework,
    )
