"""What a run's folder holds besides its state: options, versions, host, attempts, checkpoints, results, findings."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.config.options import RECIPES, Config, RuntimeOptions, from_recipe
from hvdtrain.config.sources import FACTS, to_record
from hvdtrain.system import checkpoint_folder
from hvdtrain.system.files import read_json
from hvdtrain.views.monitor.content import count, number, read_object, shown, table, text

PLACES = [name for name, about in FACTS.items() if about.is_place]
"""Options that say where a run is, which every run has its own values of."""
LARGE_RESULTS = ("per_class_accuracy", "confusion", "metrics")
"""Results that are no single figures, or that are listed by others of their names."""
TIMELINE = re.compile(r"timeline-[0-9]{1,12}-[0-9]{1,12}\.json")
MOST_ENTRIES = 1000
"""Of a list or an object of a file, more are not read."""


def value_text(value: object) -> str:
    """A JSON value as it is shown; numbers without digits that say nothing."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if value is None or isinstance(value, str | bool | int):
        return shown(value) if not isinstance(value, int) or value.bit_length() < 256 else "a number of many digits"
    try:
        return shown(json.dumps(value))
    except (ValueError, RecursionError):
        return "…"


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, object]:
    """Values by name; those of objects in it as `object.name`."""
    found: dict[str, object] = {}
    for name, value in list(values.items())[:MOST_ENTRIES]:
        full = f"{prefix}{shown(name, 80)}"
        if isinstance(value, dict) and value and not prefix:
            found |= flat(value, f"{full}.")
        else:
            found[full] = value
    return found


class Details(NamedTuple):
    """Content of config.json and result.json."""

    config: dict[str, Any]
    result: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Details:
        return cls(read_object(folder / "config.json"), read_object(folder / "result.json"))

    @property
    def options(self) -> dict[str, object]:
        """Options of both kinds, by the names that they have on the command line."""
        both = {**table(self.config, "config"), **table(self.config, "runtime")}
        return {f"--{shown(name, 80).replace('_', '-')}": value for name, value in list(both.items())[:MOST_ENTRIES]}

    @property
    def changed_options(self) -> dict[str, object]:
        """The options that differ from the defaults of the run's recipe, and the recipe if it is not the default."""
        recipe = table(self.config, "config").get("recipe")
        base = from_recipe(recipe) if isinstance(recipe, str) and recipe in RECIPES else Config()
        defaults = {**to_record(base), "recipe": Config().recipe, **to_record(RuntimeOptions())}
        usual = {f"--{name.replace('_', '-')}": value for name, value in defaults.items()}
        places = {f"--{name.replace('_', '-')}" for name in PLACES}
        missing = object()
        return {
            name: value
            for name, value in self.options.items()
            if value != usual.get(name, missing) and name not in places
        }

    @property
    def versions(self) -> dict[str, object]:
        return flat(table(self.config, "versions"))

    @property
    def host(self) -> dict[str, object]:
        return {name: value for name, value in flat(table(self.config, "host")).items() if value != ""}

    @property
    def results(self) -> dict[str, object]:
        """The single figures of the result; shares and the task's own metrics by their names."""
        own = {name: value for name, value in self.result.items() if name not in LARGE_RESULTS}
        metrics = {name: value for name, value in table(self.result, "metrics").items() if name not in own}
        return {name: value for name, value in flat({**own, **metrics}).items() if value is not None}


class AttemptRow(NamedTuple):
    """One attempt of a job that was restarted."""

    began: str
    seconds: float | None
    ranks: int
    checkpoint: int | None
    """The step of the checkpoint from which it continued."""
    step: int | None
    status: int
    ended: str


def attempts(folder: Path) -> list[AttemptRow]:
    """The attempts that the launcher recorded; none for a job without restarts."""
    try:
        found = read_json(folder / "attempts.json")
    except (OSError, ValueError, RecursionError):
        return []
    rows = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return [
        AttemptRow(
            began=_clock(number(one, "began")),
            seconds=number(one, "seconds"),
            ranks=count(one, "ranks"),
            checkpoint=count(one, "checkpoint", -1) if count(one, "checkpoint", -1) >= 0 else None,
            step=count(one, "step", -1) if count(one, "step", -1) >= 0 else None,
            status=count(one, "status"),
            ended=text(one, "ended"),
        )
        for one in rows[-MOST_ENTRIES:]
    ]


def _clock(seconds: float | None) -> str:
    """Date and time of seconds since the epoch."""
    try:
        return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (ValueError, OverflowError, OSError):
        return ""


class CheckpointRow(NamedTuple):
    """One checkpoint."""

    name: str
    step: int
    score: float
    is_continued: bool
    """Whether the newest checkpoint continues it, or is it."""


def checkpoints(folder: Path) -> list[CheckpointRow]:
    """The checkpoints of a run that can be read, oldest first."""
    try:
        known = checkpoint_folder.entries(folder / "checkpoints")
    except OSError:
        return []
    line = known[-1].line if known else ()
    return [CheckpointRow(shown(one.path.name), one.step, one.score, one.is_on(line)) for one in known]


class FindingRow(NamedTuple):
    """What the doctor found on rank 0's host when training started."""

    status: str
    text: str
    remedy: str


def findings(folder: Path) -> list[FindingRow]:
    """The doctor's findings that are not in order."""
    found = read_object(folder / "doctor.json").get("findings")
    rows = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    parsed = [FindingRow(text(one, "status"), text(one, "text"), text(one, "remedy")) for one in rows]
    return [one for one in parsed if one.status != "ok"][:MOST_ENTRIES]


def newest_timeline(folder: Path) -> str:
    """The name of the newest timeline of steps; empty where there is none."""
    try:
        names = [entry for entry in os.scandir(folder) if TIMELINE.fullmatch(entry.name)]
        return max(names, key=lambda entry: entry.stat().st_mtime).name if names else ""
    except OSError:
        return ""
