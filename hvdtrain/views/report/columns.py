"""The figures of a row, and the columns in which tables show them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hvdtrain.config.score import ACCURACY
from hvdtrain.system.text import printable
from hvdtrain.views.report.definitions import NONE
from hvdtrain.views.report.rows import Row, Spread, count_of, score_form, unit_of


class Figure(NamedTuple):
    """A cell: a figure, and in smaller type what belongs to it."""

    text: str
    details: tuple[str, ...] = ()

    @property
    def detail(self) -> str:
        return "; ".join(self.details)

    @property
    def line(self) -> str:
        return f"{self.text} ({self.detail})" if self.details else self.text


class FigureColumn(NamedTuple):
    """A column of a table of rows."""

    heading: str
    of: Callable[[Row], Figure]
    detail: str = ""
    """What the details of its figures are."""
    priority: int = 0
    """In narrow terminals the columns of the highest number are left out first."""

    @property
    def full_heading(self) -> str:
        return f"{self.heading} ({self.detail})" if self.detail else self.heading


def _speed(row: Row) -> Figure:
    value = row.images_per_s
    if value is None:
        return Figure(NONE)
    ends = f"{value.range.text(',.0f')}, " if value.number > 1 else ""
    return Figure(f"{value.median:,.0f}", (f"{ends}{count_of(value.number, 'run')}",))


def _efficiency(row: Row) -> Figure:
    if row.scaling is None:
        return Figure(NONE)
    kind, efficiency = row.scaling.kind, f"{row.scaling.efficiency:.2f}"
    return Figure("base") if kind == "base" else Figure(f"weak {efficiency}" if kind == "weak" else efficiency)


def _score(row: Row) -> Figure:
    value = row.score
    if value is None:
        return Figure(NONE)
    ends = value.range.text(score_form(value.median)) if value.minimum != value.maximum else ""
    chance = f"95 %: {row.chance.text('.3f')}" if row.chance else ""
    return Figure(f"{value.median:{score_form(value.median)}}", tuple(filter(None, (ends, chance))))


def _named_score(row: Row) -> Figure:
    figure = _score(row)
    return figure._replace(text=f"{row.part} {row.scored_by} {figure.text}") if row.score else figure


def _score_column(rows: Sequence[Row]) -> FigureColumn:
    """The score, by its name if all rows have the same."""
    names = {(row.part, row.scored_by) for row in rows if row.scored_by} or {("test", ACCURACY)}
    if len(names) > 1:
        return FigureColumn("score", _named_score, "minimum to maximum; 95 % interval of accuracies", priority=2)
    ((part, name),) = names
    detail = "minimum to maximum; 95 % interval" if name == ACCURACY else "minimum to maximum"
    return FigureColumn(f"{part} {name}", _score, detail, priority=2)


def _difference(row: Row) -> Figure:
    if row.difference is None:
        return Figure(NONE)
    largest, reference = row.difference
    if largest is None:
        return Figure("reference")
    framework = reference.options["framework"]
    return Figure(f"{largest:.2g}", (f"from {framework}",) if framework != row.framework else ())


def _step(row: Row) -> Figure:
    """Time of a step, and the shares of its parts."""
    seconds = f"{row.step_s.median * 1e3:,.1f} ms" if row.step_s else ""
    shares = " / ".join("unknown" if part is None else f"{part:.0%}" for part in row.shares or ())
    return Figure(": ".join(filter(None, (seconds, shares))) or NONE)


def _serial_fraction(row: Row) -> Figure:
    value = row.scaling.serial_fraction if row.scaling else None
    return Figure(NONE if value is None else f"{value:.3f}")


def _median(value: Spread | None, form: str) -> Figure:
    return Figure(NONE if value is None else f"{value.median:{form}}")


def _memory(row: Row) -> Figure:
    return Figure(f"{row.peak_rss_mb.maximum:,.0f}" if row.peak_rss_mb else NONE)


def _hash(row: Row) -> Figure:
    hashes = list(dict.fromkeys(run.parameters for run in row.runs if run.parameters))
    return Figure(f"{len(hashes)} hashes" if len(hashes) > 1 else hashes[0] if hashes else NONE)


SIZE = FigureColumn("ranks × devices", lambda row: Figure(row.size))
SPEED_AT = 1
"""The place of the speed among the main columns."""


def main_columns(rows: Sequence[Row]) -> tuple[FigureColumn, ...]:
    """The figures that are compared most."""
    return (
        SIZE,
        FigureColumn(f"{unit_of(rows)}/s", _speed, "minimum to maximum, runs"),
        FigureColumn("scaling efficiency", _efficiency, priority=1),
        _score_column(rows),
        FigureColumn("max difference", _difference, priority=3),
        FigureColumn("hash of weights", _hash, priority=4),
    )


def more_columns(rows: Sequence[Row]) -> tuple[FigureColumn, ...]:
    """The other figures."""
    return (
        SIZE,
        FigureColumn(f"{unit_of(rows)}/s per core", lambda row: _median(row.images_per_core_s, ",.0f")),
        FigureColumn("GFLOP/s per core", lambda row: _median(row.gflops_per_core, ",.1f")),
        FigureColumn("epoch, s", lambda row: _median(row.epoch_s, ".2f")),
        FigureColumn("step: computing / communication / waiting for rows", _step),
        FigureColumn("Karp–Flatt serial fraction", _serial_fraction),
        FigureColumn("peak memory, MB", _memory),
        *(FigureColumn(title, functools.partial(_metric, name)) for title, name in other_metrics(rows)),
    )


def other_metrics(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Titles and names of the metrics that are not the score of all rows."""
    known = dict.fromkeys((row.part, name) for row in rows for name in row.metrics)
    shown = [one for one in known if any((row.part, row.scored_by) != one for row in rows)]
    return [(f"{part} {printable(name)}", name) for part, name in shown]


def _metric(name: str, row: Row) -> Figure:
    value = row.metrics.get(name)
    return _median(value, score_form(value.median) if value else "")
