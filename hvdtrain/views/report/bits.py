"""Whether runs that are to end with the same weights do, bit for bit: by the hashes in their results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from hvdtrain.runs.run import LAYERS, RecordedRun
from hvdtrain.runs.sessions import SAME_STEPS, resumed_from, sessions
from hvdtrain.system.text import to_json

MAX_SENTENCES = 4
"""Groups with different hashes that have a sentence."""
MAX_NAMES = 4
"""Runs that a sentence names."""


class BitGroup(NamedTuple):
    """Runs with --shards that are to have the same weights: only the distribution of their work may differ."""

    runs: list[RecordedRun]

    @property
    def hashes(self) -> dict[str, list[RecordedRun]]:
        """The runs with each hash, the most frequent one first."""
        by_hash: dict[str, list[RecordedRun]] = {}
        for run in self.runs:
            by_hash.setdefault(run.parameters, []).append(run)
        return dict(sorted(by_hash.items(), key=lambda item: -len(item[1])))

    @property
    def changed(self) -> list[str]:
        """What differs between its runs and decides the bits as well: packages, the processor and how it is used."""
        deciding = [_deciding(run) for run in self.runs]
        names = dict.fromkeys(name for values in deciding for name in values)
        return [name for name in names if len({values.get(name) for values in deciding}) > 1]


def _deciding(run: RecordedRun) -> dict[str, str]:
    versions = {name: version for name, version in run.versions.items() if name != "stack"}
    return {**versions, "processor": run.host.get("processor", ""), **run.config.table("arithmetic").texts()}


def bit_groups(runs: Iterable[RecordedRun]) -> list[BitGroup]:
    """The groups of at least two runs with a hash."""
    groups: dict[tuple[Any, ...], list[RecordedRun]] = {}
    for run in runs:
        if run.options["shards"] and run.parameters and _has_one_setting(run):
            groups.setdefault(_training(run), []).append(run)
    return [BitGroup(group) for group in groups.values() if len(group) > 1]


def _has_one_setting(run: RecordedRun) -> bool:
    """Whether it trained with the same options in all its sessions, and not from a checkpoint of another run."""
    known = sessions(run.folder)
    settings = {to_json(session.options) for session in known}
    return len(settings) < 2 and not (known and resumed_from(known))


def _training(run: RecordedRun) -> tuple[Any, ...]:
    """What decides the weights at the end, whatever the number of ranks and the strategy are."""
    options = {name: str(value) for name, value in run.options.items() if name not in SAME_STEPS}
    device, data = run.config.text("device").partition(":")[0], run.config.text("data")
    return (run.result.count("steps"), run.settings.get(LAYERS), device, data, *sorted(options.items()))


def bit_sentences(runs: Iterable[RecordedRun]) -> list[str]:
    """What is to be said of the groups; nothing without any."""
    groups = bit_groups(runs)
    differ = [_difference(group) for group in groups if len(group.hashes) > 1]
    if more := len(differ[MAX_SENTENCES:]):
        differ[MAX_SENTENCES:] = [f"Weights: {more} more groups of runs have different hashes."]
    same = [group for group in groups if len(group.hashes) == 1]
    count = sum(len(group.runs) for group in same)
    if len(same) == 1:
        shards, parameters = same[0].runs[0].options["shards"], next(iter(same[0].hashes))
        return [*differ, f"Weights: the same bits in all {count} runs with --shards {shards} (hash {parameters})."]
    trainings = f"all runs of each of {len(same)} trainings with --shards ({count} runs)"
    return [*differ, *([f"Weights: the same bits in {trainings}."] if same else [])]


def _difference(group: BitGroup) -> str:
    hashes = [f"{parameters} in {_names(runs)}" for parameters, runs in group.hashes.items()]
    more = f", and {len(hashes) - MAX_NAMES} more" if len(hashes) > MAX_NAMES else ""
    changed = f"; they differ in {', '.join(group.changed[:MAX_NAMES])}" if group.changed else ""
    found = f"{len(hashes)} different hashes in {len(group.runs)} runs that are to be equal"
    return f"Weights: {found}: {'; '.join(hashes[:MAX_NAMES])}{more}{changed}."


def _names(runs: list[RecordedRun]) -> str:
    """The names of runs in a sentence."""
    names = [run.name for run in runs]
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
