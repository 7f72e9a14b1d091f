"""The compared runs: the figures of their rows in columns, and what every page says about them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from hvdtrain.config.option import ARGUMENT, key
from hvdtrain.config.score import ACCURACY
from hvdtrain.config.sources import FACTS
from hvdtrain.runs.run import RecordedRun, unit_of
from hvdtrain.system.text import count_of, finite_number, printable
from hvdtrain.views.report.comparison import bit_sentences, make_rows
from hvdtrain.views.report.findings import findings
from hvdtrain.views.report.rows import MOST, SAME_WORK, ReportRow, Spread, group_rows, note_of, spread
from hvdtrain.views.table import Column, Section, Table, figure_form, text_column

NONE = "—"
NOTE = "settings that differ from most runs"
HOST = ("name", "processor", "cores", "system")
MAX_OPTIONS = 5
"""Options with a column; of more, the others are in a note."""
MAX_CLASSES = 20
"""With more classes, their accuracies are not listed."""
LEAST = 9
"""Columns of the terminal to which figures are wrapped."""


class RunsReport:
    title = "Runs of hvdtrain, compared"

    def __init__(self, runs: list[RecordedRun], unfinished: list[str]) -> None:
        self.rows = make_rows(runs)
        self.groups = group_rows(self.rows)
        self.options = differing_options(self.rows)
        columns = [FigureColumn(key(name), functools.partial(_option, name), priority=1) for name in self.options]
        self.main, self.more = main_columns(self.rows, columns), more_columns(self.rows, columns)
        self.legend = f"* {MOST.format(unit_of(runs))} of its table"
        self.findings = [*bit_sentences(runs), *findings(self.groups)]
        self.unfinished, self.classes = unfinished, class_lines(runs)
        self._runs = runs
        self.noted = any(self._note(row) for row in self.rows)

    def summary(self) -> str:
        times = sorted(run.config.started for run in self._runs if run.config.started)
        first, last = (_minute(time) for time in (times[0], times[-1])) if times else ("", "")
        span = f", started {first}" + (f" to {last}" if last != first else "") if times else ""
        rest = f"; {len(self.unfinished)} unfinished" if self.unfinished else ""
        return f"{count_of(len(self._runs), 'run')} in {count_of(len(self.rows), 'row')}{span}{rest}."

    def facts(self) -> dict[str, list[tuple[str, str]]]:
        """By title, names and values; a value that differs has the number of runs of each."""
        versions = dict.fromkeys(name for run in self._runs for name in run.versions)
        names = dict.fromkeys(name for run in self._runs for name in run.settings if name != "machine")
        settings = {name: _values(run.settings.get(name, "none") for run in self._runs) for name in names}
        settings["seed"] = _values(str(run.options["seed"]) for run in self._runs)
        return {
            "Machine": [(name, _values(run.host.get(name) or "?" for run in self._runs)) for name in HOST],
            "Versions": [(name, _values(run.versions.get(name, "none") for run in self._runs)) for name in versions],
            "Settings": [(name.replace("_", "-"), text) for name, text in settings.items()],
        }

    def runs(self) -> list[tuple[str, list[str]]]:
        """Each row, and its runs: the name of the folder, and when it started."""
        names = Counter(run.name for run in self._runs)
        return [(row.label, [_named(run, names) for run in row.runs]) for row in self.rows]

    def table(self, shown: Sequence[FigureColumn]) -> Table:
        """These figures of all rows; of the main ones, the greatest speed of a group is marked."""
        texts = ["strategy", *([NOTE] if self.noted else [])]
        columns = [text_column(text) for text in texts]
        columns += [Column(one.heading, one.priority, least=LEAST, wraps=True) for one in shown]
        sections = []
        for group in self.groups:
            rows = [[*self.names(row), *(column.of(row) for column in shown)] for row in group.rows]
            best = group.rows.index(group.fastest) if group.fastest else None
            sections.append(Section(rows, group.title, best))
        return Table(columns, sections, len(texts) + self.speed_at if shown is self.main else None)

    def names(self, row: ReportRow) -> list[str]:
        """What names a row in a table: its strategy, and where rows differ in settings without a column, its own."""
        return [row.strategy, *([self._note(row)] if self.noted else [])]

    def _note(self, row: ReportRow) -> str:
        return note_of((name, value) for name, value in row.notes.items() if name not in self.options)

    @property
    def speed_at(self) -> int:
        """The place of the speed among the main columns."""
        return 1 + len(self.options)


def differing_options(rows: Sequence[ReportRow]) -> list[str]:
    """The options in which rows differ and that have a column: first those in which most rows do."""
    counts = Counter(name for row in rows for name in row.notes)
    options = [name for name in counts if (name in FACTS or name.startswith(ARGUMENT)) and name not in SAME_WORK]
    return sorted(options, key=lambda name: -counts[name])[:MAX_OPTIONS]


def _named(run: RecordedRun, names: Counter[str]) -> str:
    """A run's folder, with the folder above it if another run has the same name; and when it started."""
    name = run.name if names[run.name] == 1 else f"{run.folder.resolve().parent.name}/{run.name}"
    return f"{name}, {_minute(run.config.started)}" if run.config.started else name


def _minute(started: str) -> str:
    return started[:16].replace("T", " ")


def _values(values: Iterable[str]) -> str:
    counts = Counter(values).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return "differs: " + ", ".join(f"{value} ({count_of(number, 'run')})" for value, number in counts)


def class_lines(runs: Iterable[RecordedRun]) -> list[str]:
    """The lowest first, the median of the runs' accuracies of each class, with minimum and maximum; not of many."""
    accuracies: dict[str, list[float]] = {}
    for run in runs:
        for name, value in (run.result.per_class_accuracy or {}).items():
            if (accuracy := finite_number(value)) is not None:
                accuracies.setdefault(printable(name), []).append(accuracy)
    if len(accuracies) > MAX_CLASSES:
        return []
    spreads = [(known.median, name, known) for name, values in accuracies.items() if (known := spread(values))]
    return [
        f"{name}: {median:.4f}" + (f" ({known.text('.4f')})" if known.low != known.high else "")
        for median, name, known in sorted(spreads, key=lambda one: one[:2])
    ]


class FigureColumn(NamedTuple):
    heading: str
    of: Callable[[ReportRow], str]
    priority: int = 0
    """In narrow terminals the columns of the highest number are left out first."""


def _speed(row: ReportRow) -> str:
    value = row.images_per_s
    if value is None:
        return NONE
    ends = f"{value.text(',.0f')}, " if value.number > 1 else ""
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
    details = [value.text(figure_form(value.median))] if value.low != value.high else []
    details += [f"95 %: {row.chance.text('.3f')}"] if row.chance else []
    return f"{value.median:{figure_form(value.median)}}" + (f" ({'; '.join(details)})" if details else "")


def _score_column(rows: Sequence[ReportRow]) -> FigureColumn:
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
    seconds = f"{row.step_s.median * 1e3:,.1f} ms" if row.step_s else ""
    shares = " / ".join("unknown" if part is None else f"{part:.0%}" for part in row.shares or ())
    return ": ".join(filter(None, (seconds, shares))) or NONE


def _median(value: Spread | None, form: str) -> str:
    return NONE if value is None else f"{value.median:{form}}"


def _hash(row: ReportRow) -> str:
    hashes = list(dict.fromkeys(run.result.parameters for run in row.runs if run.result.parameters))
    return f"{len(hashes)} hashes" if len(hashes) > 1 else hashes[0] if hashes else NONE


SIZE = FigureColumn("ranks × devices", lambda row: row.size)


def _option(name: str, row: ReportRow) -> str:
    return row.run.settings.get(name) or NONE


def main_columns(rows: Sequence[ReportRow], options: Iterable[FigureColumn]) -> tuple[FigureColumn, ...]:
    """options: of the options in which rows differ."""
    return (
        *(SIZE, *options),
        FigureColumn(f"{unit_of(row.run for row in rows)}/s (minimum to maximum, runs)", _speed),
        FigureColumn("scaling efficiency", _efficiency, priority=1),
        _score_column(rows),
        FigureColumn("max difference", _difference, priority=3),
        FigureColumn("hash of weights", _hash, priority=4),
    )


def more_columns(rows: Sequence[ReportRow], options: Iterable[FigureColumn]) -> tuple[FigureColumn, ...]:
    unit = unit_of(row.run for row in rows)
    return (
        *(SIZE, *options),
        FigureColumn(f"{unit}/s per core", lambda row: _median(row.images_per_core_s, ",.0f")),
        FigureColumn("GFLOP/s per core", lambda row: _median(row.gflops_per_core, ",.1f")),
        FigureColumn("epoch, s", lambda row: _median(row.epoch_s, ".2f")),
        FigureColumn("step: computing / communication / waiting for rows", _step),
        FigureColumn("peak memory, MB", lambda row: f"{row.peak_rss_mb.high:,.0f}" if row.peak_rss_mb else NONE),
        *(FigureColumn(title, functools.partial(_metric, name)) for title, name in _other_metrics(rows)),
    )


def _other_metrics(rows: Sequence[ReportRow]) -> list[tuple[str, str]]:
    """Titles and names of the metrics that are not the score of all rows."""
    known = dict.fromkeys((row.part, name) for row in rows for name in row.metrics)
    shown = [one for one in known if any((row.part, row.scored_by) != one for row in rows)]
    return [(f"{part} {printable(name)}", name) for part, name in shown]


def _metric(name: str, row: ReportRow) -> str:
    value = row.metrics.get(name)
    return _median(value, figure_form(value.median) if value else "")
