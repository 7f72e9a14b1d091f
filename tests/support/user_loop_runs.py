"""Runs of scripts with a training loop of their own: in the process of a test, and what two have in common."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager as ContextManager
from pathlib import Path

import numpy as np

import hvdtrain
from hvdtrain.config.options import Config, Framework, RuntimeOptions
from support.jobs import newest

NUMBERS = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
CONFIG = {"strategy": "single", "epochs": 2, "batch_size": 12}


def starter(runs: Path, framework: Framework | None = None) -> Callable[..., ContextManager]:
    """Starts a run of this name, by default `run`, with some options, as hvdtrain.start does."""
    return lambda name="run", **options: hvdtrain.start(
        Config(**{**CONFIG, **options}),
        RuntimeOptions(runs=runs, name=name, device="cpu", quiet=True),
        framework=framework,
    )


def state(folder):
    """What a checkpoint restores, and the metrics of the end."""
    saved = newest(folder)
    metrics = json.loads((folder / "result.json").read_text())["metrics"]
    return (saved.position, saved.optimizer.extra), {**saved.weights, **saved.optimizer.arrays}, metrics


def assert_identical(folder, other):
    """Two runs have the same state at their end, bit for bit."""
    (position, arrays, metrics), (expected_position, expected, expected_metrics) = state(folder), state(other)
    assert (position, metrics) == (expected_position, expected_metrics)
    assert arrays.keys() == expected.keys() > newest(folder).weights.keys()
    kept = arrays.keys() if newest(folder).framework == "torch" else position[1].keys()
    assert kept > {"optimizer", "schedule"}
    for name, array in arrays.items():
        assert np.array_equal(array, expected[name]), name
