"""The table of runs: which runs it lists, by filters such as `accuracy>0.9`, in which order, and how it looks."""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.text import Text

from hvdtrain.errors import UserError
from hvdtrain.system.text import did_you_mean, printable
from hvdtrain.views.run_view import STATES, RunView
from hvdtrain.views.table import Cell, CellsOf, Column, Table
from hvdtrain.views.terminal.figures import decimal, duration, short, speed, steps

TEXTS = ("name", "folder", "id", "started", "state", "reason", "framework", "strategy", "model", "data")
NUMBERS = (
    *("rank", "ranks", "step", "last_step", "epoch", "loss", "accuracy", "test_loss", "lr"),
    *("images_per_s", "left_s"),
)
COLUMNS = (*TEXTS, *NUMBERS)
"""Names of columns: those of `RunView.values`."""
ALIASES = {"when": "started", "images/s": "images_per_s", "time_left": "left_s"}
FILTER = re.compile(r"([^=!<>~]*)(=|!=|<=|>=|<|>|~)(.*)", re.DOTALL)
ORDERED: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
STYLES = {
    "starting": "cyan", "training": "green", "waiting": "yellow", "restarting": "yellow", "finished": "",
    "stopped": "yellow", "failed": "red", "hung": "red",
}  # fmt: skip
"""The color of each state."""
REMEDY = "filters are COLUMN=VALUE, or with !=, <, <=, >, >=, or ~ for texts that contain VALUE"


class Filter(NamedTuple):
    """A condition that a listed run meets."""

    column: str
    operator: str
    value: str

    @classmethod
    def parse(cls, given: str) -> Filter:
        """From the command line. Raises UserError if it is none."""
        match = FILTER.fullmatch(given)
        if not match or (match[2] not in ("=", "!=") and not match[3].strip()):
            raise UserError(f"--filter {printable(given)}: no comparison", REMEDY)
        parsed = cls(column_of(match[1].strip(), "--filter"), match[2], match[3].strip())
        if parsed.column in NUMBERS and parsed.value and (parsed.operator == "~" or parsed.number is None):
            raise UserError(f"--filter {printable(given)}: {parsed.column} is a number", REMEDY)
        return parsed

    @property
    def number(self) -> float | None:
        """The value as a number."""
        try:
            value = float(self.value)
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def accepts(self, view: RunView) -> bool:
        """Whether a run meets it. An unknown value equals only an empty one."""
        actual = view.values[self.column]
        if self.operator in ("=", "!="):
            return self._equals(actual) == (self.operator == "=")
        if actual is None or actual == "":
            return False
        if self.operator == "~":
            return self.value.lower() in str(actual).lower()
        return ORDERED[self.operator](actual, self.number if self.column in NUMBERS else self.value)

    def _equals(self, actual: Any) -> bool:
        if actual is None or actual == "" or not self.value:
            return (actual is None or actual == "") and not self.value
        if self.column in NUMBERS:
            return bool(actual == self.number)
        known, value = str(actual).lower(), self.value.lower()
        # A strategy is also called without what its ranks are connected by: `horovod` for `horovod over Gloo`.
        return value == known or (self.column == "strategy" and value == known.partition(" over ")[0])


def column_of(name: str, option: str) -> str:
    """The column of that name. Raises UserError if there is none; option: where the name was given."""
    column = ALIASES.get(name.lower(), name.lower().replace("-", "_"))
    if column not in COLUMNS:
        hint = did_you_mean(column, [*COLUMNS, *ALIASES])
        raise UserError(f"{option}: no column {printable(name)!r}{hint}", f"the columns are {', '.join(COLUMNS)}")
    return column


def sort_runs(views: list[RunView], column: str = "-started", reverse: bool = False) -> list[RunView]:
    """The runs by a column, the least value first, or with `-` before its name, the greatest; unknown values last.

    Raises UserError for an unknown column.
    """
    name = column_of(column.removeprefix("-"), "--sort")
    views = sorted(views, key=lambda view: str(view.folder))
    known = [view for view in views if view.values[name] not in (None, "")]
    unknown = [view for view in views if view.values[name] in (None, "")]
    return sorted(known, key=lambda view: _key(view.values[name]), reverse=column.startswith("-") != reverse) + unknown


def _key(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def state_text(view: RunView) -> Text:
    """The state, and its reason."""
    text = Text(view.state.name, f"bold {STYLES.get(view.state.name, '')}".strip())
    return text.append(f": {view.state.reason}", "not bold") if view.state.reason else text


def run_lines(views: Sequence[RunView], width: int | None, plain: bool = False) -> list[Text]:
    """The table. width: of the terminal; None for lines that are not cut. plain: without characters beyond ASCII."""

    def column(heading: str, priority: int, text: Callable[[RunView], Cell], **layout: Any) -> CellsOf:
        return Column(heading, priority, **layout), [text(view) for view in views]

    begun = None if width is None else 16  # up to the minute
    table = Table.of_columns(
        [
            column("name", 0, lambda view: view.name, left=True, least=28, overflow="middle"),
            column("when", 8, lambda view: view.started[:begun], left=True),
            column("state", 1, state_text, left=True, least=10),
            column("framework", 9, lambda view: view.values["framework"], left=True),
            column("strategy", 7, lambda view: view.run.strategy, left=True, least=8),
            column("ranks", 6, lambda view: str(view.size or "")),
            column("step", 5, steps),
            column("loss", 3, lambda view: decimal(view.loss)),
            column("accuracy", 2, lambda view: decimal(view.accuracy)),
            column("images/s", 4, lambda view: speed(view.images_per_s)),
            column("epoch", 11, lambda view: short(view.values["epoch"])),
            column("time left", 10, lambda view: duration(view.left_s)),
            column("model", 12, lambda view: view.values["model"], left=True, least=8, overflow="middle"),
            column("data", 13, lambda view: view.values["data"], left=True, least=12, overflow="middle"),
        ]
    )
    return table.lines(width, plain)


def counted(views: Sequence[RunView]) -> str:
    """How many runs there are, and in which states."""
    counts = Counter(view.state.name for view in views)
    states = ", ".join(f"{counts[name]} {name}" for name in STATES if counts[name])
    return f"{len(views)} run{'s' * (len(views) != 1)}: {states}" if views else "no runs"
