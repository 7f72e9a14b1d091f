"""Trains cases of `combinations`, one after the other in one job: launcher and framework start once.

usage: python train_combinations.py JOB < CASES, or python train_combinations.py references < CASES
Writes <framework>-<case>.npz with the weights, and prints a line of JSON for each case on rank 0.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import traceback
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

from hvdtrain.collectives.horovod import HorovodGroup
from hvdtrain.config.options import Config
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.errors import UserError
from hvdtrain.interfaces import Batch, Dataset
from hvdtrain.networks.description import Network
from hvdtrain.runs import checkpoints, plots
from hvdtrain.system import rank_info
from hvdtrain.training import loop, train
from support.combinations import BAD_STEP, ROWS, Case, options_of

load_synthetic = functools.cache(load_dataset)


def tiny(_: str, network: Network, offline: bool) -> Dataset:
    """A data set with few rows."""
    data = load_synthetic("synthetic", network, offline)
    return dataclasses.replace(
        data,
        **{f"train_{kind}": getattr(data, f"train_{kind}")[:ROWS].copy() for kind in ("images", "labels")},
        **{f"test_{kind}": getattr(data, f"test_{kind}")[:20].copy() for kind in ("images", "labels")},
    )


def inject(factor: float, bad: bool, batches: Any) -> Any:
    """`Training._batches` with weights times `factor`, and with NaN in the last rank's weights at BAD_STEP."""

    def changed(self: loop.Training, parts: Any) -> Iterator[Batch]:
        first = self.position.step
        for step, batch in enumerate(batches(self, parts), first):
            batch.weights[:] *= factor
            if bad and step == BAD_STEP and self._run.group.rank == self._run.group.size - 1:
                batch.weights[0] = np.nan
            yield batch

    return changed


def share_processes(framework: str) -> None:
    """Let strategies start that a process can start only once; MXNet's servers cannot."""
    HorovodGroup.close = lambda _: None  # type: ignore[method-assign]
    if framework == "torch":
        from hvdtrain.frameworks.torch import strategies

        strategies.TorchDistributedGroup = functools.cache(strategies.TorchDistributedGroup)
    if framework == "tensorflow":
        import tensorflow as tf

        from hvdtrain.frameworks.tensorflow import strategies

        # Each distribution numbers its collectives from the same number on, so a process can have one only.
        tf.distribute.MultiWorkerMirroredStrategy = functools.cache(tf.distribute.MultiWorkerMirroredStrategy)
        mirrored = functools.cache(tf.distribute.MirroredStrategy)
        tf.distribute.MirroredStrategy = lambda devices: mirrored(tuple(devices))


def run(config: Config, runtime: RuntimeOptions, name: str, factor: float) -> dict[str, Any]:
    """Train, and write the weights; returns what happened."""
    runtime = dataclasses.replace(runtime, name=name)
    changed = inject(factor, config.on_nan == "skip", loop.Training._batches)
    steps = []
    after_step = loop.Training._after_step
    with (
        mock.patch.object(train, "load_dataset", tiny),
        mock.patch.object(plots, "plot_metrics"),
        mock.patch.object(loop.Training, "_batches", changed),
        mock.patch.object(loop.Training, "_after_step", lambda *a: (steps.append(1), after_step(*a))),
    ):
        folder = train.train(config, runtime, list)
    result = json.loads((folder / "result.json").read_text())
    if rank_info.detect().rank == 0:
        np.savez(f"{name}.npz", **checkpoints.newest(folder)[1].weights)
    return {"skipped": result["skipped"], "steps": result["steps"], "shares": result["shares"]}


def outcome(case: Case, reference: bool = False) -> dict[str, Any]:
    started = []
    name = f"{case.framework}-{case.name}"
    try:
        with mock.patch.object(
            loop.Training, "run", autospec=True, side_effect=lambda s: (started.append(1), real(s))[1]
        ):
            config, runtime = options_of(case.framework, case.row)
            if reference:
                config, runtime, factor = reference_options(config, case.ranks)
                name = f"reference-{name}"
            else:
                factor = 1.0
            return {"status": "trained", **run(config, runtime, name, factor)}
    except UserError as error:
        return {"status": "refused late" if started else "refused", "text": str(error)}
    except Exception as error:
        return {
            "status": "failed",
            "text": f"{type(error).__name__}: {str(error)[-300:]}",
            "trace": traceback.format_exc()[-3000:],
        }


real = loop.Training.run


def reference_options(config: Config, ranks: int) -> tuple[Config, RuntimeOptions, float]:
    """The options of one process in PyTorch for the same training, and the factor of its gradients."""
    times = ranks if config.batch_scope == "per-rank" else 1
    reference = dataclasses.replace(
        config,
        **{"framework": "torch", "strategy": "single", "api": "loop", "kvstore": "device"},
        **{"precision": "fp32", "accumulate": 1, "op": "average", "compression": "none"},
        **{"batch_scope": "global", "batch_size": config.batch_size * times, "lr": config.lr * times},
    )
    return reference, RuntimeOptions(device="cpu", quiet=True), ranks if config.op == "sum" else 1.0


def main() -> None:
    job = sys.argv[1]
    given = [Case(**values) for values in json.load(open("cases.json"))]
    references = job == "references"
    mine = [case for case in given if (not case.refused if references else case.job == job)]
    share_processes("torch" if references else mine[0].framework)
    rank = rank_info.detect().rank
    out = open(f"outcomes-{job}-{rank}.jsonl", "a")
    done = {json.loads(line)["name"] for line in open(f"outcomes-{job}-{rank}.jsonl")}
    # Module sets a variable for its process.
    for case in sorted(mine, key=lambda case: "module" in case.row["strategy"]):
        name = f"{case.framework}-{case.name}"
        if name in done:
            continue
        print(f"START {rank} {name} {case.row}", file=sys.stderr, flush=True)
        values = {"name": name, **outcome(case, references)}
        print(json.dumps(values), file=out, flush=True)


if __name__ == "__main__":
    main()
