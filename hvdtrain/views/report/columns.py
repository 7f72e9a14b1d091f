"""The figures of a row, as text, and the columns in which tables show them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hvdtrain.config.score import ACCURACY
from hvdtrain.system.text import count_of, printable
from hvdtrain.views.report.definitions import NONE
from hvdtrain.views.report.rows import ReportRow, Spread, score_form, unit_of


class FigureColumn(NamedTuple):
    """A column of a table of rows."""

    heading: str
    of: Callable[[ReportRow], str]
    priority: int = 0
    """In narrow terminals the columns of the highest number are left out first."""


def _speed(row: ReportRow) -> str:
    value = row.images_per_s
    if value is None:
        return NONE
    ends = f"{value.range.text(',.0f')}, " if value.number > 1 else ""
    return f"{value.median:,.0f} ({ends}{count_of(value.number, 'run')})"


def _efficiency(row: ReportRow) -> str:
    if row.scaling is None:
        return NONE
    efficiency = f"{row.scaling.efficiency:.2f}"
    return {"base": "base", "weak": f"weak {efficiency}"}.get(row.scaling.kind, efficiency)


def _score(row: ReportRow) -> str:
    value = row.score
    if value is None:
        return NONE
    details = [value.range.text(score_form(value.median))] if value.minimum != value.maximum else []
    details += [f"95 %: {row.chance.text('.3f')}"] if row.chance else []
    return f"{value.median:{score_form(value.median)}}" + (f" ({'; '.join(details)})" if details else "")


def _score_column(rows: Sequence[ReportRow]) -> FigureColumn:
    """The score, by its name if all rows have the same."""
    names = {(row.part, row.scored_by) for row in rows if row.scored_by} or {("test", ACCURACY)}
    if len(names) > 1:
        heading = "score (minimum to maximum; 95 % interval of accuracies)"
        return FigureColumn(
            heading, lambda row: f"{row.part} {row.scored_by} {_score(row)}" if row.score else NONE, priority=2
        )
    ((part, name),) = names
    interval = "; 95 % interval" if name == ACCURACY else ""
    return FigureColumn(f"{part} {name} (minimum to maximum{interval})", _score, priority=2)


def _difference(row: ReportRow) -> str:
    if row.difference is None:
        return NONE
    largest, reference = row.difference
    if largest is None:
        return "reference"
    framework = reference.options["framework"]
    return f"{largest:.2g}" + (f" (from {framework})" if framework != row.framework else "")


def _step(row: ReportRow) -> str:
    """Time of a step, and the shares of its parts."""
    seconds = f"{row.step_s.median * 1e3:,.1f} ms" if row.step_s else ""
    shares = " / ".join("unknown" if part is None else f"{part:.0%}" for part in row.shares or ())
    return ": ".join(filter(None, (seconds, shares))) or NONE


def _median(value: Spread | None, form: str) -> str:
    return NONE if value is None else f"{value.median:{form}}"


def _hash(row: ReportRow) -> str:
    hashes = list(dict.fromkeys(run.parameters for run in row.runs if run.parameters))
    return f"{len(hashes)} hashes" if len(hashes) > 1 else hashes[0] if hashes else NONE


SIZE = FigureColumn("ranks × devices", lambda row: row.size)
SPEED_AT = 1
"""The place of the speed among the main columns."""


def main_columns(rows: Sequence[ReportRow]) -> tuple[FigureColumn, ...]:
    """The figures that are compared most."""
    return (
        SIZE,
        FigureColumn(f"{unit_of(rows)}/s (minimum to maximum, runs)", _speed),
        FigureColumn("scaling efficiency", _efficiency, priority=1),
        _score_column(rows),
        FigureColumn("max difference", _difference, priority=3),
        FigureColumn("hash of weights", _hash, priority=4),
    )


def more_columns(rows: Sequence[ReportRow]) -> tuple[FigureColumn, ...]:
    """The other figures."""
    return (
        SIZE,
        FigureColumn(f"{unit_of(rows)}/s per core", lambda row: _median(row.images_per_core_s, ",.0f")),
        FigureColumn("GFLOP/s per core", lambda row: _median(row.gflops_per_core, ",.1f")),
        FigureColumn("epoch, s", lambda row: _median(row.epoch_s, ".2f")),
        FigureColumn("step: computing / communication / waiting for rows", _step),
        FigureColumn("peak memory, MB", lambda row: f"{row.peak_rss_mb.maximum:,.0f}" if row.peak_rss_mb else NONE),
        *(FigureColumn(title, functools.partial(_metric, name)) for title, name in _other_metrics(rows)),
    )


def _other_metrics(rows: Sequence[ReportRow]) -> list[tuple[str, str]]:
    """Titles and names of the metrics that are not the score of all rows."""
    known = dict.fromkeys((row.part, name) for row in rows for name in row.metrics)
    shown = [one for one in known if any((row.part, row.scored_by) != one for row in rows)]
    return [(f"{part} {printable(name)}", name) for part, name in shown]


def _metric(name: str, row: ReportRow) -> str:
    value = row.metrics.get(name)
    return _median(value, score_form(value.median) if value else "")
