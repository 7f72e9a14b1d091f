"""Training a part of a run again, and whether its weights are those that the run recorded, bit for bit.

It trains in a temporary folder, with the ranks that there are, and changes nothing in the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import BitsDiffer, Stopped, UserError
from hvdtrain.frameworks.preparation import prepare
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.interfaces import Position
from hvdtrain.networks.description import Weights
from hvdtrain.runs import checkpoints, console
from hvdtrain.runs.checkpoints import Damaged
from hvdtrain.runs.console import log
from hvdtrain.runs.segment import Segment
from hvdtrain.system import checkpoint_folder
from hvdtrain.system.text import to_json
from hvdtrain.tasks.registry import load_target
from hvdtrain.tasks.target import Target
from hvdtrain.training import arithmetic
from hvdtrain.training.consistency import checksum
from hvdtrain.training.observer import Observer
from hvdtrain.training.run import Run
from hvdtrain.training.start import start_run

KEPT = ("device", "devices", "workers", "cuda_graph")
"""Runtime options of the run that hold in its replay; the others say where it is, and what it shows."""
PREFIX = "hvdtrain-replay-"
MAX_REASONS = 4
"""Differences of hosts that a message names."""


class ArrayDifference(NamedTuple):
    """Where the weights are not those of the run's checkpoint."""

    step: int
    name: str
    """The first array that differs, in the order of the network."""
    largest: float
    """max |difference| of this array."""
    arrays: int
    """Number of arrays that differ."""


class Mismatch(NamedTuple):
    """The first step at which the hash is not the one that the run recorded."""

    step: int
    recorded: str
    parameters: str


class Verdict(NamedTuple):
    """What a replay found, on rank 0."""

    parameters: str
    """The hash at the last step."""
    compared: int
    """Number of hashes that were compared."""
    mismatch: Mismatch | None = None
    difference: ArrayDifference | None = None
    """At the first step with another hash whose checkpoint is still there; None without one."""
    checkpoint_agrees: bool = False
    """Whether the run's checkpoint has the weights of the replay where the recorded hash is another one."""


class Comparison(Observer):
    """Compares the weights after each step of which the run recorded a hash; on rank 0."""

    def __init__(self, run: Run, segment: Segment) -> None:
        self._run, self._segment = run, segment
        self._mismatch: Mismatch | None = None
        self._difference: ArrayDifference | None = None
        self._parameters, self._compared, self._agrees = "", 0, False

    def started(self, at: Position) -> None:
        """Compare what is trained from: a checkpoint that was changed since has correct sums, but another hash."""
        if self._segment.start_hash:
            self._compare(self._run.common_weights(), at.step, self._segment.start_hash.parameters)

    def step_done(self, at: Position) -> None:
        saved = self._segment.hashes.get(at.step)
        if saved:  # the same on all ranks, as reading the weights may need them
            self._compare(self._run.common_weights(), at.step, saved.parameters)

    def _compare(self, weights: Weights, step: int, recorded: str) -> None:
        if not self._run.is_rank_0:
            return
        self._parameters, self._compared = checksum(weights), self._compared + 1
        if self._parameters == recorded:
            return
        self._mismatch = self._mismatch or Mismatch(step, recorded, self._parameters)
        if not self._difference and (saved := self._saved(step)):
            self._difference = first_difference(weights, saved, step)
            self._agrees = self._agrees or not self._difference

    def _saved(self, step: int) -> Weights | None:
        """The weights of the run's checkpoint of that step, if it is still there."""
        for entry in checkpoint_folder.current_line(self._segment.folder / "checkpoints"):
            if entry.step == step:
                with contextlib.suppress(Damaged):
                    return checkpoints.load(entry.path).weights
        return None

    def verdict(self) -> Verdict:
        """Call it after the last step."""
        return Verdict(self._parameters, self._compared, self._mismatch, self._difference, self._agrees)


def first_difference(weights: Weights, saved: Weights, step: int) -> ArrayDifference | None:
    """The first array that does not have the bits of `saved`; None if all have them."""
    differ = [name for name, value in weights.items() if not _has_bits(value, saved.get(name))]
    if not differ:
        return None
    first, other = weights[differ[0]], saved.get(differ[0])
    largest = np.inf
    if other is not None and other.shape == first.shape:
        largest = float(np.abs(np.subtract(first, other, dtype=np.float64)).max(initial=0))
    return ArrayDifference(step, differ[0], largest, len(differ))


def _has_bits(value: np.ndarray, other: np.ndarray | None) -> bool:
    return other is not None and value.shape == other.shape and checksum({"": value}) == checksum({"": other})


def options(segment: Segment, strategy: str = "", quiet: bool = False) -> tuple[Config, RuntimeOptions]:
    """The options by which the segment is trained again, in a folder that `replay` makes.

    strategy: instead of the run's. Raises UserError for options that cannot be.
    """
    config = segment.config
    config = dataclasses.replace(config, strategy=strategy or config.strategy, max_steps=segment.last.step)
    recorded = segment.session.record.table("runtime").values
    kept = {name: recorded[name] for name in KEPT if isinstance(recorded.get(name), str | int)}
    start = segment.start.path if segment.start else None
    runtime = RuntimeOptions(name="replay", resume=start, checkpoint_every=("0s",), keep=1, quiet=quiet, **kept)
    return config, runtime


def replay(segment: Segment, config: Config, runtime: RuntimeOptions) -> Verdict:
    """Train the segment again; call it on every rank. The verdict counts on rank 0.

    Raises BitsDiffer, on all ranks, if the weights are not those of the run; UserError if the options, the data or the
    installation do not allow it; TrainingError if training fails; Stopped if the job was asked to stop.
    """
    prepare(config.framework)
    target, dataset = load_target(config, dataclasses.replace(runtime, resume=segment.folder))
    _check_target(segment, config, target)
    if segment.data and segment.data != dataset.fingerprint[: len(segment.data)]:
        reason = f"--data {config.data} has other rows than {segment.folder} was trained on"
        raise UserError(reason, "restore them as they were")
    learner = build_learner(config, target, target.initial_weights(config), runtime)
    with _temporary() as folder:
        runtime = dataclasses.replace(runtime, runs=folder)
        with start_run(config, runtime, target, learner, dataset, list, replays=True) as started:
            comparison, group = Comparison(started.run, segment), learner.group
            reasons = _reasons(segment, started.run)
            if reasons and group.rank == 0:
                log.warning("other bits are to be expected: %s", "; ".join(reasons))
            started.compile()
            started.training.watch_by(comparison)
            started.training.train()
            started.reporter.close()
            verdict = comparison.verdict()
            # Equal on all ranks, which then end in the same way; only rank 0 has read the run.
            problem = group.broadcast(explain(segment, verdict, reasons) if verdict.mismatch else "")
        group.close()
    if problem:
        raise BitsDiffer(problem, "docs/deterministic.md says what decides the bits")
    return verdict


def _check_target(segment: Segment, config: Config, target: Target) -> None:
    """Raise UserError unless a task is the one that the run trained: its file may have changed."""
    recorded = segment.session.record.table("network").values
    if json.loads(to_json(target.record())) != recorded:
        reason = f"--model {config.model} is not what {segment.folder} trained: its layers or --arg differ"
        raise UserError(reason, "restore the file as it was")


@contextlib.contextmanager
def _temporary() -> Iterator[Path]:
    """A folder for the runs of this process, which is removed at the end, and so is that of rank 0 on other hosts."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        yield folder
    except Stopped as error:
        raise Stopped("the replay was asked to stop", "start it again", rank=error.rank, step=error.step) from None
    finally:
        opened = console.open_folder()
        console.close_log()
        for path in {folder, opened.parent if opened else folder}:
            if path.name.startswith(PREFIX):
                shutil.rmtree(path, ignore_errors=True)


def _reasons(segment: Segment, run: Run) -> list[str]:
    """Why the bits may be others than the run's."""
    record = segment.session.record
    bits = record.table("arithmetic")
    versions, here = record.table("versions").texts(), run.arithmetic
    recorded = {
        **bits.texts(),
        "threads": bits.count("threads"),
        "variables": bits.table("variables").texts(),
        "versions": {name: versions[name] for name in here["versions"] if name in versions},
    }
    reasons = arithmetic.changes(recorded, here)[:MAX_REASONS]
    before = record.count("ranks"), record.table("config").text("strategy")
    if not run.config.shards and before != (run.group.size, run.config.strategy):
        now = f"{run.config.strategy} on {run.group.size}"
        reasons.append(f"the strategy is {now} and was {before[1]} on {before[0]} rank(s), without --shards")
    return reasons


def explain(segment: Segment, verdict: Verdict, reasons: list[str]) -> str:
    """What differs, and what may be the reason."""
    mismatch, difference = verdict.mismatch, verdict.difference
    assert mismatch
    where = (
        f"in the checkpoint of step {mismatch.step}," if mismatch.step == segment.first else f"at step {mismatch.step}"
    )
    parts = [f"other bits {where}: {segment.folder} recorded {mismatch.recorded}, and here is {mismatch.parameters}"]
    if difference:
        others = f" (the first of {difference.arrays} that differ)" if difference.arrays > 1 else ""
        at = f" at step {difference.step}" if difference.step != mismatch.step else ""
        parts.append(
            f"array {difference.name}{others} differs from the checkpoint{at} by up to {difference.largest:.3g}"
        )
    elif verdict.checkpoint_agrees:
        parts.append("the run's checkpoint has these weights, so its metrics.jsonl or the checkpoint was changed")
    return "; ".join([*parts, *reasons])
