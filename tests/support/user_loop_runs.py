"""Runs of scripts with a training loop of their own: in the process of a test, and what two have in common."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager as ContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hvdtrain
from hvdtrain.collectives.shard_sums import ShardSums
from hvdtrain.collectives.surviving import RanksChanged
from hvdtrain.config.options import Config, Framework, RuntimeOptions
from hvdtrain.training.loop import TrainingLoop
from support.in_process import quickly
from support.jobs import newest, result

NUMBERS = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
CONFIG = {"strategy": "single", "epochs": 2, "batch_size": 12}


RUNTIME = {field.name for field in dataclasses.fields(RuntimeOptions)}


def starter(runs: Path, framework: Framework | None = None) -> Callable[..., ContextManager]:
    """Starts a run of this name, by default `run`, with options of both kinds, as hvdtrain.start does."""

    @contextlib.contextmanager
    def start(name: str = "run", **options: Any) -> Iterator[Any]:
        named = {"name": name} if options.get("resume", "auto") == "auto" else {}
        runtime = {"runs": runs, "device": "cpu", "quiet": True, **named}
        runtime.update((key, options.pop(key)) for key in RUNTIME & options.keys())
        begun = hvdtrain.start(Config(**{**CONFIG, **options}), RuntimeOptions(**runtime), framework=framework)
        with quickly(), begun as run:
            yield run

    return start


def cut_off_in_step_2(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """With --shards: ranks change in this step, once; what the loop is then told."""
    renewed, combine = [], ShardSums.combine

    def cut_off(sums: ShardSums) -> Any:
        if sums._step.step == 2 and not renewed:
            raise RanksChanged
        return combine(sums)

    monkeypatch.setattr(TrainingLoop, "_renew", lambda loop, change: renewed.append(change))
    monkeypatch.setattr(ShardSums, "combine", cut_off)
    return renewed


def state(folder):
    """What a checkpoint restores, and the metrics of the end."""
    saved = newest(folder)
    return (saved.position, saved.optimizer.extra), saved.weights | saved.optimizer.arrays, result(folder)["metrics"]


def assert_identical(folder, other):
    """Two runs have the same state at their end, bit for bit."""
    (position, arrays, metrics), (expected_position, expected, expected_metrics) = state(folder), state(other)
    assert (position, metrics) == (expected_position, expected_metrics)
    assert arrays.keys() == expected.keys() > newest(folder).weights.keys()
    kept = arrays.keys() if newest(folder).framework == "torch" else position[1].keys()
    assert kept > {"optimizer", "schedule"}
    for name, array in arrays.items():
        assert np.array_equal(array, expected[name]), name
