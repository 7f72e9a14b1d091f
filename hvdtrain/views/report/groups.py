"""Rows that compare with each other: those of one framework, on the same data, network and machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from hvdtrain.config.options import TITLES
from hvdtrain.views.report.rows import Row
from hvdtrain.views.report.runs import LAYERS

SAME_WORK = ("data", "model", LAYERS, "machine")
"""Settings that must be equal for one speed to be better than another."""

MOST = "most images/s"
"""A mark that does not say that a row is faster than others."""


@dataclass
class Group:
    """The rows of a framework; where several data sets, networks or machines are in the report, of one of each."""

    title: str
    rows: list[Row] = field(default_factory=list)

    @property
    def mark(self) -> str:
        """What the fastest row is called: without or within the spread of repetitions, it may be so by chance."""
        others = [row.images_per_s for row in self.rows if row.images_per_s and row is not self.fastest]
        best = self.fastest.images_per_s if self.fastest else None
        told = best and all(one.number > 1 and best.number > 1 and not one.range.overlaps(best.range) for one in others)
        return "fastest" if told else MOST

    @property
    def fastest(self) -> Row | None:
        """The row of the largest median of images/s; None if it is the only one that measured it, or one of several."""
        medians = [row.images_per_s.median for row in self.rows if row.images_per_s]
        if len(medians) < 2 or medians.count(max(medians)) > 1:
            return None
        return next(row for row in self.rows if row.images_per_s and row.images_per_s.median == max(medians))

    def as_fast(self) -> list[Row]:
        """Rows other than the fastest that repetitions do not tell apart from it: their ranges overlap."""
        best = self.fastest
        if not best or not best.images_per_s:
            return []
        return [
            row
            for row in self.rows
            if row is not best and row.images_per_s and row.images_per_s.range.overlaps(best.images_per_s.range)
        ]


def group_rows(rows: list[Row]) -> list[Group]:
    """The groups, in the order of their first rows, each with its rows in their order."""
    differ = [name for name in SAME_WORK if len({row.run.settings.get(name) for row in rows}) > 1]
    networks = {(row.run.settings["model"], row.run.settings.get(LAYERS)) for row in rows}
    if len(networks) == len({model for model, _ in networks}):
        differ = [name for name in differ if name != LAYERS]  # the model says it
    groups: dict[tuple[str | None, ...], Group] = {}
    for row in rows:
        values = {name: row.run.settings.get(name) for name in differ}
        shown = [value or "" if name == "machine" else f"{name} {value}" for name, value in values.items()]
        title = ", ".join([TITLES.get(row.framework, row.framework), *shown])
        groups.setdefault((row.framework, *values.values()), Group(title)).rows.append(row)
    return list(groups.values())
