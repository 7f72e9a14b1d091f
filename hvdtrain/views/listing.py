"""The table of runs: which runs it lists, by filters such as `accuracy>0.9`, in which order, and how it looks."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import ge, gt, le, lt
from typing import Any, NamedTuple

from rich.text import Text

from hvdtrain.config.option import ARGUMENT, key
from hvdtrain.config.score import LOSS
from hvdtrain.errors import UserError
from hvdtrain.runs.metrics import TRAIN_LOSS
from hvdtrain.runs.run import unit_of
from hvdtrain.system.text import count_of, did_you_mean, printable
from hvdtrain.views.details import value_text
from hvdtrain.views.run_state import STATES
from hvdtrain.views.run_view import RunView
from hvdtrain.views.table import Cell, CellsOf, Column, Table
from hvdtrain.views.terminal.figures import decimal, duration, short, speed, steps

TEXTS = (
    *("name", "folder", "id", "started", "state", "reason", "framework", "strategy", "model", "data"),
    *("scored_by", "best_checkpoint", "evaluated", "parent"),
)
COLUMNS = (
    *TEXTS,
    *("rank", "ranks", "ranks_now", "step", "last_step", "epoch", "loss", "accuracy", "validation_loss", "test_loss"),
    *("lr", "score", "images_per_s", "left_s"),
)
"""Names of columns: those of `RunView.values`. Metrics are columns of their names."""
ALIASES = {
    **{"when": "started", "images/s": "images_per_s", "rows/s": "images_per_s"},
    **{"time_left": "left_s", "train_loss": "loss"},
}
FILTER = re.compile(r"([^=!<>~]*)(=|!=|<=|>=|<|>|~)(.*)", re.DOTALL)
ORDERED: dict[str, Callable[[Any, Any], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
REMEDY = "filters are COLUMN=VALUE, or with !=, <, <=, >, >=, or ~ for texts that contain VALUE"
MINUTE = 16
"""Characters of a time up to the minute."""
LEAST_NAME = 26
"""Columns of the terminal to which names of runs are wrapped at least: they differ at both ends."""
MAX_COLUMNS = 6
"""Of more metrics or options, a terminal shows the first ones."""


class Filter(NamedTuple):
    """A condition that a listed run meets. value: of a column of numbers, a number, or None for an unknown one."""

    column: str
    operator: str
    value: str | float | None

    @classmethod
    def parse(cls, given: str, metrics: Collection[str] = (), options: Collection[str] = ()) -> Filter:
        """From the command line. metrics, options: names of further columns. Raises UserError if it is none."""
        match = FILTER.fullmatch(given)
        operator, text = (match[2], match[3].strip()) if match else ("", "")
        if not match or not (text or operator in ("=", "!=")):
            raise UserError(f"--filter {printable(given)}: no comparison", REMEDY)
        column, number = column_of(match[1].strip(), [*metrics, *options], "--filter"), _number(text)
        is_text = column in TEXTS or (column in options and (number is None or operator == "~"))
        if is_text or not text:
            return cls(column, operator, text.lower() or None)
        if operator == "~" or number is None:
            raise UserError(f"--filter {printable(given)}: {column} is a number", REMEDY)
        return cls(column, operator, number)

    def accepts(self, view: RunView) -> bool:
        """Whether a run meets it. An unknown value equals only an empty one."""
        actual = value_of(view, self.column)
        if self.column in TEXTS or isinstance(self.value, str):
            actual = ("" if actual is None else str(actual)).lower() or None
        elif isinstance(actual, str):
            actual = _number(actual) if self.value is not None else actual
        if self.operator in ("=", "!="):
            # A strategy is also called without what its ranks are connected by: `horovod` for `horovod over Gloo`.
            short_name = actual.partition(" over ")[0] if actual and self.column == "strategy" else actual
            return (self.value in (actual, short_name)) == (self.operator == "=")
        if actual is None:
            return False
        return self.value in actual if self.operator == "~" else ORDERED[self.operator](actual, self.value)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def value_of(view: RunView, column: str) -> Any:
    options = view.values["options"]
    if column in options:
        return options[column]
    return view.values[column] if column in COLUMNS else view.metrics.get(column)


def option_names(views: Iterable[RunView]) -> list[str]:
    return list(dict.fromkeys(name for view in views for name in view.values["options"]))


def differing_options(runs: Collection[Mapping[str, int | float | str]]) -> list[str]:
    """The names of options that differ between runs: first those in which most runs differ from most; seeds last.

    runs: the options of each. One that a run lacks differs only if it is an argument of a task.
    """
    counts: dict[str, Counter[str]] = {}
    for options in runs:
        for name, value in options.items():
            counts.setdefault(name, Counter())[value_text(value)] += 1
    others = {
        name: values.total() - max(values.values()) + (name.startswith(ARGUMENT) and values.total() < len(runs))
        for name, values in counts.items()
    }
    return sorted((name for name in others if others[name]), key=lambda name: (name == "seed", -others[name]))


def metric_names(views: Iterable[RunView]) -> list[str]:
    """The metrics of these runs: first those by which they are compared, then those that most runs have."""
    counts = Counter(name for view in views for name in view.metrics)
    scores = {view.score.name for view in views if view.score}
    return sorted(counts, key=lambda name: (name not in scores, -counts[name]))


def column_of(name: str, metrics: Collection[str], option: str) -> str:
    """The column of that name, or the metric or the option of runs. Raises UserError for `option` if there is none.

    metrics: the names of further columns, which come first: `lr` is the option, and else the rate of the last step.
    """
    if found := next((known for known in (name, key(name.lower())) if known in metrics), ""):
        return found
    column = re.sub("[- ]", "_", name.lower())
    column = ALIASES.get(column, column)
    if column not in COLUMNS:
        known = list(dict.fromkeys([*COLUMNS, *metrics]))
        hint = did_you_mean(column, [*known, *ALIASES])
        raise UserError(f"{option}: no column {printable(name)!r}{hint}", f"the columns are {', '.join(known)}")
    return column


def sort_runs(views: list[RunView], column: str = "-started") -> list[RunView]:
    """The runs by a column, the least value first, or with `-` before its name, the greatest; unknown values last.

    By `score` the best is first, whether that is the least or the greatest, and with `-` the last. Raises UserError for
    an unknown column.
    """
    name = column_of(column.removeprefix("-"), [*metric_names(views), *option_names(views)], "--sort")
    views = sorted(views, key=lambda view: str(view.folder))
    known = [view for view in views if value_of(view, name) not in (None, "")]
    unknown = [view for view in views if value_of(view, name) in (None, "")]
    return sorted(known, key=lambda view: _key(view, name), reverse=column.startswith("-")) + unknown


def _key(view: RunView, column: str) -> Any:
    if column == "score" and view.score:
        return -view.score.signed
    value = value_of(view, column)
    return (isinstance(value, str), value.lower() if isinstance(value, str) else value)


def state_text(view: RunView) -> Text:
    text = Text(view.state.name, f"bold {STATES.get(view.state.name, '')}".strip())
    return text.append(f": {view.state.reason}", "not bold") if view.state.reason else text


def run_lines(views: Sequence[RunView], width: int | None) -> list[Text]:
    """The table. width: of the terminal; None for lines that are not cut."""

    def column(heading: str, priority: int, text: Callable[[RunView], Cell], least: int = 0) -> CellsOf:
        return Column(heading, priority, left=bool(least), least=least), [text(view) for view in views]

    def option(name: str) -> CellsOf:
        return column(name, 4, lambda view: value_text(view.values["options"].get(name, "")))

    def metric(name: str) -> CellsOf:
        return column(name, 2 if name in scores else 10, lambda view: decimal(view.metrics.get(name)))

    most, begun = (None, None) if width is None else (MAX_COLUMNS, MINUTE)
    scores = {view.score.name for view in views if view.score}
    metrics = [metric(name) for name in metric_names(views)[:most]]
    options = [option(name) for name in differing_options([view.values["options"] for view in views])[:most]]
    parts = sorted({view.run.part for view in views}) or ["test"]
    loss = column(f"{' or '.join(parts)} loss", 3 if metrics else 2, lambda view: decimal(view.evaluated_loss))
    parent = column("parent", 15, lambda view: view.values["parent"], 15)
    table = Table.of_columns(
        [
            (Column("name", left=True, least=LEAST_NAME, wraps=True), [view.name for view in views]),
            column("when", 8, lambda view: view.values["started"][:begun], MINUTE),
            column("state", 1, state_text, 10),
            column("framework", 9, lambda view: view.values["framework"], 9),
            column("strategy", 7, lambda view: view.run.strategy, 8),
            column("ranks", 6, lambda view: view.ranks_text),
            *options,
            column("step", 5, steps),
            column(TRAIN_LOSS, 3, lambda view: decimal(view.loss)),
            *([loss] if LOSS in scores else []),
            *metrics,
            *([column("evaluated", 4, lambda view: view.run.part, 4)] if parts != ["test"] else []),
            column(f"{unit_of(view.run for view in views)}/s", 4, lambda view: speed(view.images_per_s)),
            column("epoch", 11, lambda view: short(view.values["epoch"])),
            column("time left", 10, lambda view: duration(view.left_s)),
            column("best checkpoint", 14, lambda view: view.values["best_checkpoint"], 15),
            *([parent] if any(parent[1]) else []),
            column("model", 12, lambda view: view.values["model"], 8),
            column("data", 13, lambda view: view.values["data"], 12),
        ]
    )
    return table.lines(width)


def counted(views: Sequence[RunView]) -> str:
    counts = Counter(view.state.name for view in views)
    states = ", ".join(f"{counts[name]} {name}" for name in STATES if counts[name])
    return f"{count_of(len(views), 'run')}: {states}" if views else "no runs"
