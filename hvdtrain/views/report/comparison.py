"""From runs to rows that are compared with each other, and whether runs that are to have the same weights do."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hvdtrain.config.option import ARGUMENT, facts
from hvdtrain.config.options import Config
from hvdtrain.config.rules import SINGLE, style_of
from hvdtrain.config.sources import FACTS
from hvdtrain.errors import UserError
from hvdtrain.interfaces.learner import Checkpoint
from hvdtrain.runs import checkpoints
from hvdtrain.runs.records import SAME_STEPS, deciding_options, resumed_from, sessions, texts
from hvdtrain.runs.run import LAYERS, RecordedRun
from hvdtrain.system.text import to_json
from hvdtrain.views.report.rows import ReportRow, Scaling, WeightDifference, named_layers

DECIDE_SPEED = [*(name for name, about in FACTS.items() if about.affects_speed), LAYERS, "device", "threads", "machine"]
"""Settings that decide how long a step takes: they must be equal in a row and its base."""
OF_DISTRIBUTION = [name for name, about in facts(Config).items() if about.only_distributes]
"""Options that only decide how the work is distributed, so a single process may differ in them."""


def make_rows(runs: list[RecordedRun]) -> list[ReportRow]:
    """The rows, in the order of the table, compared with each other."""
    by_name = sorted(runs, key=lambda run: str(run.folder))
    rows = [ReportRow(group) for group in _grouped(by_name, lambda run: run.identity)]
    usual = _usual(runs)
    for row in rows:
        settings = row.run.settings.items()
        row.notes = {name: value for name, value in settings if value != usual.get(_compared_among(row.run, name))}
    rows.sort(key=_order)
    references = References(runs)
    for row in rows:
        row.scaling = scaling(row, rows)
        row.difference = references.difference(row)
    return rows


def _grouped(runs: Iterable[RecordedRun], key: Callable[[RecordedRun], Any]) -> list[list[RecordedRun]]:
    """The runs that have the same key together, in the order of their first ones."""
    groups: dict[Any, list[RecordedRun]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.values())


def _order(row: ReportRow) -> tuple[Any, ...]:
    run = row.run
    strategy = run.options["strategy"]
    names = strategy not in SINGLE, style_of(strategy), row.strategy
    return (row.framework, row.note, *names, run.replicas, run.config.ranks)


def _usual(runs: Sequence[RecordedRun]) -> dict[tuple[Any, ...], str]:
    """The most common value of each setting; none of a task's argument that not all runs were given."""
    counts: dict[tuple[Any, ...], Counter[str]] = {}
    for run in runs:
        for name, value in run.settings.items():
            counts.setdefault(_compared_among(run, name), Counter())[value] += 1
    return {
        name: values.most_common(1)[0][0]
        for name, values in counts.items()
        if values.total() == len(runs) or not name[0].startswith(ARGUMENT)
    }


def _compared_among(run: RecordedRun, name: str) -> tuple[Any, ...]:
    """The setting, and of which runs it is compared: layers among those whose other settings say the same of them."""
    return (name, *named_layers(run)) if name == LAYERS else (name,)


def scaling(row: ReportRow, rows: list[ReportRow]) -> Scaling | None:
    """A row compared with its base: strategy single, else its own strategy with one replica; None without a base.

    A base may have the global batch (strong scaling) or the batch per replica (weak scaling); if there are bases of
    both kinds, --batch-scope decides. A row with one replica scales nothing: it is a base or has none.
    """
    run, measured = row.run, row.images_per_s
    weak_first = run.options["batch_scope"] == "per-rank"
    for weak in (weak_first, not weak_first):
        base = _base(run, rows, weak)
        if base and measured and base is row:
            return Scaling("base", base, 1.0, 1.0)
        if base and measured and run.replicas > 1:
            assert base.images_per_s
            speedup, replicas = measured.median / base.images_per_s.median, run.replicas
            return Scaling("weak" if weak else "strong", base, speedup, speedup / replicas)
    return None


def _base(run: RecordedRun, rows: list[ReportRow], weak: bool) -> ReportRow | None:
    """The preferred base; of equal preference, the one with the fewest other settings."""
    global_batch = run.result.global_batch
    candidates = [
        (preference, sum(run.settings[name] != base.run.settings.get(name) for name in run.settings), number)
        for number, base in enumerate(rows)
        if (preference := _preference(run, base.run)) is not None
        and base.run.result.global_batch * (run.replicas if weak else 1) == global_batch
        and base.images_per_s
    ]
    return rows[min(candidates)[2]] if candidates else None


def _preference(run: RecordedRun, base: RecordedRun) -> int | None:
    """How well `base` represents one replica of `run`, 0 is best; None if they are not comparable."""
    equal = all(run.settings.get(name) == base.settings.get(name) for name in DECIDE_SPEED)
    if not equal or base.replicas > 1 or base.options["framework"] != run.options["framework"]:
        return None
    if base.options["strategy"] in SINGLE:
        style = style_of(base.options["strategy"])
        return 0 if style == style_of(run.options["strategy"]) else 2 if style else 1
    return 3 if base.strategy == run.strategy else None


class References:
    """Runs of a single process; other runs with the same network and batches should end with equal parameters."""

    def __init__(self, runs: list[RecordedRun]) -> None:
        self._checkpoints: dict[Path, Checkpoint | None] = {}
        self._references: dict[tuple[Any, ...], list[RecordedRun]] = {}
        for run in sorted(runs, key=lambda run: (bool(style_of(run.options["strategy"])), str(run.folder))):
            if run.options["strategy"] in SINGLE and run.replicas == 1:
                self._references.setdefault(_training(run), []).append(run)

    def difference(self, row: ReportRow) -> WeightDifference | None:
        """The largest difference over the row's runs; None if no other run of a single process is comparable."""
        differences = []
        for run in row.runs:
            reference = self._reference(run)
            if reference and reference is not run:
                differences.append(WeightDifference(self._largest(run, reference), reference))
        return max(differences, key=lambda difference: difference.largest, default=None)

    def _reference(self, run: RecordedRun) -> RecordedRun | None:
        """The run of a single process to compare with, preferably of the same framework."""
        candidates = self._references.get(_training(run), [])
        last = self._last_checkpoint(run)
        for candidate in sorted(candidates, key=lambda other: other.options["framework"] != run.options["framework"]):
            other = self._last_checkpoint(candidate)
            if last and other and last.data == other.data and _shapes(last) == _shapes(other):
                return candidate
        return None

    def _last_checkpoint(self, run: RecordedRun) -> Checkpoint | None:
        """The checkpoint of a run's last step; None if it is missing, damaged or not finite."""
        if run.folder not in self._checkpoints:
            saved = None
            with contextlib.suppress(UserError, OSError):
                saved = checkpoints.newest(run.folder)[1]
            arrays = [*saved.weights.values()] if saved and saved.position.step == run.result.steps else []
            is_finite = arrays and all(array.size and np.isfinite(array).all() for array in arrays)
            self._checkpoints[run.folder] = saved if is_finite else None
        return self._checkpoints[run.folder]

    def _largest(self, run: RecordedRun, reference: RecordedRun) -> float:
        last, other = self._last_checkpoint(run), self._last_checkpoint(reference)
        assert last and other
        pairs = ((value, other.weights[name]) for name, value in last.weights.items())
        return max(float(np.abs(np.subtract(*pair, dtype=np.float64)).max()) for pair in pairs)


def _training(run: RecordedRun) -> tuple[Any, ...]:
    """What decides the parameters at the end, however the work is distributed.

    By the linear scaling rule, --batch-scope per-rank has the batch and the learning rate of a single process with the
    global batch.
    """
    options = {name: value for name, value in run.options.items() if name not in OF_DISTRIBUTION}
    scale = run.config.ranks if options.pop("batch_scope") == "per-rank" else 1
    options["lr"] = f"{options['lr'] * scale:.9g}"
    options["batch_size"] = run.result.global_batch
    return (run.result.steps, run.settings.get(LAYERS), *sorted((name, str(value)) for name, value in options.items()))


def _shapes(saved: Checkpoint) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in saved.weights.items()}


MAX_NAMES = 4
"""Runs that a sentence names."""


def bit_sentences(runs: Iterable[RecordedRun]) -> list[str]:
    """Whether runs with --shards have the same weights where only the distribution of their work differs; nothing
    without such runs.
    """
    comparable = [run for run in runs if run.options["shards"] and run.result.parameters and _has_one_setting(run)]
    trainings = [compared for compared in _grouped(comparable, _deciding_options) if len(compared) > 1]
    by_hash = [_grouped(compared, lambda run: run.result.parameters) for compared in trainings]
    differ = [_difference(hashes) for hashes in by_hash if len(hashes) > 1]
    same = [compared for compared, *others in by_hash if not others]
    count = sum(map(len, same))
    if len(same) == 1:
        shards, parameters = same[0][0].options["shards"], same[0][0].result.parameters
        return [*differ, f"Weights: the same bits in all {count} runs with --shards {shards} (hash {parameters})."]
    several = f"all runs of each of {len(same)} trainings with --shards ({count} runs)"
    return [*differ, *([f"Weights: the same bits in {several}."] if same else [])]


def _has_one_setting(run: RecordedRun) -> bool:
    """Whether it trained with the same options in all its sessions, and not from a checkpoint of another run."""
    known = sessions(run.folder)
    settings = {to_json(deciding_options(session)) for session in known}
    return len(settings) < 2 and not (known and resumed_from(known))


def _deciding_options(run: RecordedRun) -> tuple[Any, ...]:
    """What decides the weights at the end, whatever the number of ranks and the strategy are."""
    options = {name: str(value) for name, value in run.options.items() if name not in SAME_STEPS}
    device, data = run.config.device.partition(":")[0], run.config.data
    return (run.result.steps, run.settings.get(LAYERS), device, data, *sorted(options.items()))


def _difference(by_hash: list[list[RecordedRun]]) -> str:
    """What is to be said of runs with several hashes: also in what they differ that decides the bits as well."""
    most_first = sorted(by_hash, key=len, reverse=True)
    hashes = [f"{runs[0].result.parameters} in {_names(runs)}" for runs in most_first]
    deciding = [_deciding(run) for runs in most_first for run in runs]
    names = dict.fromkeys(name for values in deciding for name in values)
    differing = [name for name in names if len({values.get(name) for values in deciding}) > 1]
    more = f", and {len(hashes) - MAX_NAMES} more" if len(hashes) > MAX_NAMES else ""
    changed = f"; they differ in {', '.join(differing[:MAX_NAMES])}" if differing else ""
    found = f"{len(hashes)} different hashes in {len(deciding)} runs that are to be equal"
    return f"Weights: {found}: {'; '.join(hashes[:MAX_NAMES])}{more}{changed}."


def _deciding(run: RecordedRun) -> dict[str, str]:
    """Packages, the processor and how it is used."""
    versions = {name: version for name, version in run.versions.items() if name != "stack"}
    return {**versions, "processor": run.host.get("processor", ""), **texts(run.config.arithmetic)}


def _names(runs: list[RecordedRun]) -> str:
    names = [run.name for run in runs]
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
