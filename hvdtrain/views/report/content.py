"""The compared runs, and what every page says about them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from hvdtrain.runs.run import RecordedRun
from hvdtrain.system.text import printable
from hvdtrain.views.report.bits import bit_sentences
from hvdtrain.views.report.columns import SPEED_AT, Figure, FigureColumn, main_columns, more_columns
from hvdtrain.views.report.comparison import make_rows
from hvdtrain.views.report.definitions import NOTE
from hvdtrain.views.report.findings import findings
from hvdtrain.views.report.rows import MOST, Group, Row, count_of, group_rows, unit_of
from hvdtrain.views.table import Column, Section, Table, text_column

HOST = ("name", "processor", "cores", "system")
STRATEGY = "strategy"
LEFT_OUT_FIRST = 10
"""Added to the priority of columns with details."""
MAX_CHANGES, MAX_RUNS = 20, 50
"""Changes of ranks that are listed: of a run, the newest; and of how many runs."""
MAX_CLASSES = 20
"""Classes that are listed, those of the lowest accuracy first."""


class Report:
    """The content of all pages."""

    title = "Runs of hvdtrain, compared"

    def __init__(self, runs: list[RecordedRun], unfinished: list[str]) -> None:
        self.rows = make_rows(runs)
        self.groups = group_rows(self.rows)
        self.main, self.more = main_columns(self.rows), more_columns(self.rows)
        self.legend = f"* {MOST.format(unit_of(self.rows))} of its table"
        self.findings = [*bit_sentences(runs), *findings(self.groups)]
        self.unfinished = unfinished
        self.classes = class_lines(runs)
        self.changes = change_lines(runs)
        self._runs = runs
        self.noted = any(row.note for row in self.rows)

    def summary(self) -> str:
        """How many runs, and when they started."""
        times = sorted(run.started for run in self._runs if run.started)
        first, last = (_date(time) for time in (times[0], times[-1])) if times else ("", "")
        span = f", started {first}" + (f" to {last}" if last != first else "") if times else ""
        rest = f"; {len(self.unfinished)} unfinished" if self.unfinished else ""
        return f"{count_of(len(self._runs), 'run')} in {count_of(len(self.rows), 'row')}{span}{rest}."

    def machines(self) -> list[str]:
        """One line per machine."""
        counts = Counter(tuple(run.host.get(name) or "?" for name in HOST) for run in self._runs)
        lines = [
            f"{name}: {processor}, {cores} cores, {system}"
            + (f" ({count_of(number, 'run')})" if len(counts) > 1 else "")
            for (name, processor, cores, system), number in counts.items()
        ]
        if len(counts) > 1:
            lines.append(
                f"These are {len(counts)} machines: figures of one are not comparable with figures of another. Runs on "
                "different processors or numbers of cores are never in one row."
            )
        return lines

    def versions(self) -> list[tuple[str, str]]:
        """(package, version); if versions differ, each with its number of runs."""
        names = dict.fromkeys(name for run in self._runs for name in run.versions)
        return [(name, _values(run.versions.get(name, "none") for run in self._runs)) for name in names]

    def settings(self) -> list[tuple[str, str]]:
        """(option, value); if values differ, each with its number of runs."""
        names = dict.fromkeys(name for run in self._runs for name in run.settings)
        texts = [
            (name.replace("_", "-"), _values(run.settings.get(name, "none") for run in self._runs))
            for name in names
            if name != "machine"
        ]
        texts.append(("seed", _values(str(run.options["seed"]) for run in self._runs)))
        return texts

    def runs(self) -> list[tuple[str, list[str]]]:
        """Each row, and its runs: the name of the folder, and when it started."""
        names = Counter(run.name for run in self._runs)
        return [
            (
                row.label,
                [f"{_folder(run, names)}{f', {_date(run.started)}' if run.started else ''}" for run in row.runs],
            )
            for row in self.rows
        ]

    def main_table(self) -> Table:
        """The figures that are compared most, each with its details in the same cell."""
        return self._table(self.main)

    def more_table(self) -> Table:
        """The other figures."""
        return self._table(self.more)

    def terminal_table(self) -> Table:
        """As `main_table`; details have columns of their own, in terminals that have room for them."""
        repeated = any(len(row.runs) > 1 for row in self.rows)
        columns, parts = [text_column(STRATEGY)], []
        for column in self.main:
            columns.append(Column(column.heading, priority=column.priority))
            parts.append((column, "text"))
            if column.detail and (repeated or column is not self.main[SPEED_AT]):
                columns.append(Column(column.detail, priority=column.priority + LEFT_OUT_FIRST))
                parts.append((column, "detail"))
        sections = [
            self._section(
                group, [[_name(row), *(getattr(column.of(row), part) for column, part in parts)] for row in group.rows]
            )
            for group in self.groups
        ]
        return Table(columns, sections, 1 + SPEED_AT)

    def _table(self, shown: tuple[FigureColumn, ...]) -> Table:
        texts = [STRATEGY, *([NOTE] if self.noted else [])]
        columns = [*(text_column(text) for text in texts), *(Column(column.full_heading) for column in shown)]
        sections = [
            self._section(group, [[*self.names(row), *(column.of(row).line for column in shown)] for row in group.rows])
            for group in self.groups
        ]
        return Table(columns, sections, len(texts) + SPEED_AT if shown is self.main else None)

    def _section(self, group: Group, rows: list[list[str]]) -> Section:
        return Section(rows, group.title, group.rows.index(group.fastest) if group.fastest else None)

    def names(self, row: Row) -> list[str]:
        """What names a row in a table: its strategy, and where rows of the report differ in settings, its own."""
        return [row.strategy, *([row.note] if self.noted else [])]


def figures(row: Row, shown: tuple[FigureColumn, ...]) -> list[tuple[FigureColumn, Figure]]:
    """The figures of a row."""
    return [(column, column.of(row)) for column in shown]


def _name(row: Row) -> str:
    return row.strategy + (f", {row.note}" if row.note else "")


def _folder(run: RecordedRun, names: Counter[str]) -> str:
    """The name of a run's folder; with the folder above it if another run has the same name."""
    return run.name if names[run.name] == 1 else f"{run.folder.resolve().parent.name}/{run.name}"


def _date(started: str) -> str:
    """A recorded time as date, hours and minutes; another text as it is."""
    try:
        return datetime.strptime(started, "%Y-%m-%dT%H:%M:%S%z").strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return started


def _values(values: Iterable[str]) -> str:
    counts = Counter(values).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return "differs: " + ", ".join(f"{value} ({count_of(number, 'run')})" for value, number in counts)


def change_lines(runs: Iterable[RecordedRun]) -> list[tuple[str, list[str]]]:
    """Of each run whose ranks changed: its name and how much happened, and the newest changes in their order."""
    changed = [(run.name, run.changes) for run in runs if run.changes]
    return [
        (f"{name}: {changes.summary}", [change.text for change in changes.changes[-MAX_CHANGES:]])
        for name, changes in changed[:MAX_RUNS]
    ] + [(f"{len(changed) - MAX_RUNS} more runs", [])] * (len(changed) > MAX_RUNS)


def class_lines(runs: Iterable[RecordedRun]) -> list[str]:
    """A line for each class: its name, and the median of the runs' test accuracies with minimum and maximum."""
    accuracies: dict[str, list[float]] = {}
    for run in runs:
        by_class = run.result.table("per_class_accuracy")
        for name in by_class.values:
            if (accuracy := by_class.number(name)) is not None:
                accuracies.setdefault(printable(name), []).append(accuracy)
    by_median = sorted(accuracies, key=lambda name: (statistics.median(accuracies[name]), name))
    lines = [f"{name}: {_class_text(accuracies[name])}" for name in by_median[:MAX_CLASSES]]
    more = len(by_median) - MAX_CLASSES
    return [*lines, f"{more} more classes with higher accuracies"] if more > 0 else lines


def _class_text(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{statistics.median(values):.4f}" + (f" ({low:.4f} to {high:.4f})" if low != high else "")
