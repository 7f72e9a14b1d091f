"""Which runs are listed, and in which order: filters such as `accuracy>0.9`, and the column they are sorted by."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.system.text import did_you_mean, printable
from hvdtrain.views.monitor.run import RunView

TEXTS = ("name", "folder", "id", "started", "state", "reason", "framework", "strategy", "model", "data")
NUMBERS = (
    *("rank", "ranks", "step", "last_step", "epoch", "loss", "accuracy", "test_loss", "lr"),
    *("images_per_s", "left_s"),
)
COLUMNS = (*TEXTS, *NUMBERS)
"""Names of columns: those of `RunView.to_json`."""
ALIASES = {"when": "started", "images/s": "images_per_s", "time_left": "left_s"}
FILTER = re.compile(r"([^=!<>~]*)(=|!=|<=|>=|<|>|~)(.*)", re.DOTALL)
ORDERED: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
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
        if not match:
            raise UserError(f"--filter {printable(given)}: no comparison", REMEDY)
        found = cls(column_of(match[1].strip(), "--filter"), match[2], match[3].strip())
        if found.column in NUMBERS and found.value and (found.operator == "~" or found.number is None):
            raise UserError(f"--filter {printable(given)}: {found.column} is a number", REMEDY)
        return found

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
        found = view.to_json()[self.column]
        if self.operator in ("=", "!="):
            return self._equals(found) == (self.operator == "=")
        if found is None or found == "":
            return False
        if self.operator == "~":
            return self.value.lower() in str(found).lower()
        return ORDERED[self.operator](found, self.number if self.column in NUMBERS else self.value)

    def _equals(self, found: Any) -> bool:
        if found is None or found == "" or not self.value:
            return (found is None or found == "") and not self.value
        if self.column in NUMBERS:
            return bool(found == self.number)
        known, value = str(found).lower(), self.value.lower()
        # A strategy is also called without what its ranks are connected by: `horovod` for `horovod over Gloo`.
        return value == known or (self.column == "strategy" and value == known.partition(" over ")[0])


def column_of(name: str, option: str) -> str:
    """The column of that name. Raises UserError if there is none; option: where the name was given."""
    found = ALIASES.get(name.lower(), name.lower().replace("-", "_"))
    if found not in COLUMNS:
        hint = did_you_mean(found, [*COLUMNS, *ALIASES])
        raise UserError(f"{option}: no column {printable(name)!r}{hint}", f"the columns are {', '.join(COLUMNS)}")
    return found


def sort_runs(views: list[RunView], column: str = "-started", reverse: bool = False) -> list[RunView]:
    """The runs by a column, the least value first, or with `-` before its name, the greatest; unknown values last.

    Raises UserError for an unknown column.
    """
    name = column_of(column.removeprefix("-"), "--sort")
    known: list[tuple[Any, RunView]] = []
    unknown = []
    for view in sorted(views, key=lambda one: str(one.folder)):
        value = view.to_json()[name]
        if value is None or value == "":
            unknown.append(view)
        else:
            known.append((value.lower() if isinstance(value, str) else value, view))
    known.sort(key=lambda one: one[0], reverse=column.startswith("-") != reverse)
    return [view for _, view in known] + unknown
