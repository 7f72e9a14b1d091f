"""The compared runs, and what every page says about them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from hvdtrain.runs.run import RecordedRun
from hvdtrain.system.text import count_of, printable
from hvdtrain.views.report.bits import bit_sentences
from hvdtrain.views.report.columns import SPEED_AT, FigureColumn, main_columns, more_columns
from hvdtrain.views.report.comparison import make_rows
from hvdtrain.views.report.definitions import NOTE
from hvdtrain.views.report.findings import findings
from hvdtrain.views.report.rows import MOST, ReportRow, group_rows, unit_of
from hvdtrain.views.table import Column, Section, Table, text_column

HOST = ("name", "processor", "cores", "system")
MAX_CLASSES = 20
"""With more classes, their accuracies are not listed."""
LEAST = 9
"""Columns of the terminal to which figures are wrapped."""


class RunsReport:
    """The content of all pages."""

    title = "Runs of hvdtrain, compared"

    def __init__(self, runs: list[RecordedRun], unfinished: list[str]) -> None:
        self.rows = make_rows(runs)
        self.groups = group_rows(self.rows)
        self.main, self.more = main_columns(self.rows), more_columns(self.rows)
        self.legend = f"* {MOST.format(unit_of(self.rows))} of its table"
        self.findings = [*bit_sentences(runs), *findings(self.groups)]
        self.unfinished, self.classes = unfinished, class_lines(runs)
        self._runs = runs
        self.noted = any(row.note for row in self.rows)

    def summary(self) -> str:
        """How many runs, and when they started."""
        times = sorted(run.started for run in self._runs if run.started)
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
        return [
            (
                row.label,
                [f"{_folder(run, names)}{f', {_minute(run.started)}' if run.started else ''}" for run in row.runs],
            )
            for row in self.rows
        ]

    def table(self, shown: Sequence[FigureColumn]) -> Table:
        """These figures of all rows; of the main ones, the greatest speed of a group is marked."""
        texts = ["strategy", *([NOTE] if self.noted else [])]
        columns = [text_column(text) for text in texts]
        columns += [Column(one.heading, one.priority, least=LEAST, overflow="wrap") for one in shown]
        sections = []
        for group in self.groups:
            rows = [[*self.names(row), *(column.of(row) for column in shown)] for row in group.rows]
            best = group.rows.index(group.fastest) if group.fastest else None
            sections.append(Section(rows, group.title, best))
        return Table(columns, sections, len(texts) + SPEED_AT if shown is self.main else None)

    def names(self, row: ReportRow) -> list[str]:
        """What names a row in a table: its strategy, and where rows of the report differ in settings, its own."""
        return [row.strategy, *([row.note] if self.noted else [])]


def _folder(run: RecordedRun, names: Counter[str]) -> str:
    """The name of a run's folder; with the folder above it if another run has the same name."""
    return run.name if names[run.name] == 1 else f"{run.folder.resolve().parent.name}/{run.name}"


def _minute(started: str) -> str:
    """A recorded time up to the minute, as date and time."""
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
        by_class = run.result.table("per_class_accuracy")
        for name in by_class.values:
            if (accuracy := by_class.number(name)) is not None:
                accuracies.setdefault(printable(name), []).append(accuracy)
    if len(accuracies) > MAX_CLASSES:
        return []
    medians = {name: statistics.median(values) for name, values in accuracies.items()}
    lines = []
    for name in sorted(medians, key=lambda name: (medians[name], name)):
        low, high = min(accuracies[name]), max(accuracies[name])
        lines.append(f"{name}: {medians[name]:.4f}" + (f" ({low:.4f} to {high:.4f})" if low != high else ""))
    return lines
