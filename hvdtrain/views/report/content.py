"""The compared runs: the figures of their rows in columns, and what every page says about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from hvdtrain.config.option import ARGUMENT, key
from hvdtrain.config.score import ACCURACY
from hvdtrain.config.sources import FACTS
from hvdtrain.runs.run import RecordedRun, unit_of
from hvdtrain.system.text import count_of, figure, finite_number, printable
from hvdtrain.views.report.comparison import bit_sentences, make_rows
from hvdtrain.views.report.findings import findings
from hvdtrain.views.report.rows import MOST, SAME_WORK, ReportRow, Spread, group_rows, note_of, spread
from hvdtrain.views.table import Column, Section, Table, text_column

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

    def __init__(self, runs: list[RecordedRun], unfinished: list[str], by_score: bool = False) -> None:
        self.rows = make_rows(runs)
        if by_score:
            self.rows.sort(key=lambda row: row.rank)
        self.groups = group_rows(self.rows)
        self.options = differing_options(self.rows)
        self.unit = unit_of(runs)
        self.legend = f"* {MOST.format(self.unit)} of its table"
        self.findings = [*bit_sentences(runs), *findings(self.groups)]
        self.unfinished, self.classes = unfinished, class_lines(runs)
        self._runs = runs
        self._of_best = dict.fromkeys(name for row in self.rows for name in row.of_best)
        self._scores = {(row.part, row.scored_by) for row in self.rows if row.scored_by} or {("test", ACCURACY)}

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

    def main(self, row: ReportRow) -> dict[str, str]:
        """The figures of a row in the first table, by heading."""
        return {
            **self._chosen(row),
            self._speed_heading: _speed(row),
            "scaling efficiency": _efficiency(row),
            **self._scored(row),
            "max difference": _difference(row),
            "hash of weights": _hash(row),
        }

    def more(self, row: ReportRow) -> dict[str, str]:
        """Those of the second table."""
        return {
            **self._chosen(row),
            f"{self.unit}/s per core": _median(row.images_per_core_s, ",.0f"),
            "GFLOP/s per core": _median(row.gflops_per_core, ",.1f"),
            "epoch, s": _median(row.epoch_s, ".2f"),
            "step: computing / communication / waiting for rows": _step(row),
            "peak memory, MB": f"{row.peak_rss_mb.high:,.0f}" if row.peak_rss_mb else NONE,
            **{f"{part} {printable(name)}": _metric(row.metrics.get(name)) for part, name in self._other_metrics()},
            "loss": _metric(row.loss),
            **{f"test {printable(name)} of the best": _metric(row.of_best.get(name)) for name in self._of_best},
        }

    def _chosen(self, row: ReportRow) -> dict[str, str]:
        """The size, and the options in which rows differ."""
        options = {key(name): row.run.settings.get(name) or NONE for name in self.options}
        return {"ranks × devices": row.size, **options}

    @property
    def _speed_heading(self) -> str:
        return f"{self.unit}/s (minimum to maximum, runs)"

    def _scored(self, row: ReportRow) -> dict[str, str]:
        """The score, with its name if rows have several."""
        if len(self._scores) > 1:
            text = f"{row.part} {row.scored_by} {_score(row)}" if row.score else NONE
            return {"score (minimum to maximum; 95 % interval of accuracies)": text}
        ((part, name),) = self._scores
        interval = "; 95 % interval" if name == ACCURACY else ""
        return {f"{part} {name} (minimum to maximum{interval})": _score(row)}

    def _other_metrics(self) -> list[tuple[str, str]]:
        """The metrics that are not the score of all rows."""
        known = dict.fromkeys((row.part, name) for row in self.rows for name in row.metrics)
        return [one for one in known if any((row.part, row.scored_by) != one for row in self.rows)]

    def table(self, figures: Callable[[ReportRow], dict[str, str]]) -> Table:
        """These figures of all rows; of the main ones, the greatest speed of a group is marked.

        In a narrow terminal the last ones are left out first, but never the size and the speed.
        """
        noted = any(self._note(row) for row in self.rows)
        names, headings = ["strategy", *([NOTE] * noted)], list(figures(self.rows[0]))
        best = headings.index(self._speed_heading) if self._speed_heading in headings else None
        columns = [text_column(name) for name in names]
        for number, heading in enumerate(headings):
            priority = 0 if best is None or not number else 1 if number < best else number - best
            columns.append(Column(heading, priority, least=LEAST, wraps=True))
        sections = []
        for group in self.groups:
            rows = [[row.strategy, *([self._note(row)] * noted), *figures(row).values()] for row in group.rows]
            fastest = group.rows.index(group.fastest) if group.fastest else None
            sections.append(Section(rows, group.title, fastest, group.mark))
        return Table(columns, sections, None if best is None else len(names) + best)

    def _note(self, row: ReportRow) -> str:
        return note_of((name, value) for name, value in row.notes.items() if name not in self.options)


def differing_options(rows: Sequence[ReportRow]) -> list[str]:
    """The options in which rows differ and that have a column: first those in which most rows do."""
    counts = Counter(name for row in rows for name in row.notes)
    given = [name for name in counts if name in FACTS or name.startswith((ARGUMENT, "--"))]
    options = [name for name in given if name not in SAME_WORK]
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
        f"{name}: {figure(median)}" + (f" ({known.text()})" if known.low != known.high else "")
        for median, name, known in sorted(spreads, key=lambda one: one[:2])
    ]


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
    details = [value.text()] if value.low != value.high else []
    details += [f"95 %: {row.chance.text('.3f')}"] if row.chance else []
    return figure(value.median) + (f" ({'; '.join(details)})" if details else "")


def _difference(row: ReportRow) -> str:
    if row.difference is None:
        return NONE
    largest, reference = row.difference
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


def _metric(value: Spread | None) -> str:
    return NONE if value is None else figure(value.median)
