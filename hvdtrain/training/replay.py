"""Training a part of a run again, in a temporary folder, to compare its weights with the hashes that it recorded."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.config.option import key
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.config.sources import from_record
from hvdtrain.errors import BitsDiffer, Stopped, UserError
from hvdtrain.frameworks.preparation import prepare
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.interfaces.learner import Position
from hvdtrain.runs import console, metrics
from hvdtrain.runs.console import log
from hvdtrain.runs.history import HistoryReader
from hvdtrain.runs.records import RunConfig, deciding_options, resumed_from, sessions, texts
from hvdtrain.system import checkpoint_folder
from hvdtrain.system.python_files import is_reference
from hvdtrain.system.text import to_json
from hvdtrain.tasks.registry import load_target
from hvdtrain.training import consistency
from hvdtrain.training.observer import Observer
from hvdtrain.training.run import RunContext
from hvdtrain.training.train import start_run

PREFIX = "hvdtrain-replay-"


class Segment(NamedTuple):
    """Steps of a run that can be trained again, from a checkpoint of it or the initial weights."""

    folder: Path
    first: int
    """Number of steps before it."""
    record: RunConfig
    """The config.json of the session that trained them."""
    hashes: dict[int, str]
    """Those that the run recorded, by step: at the start, after it, and at the last step."""
    config: Config
    runtime: RuntimeOptions
    """The options by which they are trained again."""


def choose(folder: Path, first: int | None = None, last: int | None = None, strategy: str = "") -> Segment:
    """The steps `first` to `last` of the run in this folder.

    By default `last` is the last step that has a hash, and `first` that of the newest checkpoint before, else 0.
    strategy: instead of the run's. Raises UserError if the run cannot be trained again there.
    """
    reader = HistoryReader(folder / metrics.NAME).read()
    hashes, known = reader.hashes(), sessions(folder)
    if not hashes or not known:
        missing = "valid config.json of a run" if hashes else "hash of its weights"
        raise UserError(f"{folder} has no {missing}", "give the folder of a run that has written a checkpoint")
    last = [*hashes][-1] if last is None else last
    saved = checkpoint_folder.entries(folder / "checkpoints")
    starts: dict[int, Path | None] = {} if resumed_from(known) else {0: None}
    starts |= {entry.step: entry.path for entry in saved if entry.step < last}
    first = [0, *starts][-1] if first is None else first
    if last not in hashes or first not in starts:
        reason = f"{folder} has no checkpoint of step {first} before step {last} with a hash of its weights"
        raise UserError(reason, f"give --from with one of {[*starts]}, and --to with one of {[*hashes]}")
    times = [record.get("time") for record in reader.of_kind("train") if first < record["step"] <= last]
    trained = [
        [known[0], *(session for session in known if session.began <= time)][-1]
        for time in (*times, hashes[last].time)
        if isinstance(time, int | float)
    ]
    record, options = trained[-1], deciding_options(trained[-1])
    for session in map(deciding_options, trained):
        if changed := [name for name, value in session.items() if options.get(name) != value]:
            others = ", ".join(f"--{key(name)} {session[name]!s:.80}" for name in changed)
            reason = f"{folder} trained some of the steps {first} to {last} with {others}, others not"
            raise UserError(reason, "give by --from and --to a part with the same options")
    model = record.text("model")
    if record.is_user_code and not is_reference(model):
        remedy = f"train there with --max-steps {last}, and compare the hashes by hvdtrain report"
        raise UserError(f"{folder} was trained by {model}, which only its own program can repeat", remedy)
    try:
        config = from_record(record.options)
    except (TypeError, ValueError) as error:
        raise UserError(f"{folder}: no valid config.json of a run ({error})", "give another run") from None
    config = dataclasses.replace(config, strategy=strategy or config.strategy, max_steps=last)
    device: Any = record.text("device") or "auto"
    devices = record.count("devices")
    runtime = RuntimeOptions(name="replay", resume=starts[first], device=device, devices=devices)
    recorded = {step: hash_.parameters for step, hash_ in hashes.items() if first <= step <= last}
    return Segment(folder, first, record, recorded, config, runtime)


class HashComparison(Observer):
    """Compares the weights with the hashes that the run recorded; on rank 0."""

    def __init__(self, run: RunContext, segment: Segment) -> None:
        self._run, self._segment = run, segment
        self.parameters, self.compared = "", 0
        self.difference = ""
        """Where the first hash is another one, as a sentence; empty if none is."""

    def started(self, at: Position) -> None:
        self.step_done(at)  # a checkpoint that was changed since has correct sums, but another hash

    def step_done(self, at: Position) -> None:
        if recorded := self._segment.hashes.get(at.step):
            self.parameters = self._run.check_same_weights(at.step)
            self.compared += 1
            if self.parameters != recorded and not self.difference:
                values = f"{self._segment.folder} recorded {recorded}, and here is {self.parameters}"
                self.difference = f"different bits at step {at.step}: {values}"


def replay(segment: Segment) -> HashComparison:
    """Train the segment again; call it on every rank.

    Raises BitsDiffer, on all ranks, if the weights are not those of the run; UserError if the options, the data or the
    installation do not allow it; TrainingError if training fails; Stopped if the job was asked to stop.
    """
    config, runtime = segment.config, segment.runtime
    prepare(config.framework)
    target, dataset = load_target(config, dataclasses.replace(runtime, resume=segment.folder))
    ours, theirs = json.loads(to_json(target.record())), segment.record.network or {}
    is_same = {**ours, "table": None} == {**theirs, "table": None}  # of its rows, the fingerprint tells
    if not is_same or not dataset.fingerprint.startswith(segment.record.data):
        reason = f"--model {config.model} or its data are not those that {segment.folder} was trained with"
        raise UserError(reason, "restore them as they were")
    learner = build_learner(config, target, target.initial_weights(config), runtime)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    runtime = dataclasses.replace(runtime, runs=folder)
    try:
        with start_run(RunContext(config, runtime, target, learner, dataset), replays=True) as training:
            comparison, group = HashComparison(training.run, segment), learner.group
            if reasons := _reasons(segment, training.run):
                log.warning("different bits are to be expected: %s", "; ".join(reasons))
            training.observers.append(comparison)
            training.train()
            # Equal on all ranks, which then end in the same way; only rank 0 has read the run.
            problem = group.broadcast("; ".join([comparison.difference, *reasons]) if comparison.difference else "")
        group.close()
    except Stopped as error:
        raise Stopped("the replay was asked to stop", "start it again", rank=error.rank, step=error.step) from None
    finally:
        opened = console.open_folder()  # rank 0's, perhaps on another host
        console.close_log()
        for path in {folder, opened.parent if opened else folder}:
            if path.name.startswith(PREFIX):
                shutil.rmtree(path, ignore_errors=True)
    if problem:
        raise BitsDiffer(problem, "docs/deterministic.md says what decides the bits")
    return comparison


def _reasons(segment: Segment, run: RunContext) -> list[str]:
    """Why the bits may be others than the run's."""
    record, here = segment.record, run.arithmetic
    bits, versions = record.arithmetic or {}, texts(record.versions)
    compared = {name: versions[name] for name in here["versions"] if name in versions}
    recorded = {"variables": {}, **bits, "versions": compared}
    reasons = consistency.changes(recorded, here)
    before = record.text("strategy"), record.ranks
    if not run.in_shards and before != (run.config.strategy, run.group.size):
        reasons.append(f"without --shards, {before[0]} on {before[1]} rank(s) has other bits")
    return reasons
