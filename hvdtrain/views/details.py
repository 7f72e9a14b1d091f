"""What a run's folder holds besides its state, and what differs between runs."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.text import Text

from hvdtrain.config.option import key
from hvdtrain.config.options import Config, RuntimeOptions, from_recipe
from hvdtrain.config.recipes import RECIPES
from hvdtrain.config.sources import FACTS, to_record
from hvdtrain.runs.metrics import TRAIN_LOSS
from hvdtrain.runs.records import ClassResults, read, shown
from hvdtrain.runs.run import RecordedRun
from hvdtrain.system.files import last_bytes
from hvdtrain.system.text import finite_number
from hvdtrain.views.run_view import RunView
from hvdtrain.views.table import Cell, Column, Section, Table

NOT_SINGLE = ("per_class_accuracy", "per_class_rows", "metrics", "confusion")
"""Results that are not single figures, or that are listed by others of their names."""
MAX_CLASSES = 30
"""Of more classes, only those of the lowest accuracies are shown."""
MAX_ENTRIES = 1000
"""Of a list or an object of a file, more are not read."""
LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d{3} ([A-Z]{1,10}) (.*)")
LEVELS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}
"""The color of messages that are more than information."""
LAST_BYTES = 1 << 13
"""What is read of each log for the last messages."""
MAX_RANKS = 64
"""Of more ranks, only the first ones' messages are joined."""
MAX_MESSAGES = 60
"""That are shown of a run."""
FILE_BYTES = 1 << 18
"""What is shown of one log or of one rank's stacks: its end."""


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
    flattened: dict[str, object] = {}
    for name, value in list(values.items())[:MAX_ENTRIES]:
        full = f"{prefix}{shown(name, 80)}"
        if isinstance(value, dict) and value and not prefix:
            flattened |= flat(value, f"{full}.")
        else:
            flattened[full] = value
    return flattened


def options(run: RecordedRun) -> dict[str, object]:
    """Options of both kinds, by the names that they have on the command line."""
    both = {**run.config.options, **run.config.runtime}
    return {f"--{key(shown(name, 80))}": value for name, value in list(both.items())[:MAX_ENTRIES]}


PLACES = {f"--{key(name)}" for name, about in FACTS.items() if about.is_place}
"""Options that say where a run is, which every run has its own values of."""


def changed_options(run: RecordedRun) -> dict[str, object]:
    """The options that differ from the defaults of the run's recipe, and the recipe if it is not the default."""
    recipe = run.config.text("recipe")
    base = from_recipe(recipe) if recipe in RECIPES else Config()
    defaults = {**to_record(base), "recipe": Config().recipe, **to_record(RuntimeOptions())}
    usual, missing = {f"--{key(name)}": value for name, value in defaults.items()}, object()
    return {
        name: value for name, value in options(run).items() if value != usual.get(name, missing) and name not in PLACES
    }


def versions(run: RecordedRun) -> dict[str, object]:
    return flat(run.config.versions or {})


def columns(run: RecordedRun) -> dict[str, object]:
    """What each column of its table was read as; empty for other data, and for runs of earlier versions."""
    table = (run.config.network or {}).get("table")
    read = table.get("read") if isinstance(table, dict) else None
    return flat(read) if isinstance(read, dict) else {}


def host(run: RecordedRun) -> dict[str, object]:
    return {name: value for name, value in flat(run.config.host or {}).items() if value != ""}


def results(run: RecordedRun) -> dict[str, object]:
    """The single figures of the result; shares and the task's own metrics by their names."""
    values = read(run.folder / "result.json", dict[str, Any])
    single = {name: value for name, value in values.items() if name not in NOT_SINGLE}
    metrics = values.get("metrics")
    figures = flat({**single, **(metrics if isinstance(metrics, dict) else {}), **single})
    return {name: value for name, value in figures.items() if value is not None}


def classes(run: RecordedRun) -> dict[str, object]:
    """Of the classes of test data, the lowest accuracy first: `0.528 of 36 rows, 12 taken for three`."""
    result = read(run.folder / "result.json", ClassResults)
    accuracies, confusion, described = result.per_class_accuracy, iter(result.confusion or ()), []
    for name, accuracy in accuracies.items():
        predicted = next(confusion, [])
        if accuracy is None or not math.isfinite(accuracy):
            continue
        taken = {other: count for other, count in zip(accuracies, predicted, strict=False) if other != name}
        most = max(taken, key=taken.__getitem__, default=name)
        rows = f" of {result.per_class_rows[name]} rows" if name in result.per_class_rows else ""
        wrong = f", {taken[most]} taken for {shown(most, 80)}" if taken.get(most) else ""
        described.append((accuracy, shown(name, 80), f"{accuracy:.3f}{rows}{wrong}"))
    return {name: text for _, name, text in sorted(described)[:MAX_CLASSES]}


class LogMessage(NamedTuple):
    time: str
    """Date and time by that host's clock, `2026-05-01 14:03:11`."""
    ranks: list[int]
    level: str
    text: str


def newest_messages(folder: Path) -> list[LogMessage]:
    """What the ranks logged last, in the order of time, and what several say, once."""
    return joined_messages(last_messages(folder))[-MAX_MESSAGES:]


def last_messages(folder: Path) -> list[LogMessage]:
    """Those at the end of each rank's log."""
    messages: list[LogMessage] = []
    for rank, path in LOGS.paths(folder)[:MAX_RANKS]:
        matches = map(LINE.fullmatch, _last_lines(path, LAST_BYTES))
        messages += [LogMessage(match[1], [rank], match[2], shown(match[3])) for match in matches if match]
    return sorted(messages, key=lambda message: message.time)


def joined_messages(messages: Sequence[LogMessage]) -> list[LogMessage]:
    """What several ranks say, once; of what is only information, that of the first rank that said something in the
    same minute, as all log their figures, and the first one may have been lost.
    """
    firsts: dict[str, int] = {}
    for message in messages:
        minute = message.time[:16]
        firsts[minute] = min(message.ranks[0], firsts.get(minute, message.ranks[0]))
    groups: dict[tuple[str, str], LogMessage] = {}
    joined: list[LogMessage] = []
    for message in messages:
        key, (rank,) = (message.level, message.text), message.ranks
        if rank != firsts[message.time[:16]] and message.level not in LEVELS:
            continue
        if key not in groups or rank in groups[key].ranks:
            groups[key] = message._replace(ranks=[])
            joined.append(groups[key])
        groups[key].ranks.append(rank)
    return joined


def _last_lines(path: Path, most: int) -> list[str]:
    """The lines in the last `most` bytes of a file; the first may be a part of one."""
    return last_bytes(path, most).decode(errors="replace").splitlines()


class RankFiles(NamedTuple):
    """Text files of which each rank may have one."""

    folder: str
    form: re.Pattern[str]

    def paths(self, run: Path) -> list[tuple[int, Path]]:
        try:
            matches = list(filter(None, map(self.form.fullmatch, os.listdir(run / self.folder))))
        except OSError:
            return []
        return sorted((int(match[1]), run / self.folder / match[0]) for match in matches)

    def ranks(self, run: Path) -> list[int]:
        return [rank for rank, _ in self.paths(run)]

    def lines(self, run: Path, rank: int) -> list[str] | None:
        """The end of that of a rank; None if there is none."""
        path = dict(self.paths(run)).get(rank)
        return [shown(line, 2000) for line in _last_lines(path, FILE_BYTES)] if path else None


LOGS = RankFiles("logs", re.compile(r"rank-(\d{1,6})\.log"))
STACKS = RankFiles("heartbeats", re.compile(r"stacks-rank-(\d{1,6})\.txt"))
"""As the watchdog writes them after a hang."""


RESULTS = "results"
"""The kind of values whose relative differences say something."""
SAME_RESULTS = ("accuracy", "loss", "steps", "images_per_s", "step")
"""Results that a run also has under the same or another name while it trains."""
PLACEMENT = ("ranks", "devices", "device", "controller", "steps")
MAX_LAYERS = 300
"""That are compared."""
MISSING = "—"
"""In the place of a value that a run has not."""
MIN_WIDTH = 6
"""Of a column in a narrow terminal."""


class DifferingValue(NamedTuple):
    kind: str
    name: str
    texts: list[str]
    """The value of each run as it is shown; of results, also how much it differs from that of the first run."""


def differences(views: Sequence[RunView]) -> list[DifferingValue]:
    """The values that differ, in the order in which the runs name them."""
    runs = [_kinds(view) for view in views]
    found = []
    for kind in runs[0]:
        names = dict.fromkeys(name for values in runs for name in values[kind])
        for name in names:
            values = [run[kind].get(name) for run in runs]
            if len({_key(value) for value in values}) > 1:
                found.append(DifferingValue(kind, name, list(_texts(values, kind == RESULTS))))
    return found


def _kinds(view: RunView) -> dict[str, Mapping[str, object]]:
    run = view.run
    chosen = {name: value for name, value in options(run).items() if name not in PLACES}
    return {
        "options": chosen,
        "network": _network(run),
        "ranks and devices": {name: getattr(run.config, name) for name in PLACEMENT},
        "versions": versions(run),
        "host": host(run),
        RESULTS: _results(view),
    }


def _network(run: RecordedRun) -> dict[str, object]:
    """The values of a network, and a text for each of its layers, such as `conv outputs 20 kernel 3`."""
    network = run.config.network or {}
    described = {**network, **(inner if isinstance(inner := network.get("description"), dict) else {})}
    layers = described.pop("layers", None)
    described.pop("description", None)
    texts = {}
    for number, layer in enumerate(layers[:MAX_LAYERS] if isinstance(layers, list) else [], 1):
        values = flat(layer) if isinstance(layer, dict) else {"": layer}
        parts = (f"{'' if name == 'type' else name} {value_text(value)}".strip() for name, value in values.items())
        texts[f"layer {number}"] = " ".join(parts)
    return {**flat(described), **texts}


def _results(view: RunView) -> dict[str, object]:
    changes = view.run.changes
    known = {*SAME_RESULTS, *view.metrics}
    more = {name: value for name, value in results(view.run).items() if name not in known}
    return {
        "state": view.state.name, "reason": view.state.reason or None, "step": view.step,
        TRAIN_LOSS: view.loss, view.loss_name: view.evaluated_loss, **view.metrics,
        f"{view.run.unit}/s": view.images_per_s,
        "ranks lost": changes.losses, "ranks joined": changes.joins, "shards moved": changes.moves, **more,
    }  # fmt: skip


def _key(value: object) -> object:
    """Equal for values that are the same; 1 and 1.0 are."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and value == value else (type(value).__name__, value_text(value))


def _texts(values: Sequence[object], are_results: bool) -> Iterator[str]:
    first = finite_number(values[0]) if are_results else None
    for value in values:
        other = finite_number(value)
        changed = relative(other, first) if first is not None and other != first else ""
        yield MISSING if value is None else f"{value_text(value)}{changed}"


def relative(value: float | None, base: float) -> str:
    """` (+3.1 %)`: how much a value differs from another; empty where that says nothing."""
    percent = 100 * (value / base - 1) if base and value is not None else math.inf
    if abs(percent) >= 1e4 or math.isnan(percent):
        return ""
    return f" ({percent:+.0f} %)" if abs(percent) >= 10 else f" ({percent:+.2g} %)"


def difference_lines(names: Sequence[str], found: Sequence[DifferingValue], width: int | None) -> list[Text]:
    """The table, with a color for values that differ from the first run's. names: of the runs.

    width: of the terminal, in which long values are wrapped; None for a file: a line for each row.
    """
    columns = [Column("kind", 1, left=True)]
    columns += [Column(name, left=True, least=MIN_WIDTH, wraps=True) for name in ("value", *names)]
    rows: list[list[Cell]] = [
        [one.kind, one.name, *(Text(text, "" if text == one.texts[0] else "cyan") for text in one.texts)]
        for one in found
    ]
    return Table(columns, [Section(rows)], ruled=False).lines(width)
