"""Trains cases of `combinations` one after the other in one job, so that launcher and framework start once.

usage: python train_combinations.py JOB..., where the cases are in cases.json; the job `references` trains in REFERENCE,
in one process and fp32, what each case must end with, and `shaken` what rounding may make of that. Rank 0 writes
<case>.json, and <case>.npz with the weights.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from hvdtrain.collectives.horovod import HorovodGroup
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.datasets.rows import ArraySource
from hvdtrain.errors import UserError
from hvdtrain.frameworks.preparation import set_environment
from hvdtrain.interfaces.learner import Position
from hvdtrain.interfaces.reading import Batch, Dataset
from hvdtrain.networks.description import Weights
from hvdtrain.networks.layers import Shape
from hvdtrain.runs import checkpoints, plots
from hvdtrain.system import rank_info
from hvdtrain.tasks import registry
from hvdtrain.tasks.target import NetworkTarget
from hvdtrain.training import loop, train
from hvdtrain.training.batches import Batches
from support.combinations import REFERENCES, SHAKEN, Case, options_of
from support.jobs import records, result
from support.stack import REFERENCE

ROWS, TEST_ROWS = 35, 20
"""Training images (the last batch of an epoch has one), and test images."""
BAD_STEP = 1
"""With --on-nan skip, a row's weight is NaN at this step."""
SHAKES, NOISE = 8, 1e-6
"""How often a reference is trained from other weights, and by what part these differ: what sums of 10 numbers round."""
LOSS_SCALE = 256.0
"""Initial loss scale of fp16, so low that a batch of one row does not overflow."""

load_synthetic = functools.cache(load_dataset)


def load_few_rows(image_shape: Shape | None, **_: object) -> Dataset:
    """Synthetic images, `ROWS` to train."""
    data = load_synthetic("synthetic", image_shape)
    train, test = (
        ArraySource(*source[np.arange(count)]) for source, count in ((data.train, ROWS), (data.test, TEST_ROWS))
    )
    return Dataset(data.name, train, test, data.classes)


def with_bad_weight(bad: bool) -> Callable[..., Iterator[Batch]]:
    """`Batches.of_epoch`; if `bad`, a row's weight is NaN on the last rank at BAD_STEP."""
    original = Batches.of_epoch

    def batches(self: Batches, at: Position, steps: int) -> Iterator[Batch]:
        for batch in original(self, at, steps):
            parts = (batch,) if batch.shards is None else batch.shards
            if bad and batch.step == BAD_STEP and self._run.group.rank == self._run.group.size - 1:
                parts[-1].weights[0] = np.nan
            yield batch

    return batches


def outcome(config: Config, runtime: RuntimeOptions, name: str, bad: bool) -> dict[str, Any]:
    """Train and write the weights; what happened: the numbers of a training, `refused` or `failed`."""
    steps, after_step = [], loop.TrainingLoop.after_step
    runtime = dataclasses.replace(runtime, name=name)
    with (
        mock.patch.object(registry, "load_dataset", load_few_rows),
        mock.patch.object(plots, "plot_metrics"),
        mock.patch.object(Batches, "of_epoch", with_bad_weight(bad)),
        mock.patch.object(loop.TrainingLoop, "after_step", lambda *given: (steps.append(1), after_step(*given))),
    ):
        try:
            folder = train.train(config, runtime, list)
        except UserError as error:
            return {"failed": f"after {len(steps)} step(s): {error}"} if steps else {"refused": str(error)}
        except Exception:
            return {"failed": traceback.format_exc()[-2000:]}
    if rank_info.detect().rank:
        return {}
    ended = result(folder)
    np.savez(f"{name}.npz", **checkpoints.newest(folder)[1].weights)
    communicate_s = records(folder, "train")[-1]["communicate_s"]
    shutil.rmtree(folder)
    return {**{name: ended[name] for name in ("steps", "skipped")}, "communicate_s": communicate_s}


def has_nan(case: Case) -> bool:
    """Whether a step of the case has a loss that is NaN; of a shard, an audit would find it on one rank only."""
    return case.row.get("on_nan") == "skip" and not case.row.get("audit")


def attempt(case: Case) -> dict[str, Any]:
    """The outcome of a case."""
    try:
        options = options_of(case)
    except UserError as error:
        return {"refused": str(error)}
    return outcome(*options, case.id, has_nan(case))


def reference(case: Case, end: str = "reference") -> dict[str, Any]:
    """The same training in one process, for ranks whose batches and learning rates add up. end: of its files' names."""
    config, _ = options_of(case)
    times = case.ranks if config.batch_scope == "per-rank" else 1
    plain = {"framework": REFERENCE, "strategy": "single", "precision": "fp32"}
    plain |= {"accumulate": 1, "compression": "none", "groups": "auto", "batch_scope": "global"}
    plain |= {"sync_every": 1}
    config = dataclasses.replace(config, **plain, batch_size=config.batch_size * times, lr=config.lr * times)
    return outcome(config, RuntimeOptions(device="cpu", quiet=True), f"{case.id}-{end}", has_nan(case))


def shaken(case: Case, number: int) -> dict[str, Any]:
    """The reference from weights with some noise."""
    generator, initial_weights = np.random.default_rng(number), NetworkTarget.initial_weights

    def with_noise(self: NetworkTarget, config: Config) -> Weights:
        weights = initial_weights(self, config)
        return {
            name: array * np.float32(1 + NOISE * generator.normal(size=array.shape)) for name, array in weights.items()
        }

    with mock.patch.object(NetworkTarget, "initial_weights", with_noise):
        return reference(case, f"reference-{number}")


def share_process(framework: str) -> None:
    """Let a process start repeatedly what it can start only once: Horovod over Gloo, and what the framework has."""
    HorovodGroup.close = lambda _: None  # type: ignore[method-assign]
    if framework == "torch":
        import torch

        from hvdtrain.frameworks.torch import strategies

        strategies.TorchDistributedGroup = functools.cache(strategies.TorchDistributedGroup)
        torch.amp.GradScaler = functools.partial(torch.amp.GradScaler, init_scale=LOSS_SCALE)
    if framework == "tensorflow":
        set_environment()  # before the import, so that cases with --shards can follow others
        import tensorflow as tf

        from hvdtrain.frameworks.tensorflow.optimizer import LossScale

        LossScale.INITIAL = LOSS_SCALE
        # Each distribution numbers its collectives from the same number on, so a process can have one only.
        tf.distribute.MultiWorkerMirroredStrategy = functools.cache(tf.distribute.MultiWorkerMirroredStrategy)


def outcomes(jobs: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What happened in each case of the jobs, by its name."""
    cases = [Case(**values) for values in json.loads(Path("cases.json").read_text())]
    if REFERENCES in jobs:
        yield from ((f"{case.id}-reference", reference(case)) for case in cases if not case.refused)
    if SHAKEN in jobs:
        yield from ((f"{case.id}-reference-{n}", shaken(case, n)) for case in cases for n in range(SHAKES))
    # Module sets a variable for its process.
    mine = sorted((case for case in cases if case.job in jobs), key=lambda case: "module" in case.row["strategy"])
    yield from ((case.id, attempt(case)) for case in mine)


def main(jobs: list[str]) -> None:
    share_process(REFERENCE if {REFERENCES, SHAKEN} & {*jobs} else jobs[0].partition("-")[0])
    for name, values in outcomes(jobs):
        print(rank_info.detect().rank, name, values, flush=True)
        if rank_info.detect().rank == 0:
            Path(f"{name}.json").write_text(json.dumps(values))


if __name__ == "__main__":
    main(sys.argv[1:])
