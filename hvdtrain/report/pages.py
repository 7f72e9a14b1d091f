"""The report as Markdown, CSV and an HTML page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from importlib import resources

import jinja2

from hvdtrain.report.charts import draw
from hvdtrain.report.classes import class_lines
from hvdtrain.report.comparison import make_rows
from hvdtrain.report.csv_table import to_csv
from hvdtrain.report.definitions import DEFINITIONS, HEADINGS, NONE, NOTE, TEXT_COLUMNS
from hvdtrain.report.rows import Row, Spread, count_of
from hvdtrain.report.runs import FinishedRun
from hvdtrain.report.terminal_table import terminal_table

HOST = ("name", "processor", "cores", "system")


class Report:
    """The compared runs, and the content of every page about them."""

    title = "Runs of hvdtrain, compared"

    def __init__(self, runs: list[FinishedRun], unfinished: list[str]) -> None:
        self.rows = make_rows(runs)
        self.unfinished = unfinished
        self.classes = class_lines(runs)
        self._runs = runs
        self._noted = any(row.note for row in self.rows)
        self.headings = [*HEADINGS[:3], *([NOTE] if self._noted else []), *HEADINGS[3:]]

    def summary(self) -> str:
        """How many runs, and when they started."""
        times = sorted(run.started for run in self._runs if run.started)
        span = f", started {times[0]}" + (f" to {times[-1]}" if times[-1] != times[0] else "") if times else ""
        return f"{count_of(len(self._runs), 'run')} in {count_of(len(self.rows), 'row')}{span}."

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

    def cells(self, row: Row) -> list[str]:
        """A row as text, in the order of `headings`."""
        noted = [row.note] if self._noted else []
        serial_fraction = row.scaling.serial_fraction if row.scaling else None
        return [
            row.framework,
            row.strategy,
            row.size,
            *noted,
            _range(row.images_per_s),
            f"{row.images_per_core_s.median:,.0f}" if row.images_per_core_s else NONE,
            f"{row.peak_share.median:.0%}" if row.peak_share else NONE,
            f"{row.epoch_s.median:.2f}" if row.epoch_s else NONE,
            _step(row),
            _efficiency(row),
            NONE if serial_fraction is None else f"{serial_fraction:.3f}",
            f"{row.peak_rss_mb.maximum:,.0f}" if row.peak_rss_mb else NONE,
            _accuracy(row.accuracy),
            _difference(row),
        ]

    def markdown_table(self) -> str:
        """The rows as a table of Markdown."""
        rules = ["---" if heading in TEXT_COLUMNS else "---:" for heading in self.headings]
        lines = [self.headings, rules, *(list(map(escape, self.cells(row))) for row in self.rows)]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def terminal_table(self, width: int) -> str:
        """The rows as text of this width, without the columns that are compared less often."""
        names = [f"{row.framework} {row.strategy}" + (f", {row.note}" if row.note else "") for row in self.rows]
        return terminal_table(names, [_main_figures(row) for row in self.rows], width)

    def markdown(self) -> str:
        """The page in Markdown, without charts."""
        parts = [f"# {self.title}\n\n{self.summary()}\n", "## Machine\n\n" + _list(self.machines())]
        for title, pairs in (("Versions", self.versions()), ("Settings", self.settings())):
            parts.append(f"## {title}\n\n" + _list(f"{name}: {text}" for name, text in pairs))
        parts.append(f"## Figures\n\n{self.markdown_table()}")
        if self.classes:
            parts.append("## Test accuracy of classes\n\n" + _list(self.classes))
        if self.unfinished:
            parts.append("## Unfinished runs\n\n" + _list(self.unfinished))
        parts.append("## Definitions\n\n" + "".join(f"- **{name}**: {escape(text)}\n" for name, text in DEFINITIONS))
        return "\n".join(parts)

    def csv(self) -> str:
        """The rows as numbers in full precision."""
        return to_csv(self.rows)

    def html(self) -> str:
        """The page with charts, in one self-contained file."""
        charts, omitted = draw(self.rows)
        template = resources.files("hvdtrain.report").joinpath("page.html.jinja").read_text(encoding="utf-8")
        environment = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        return environment.from_string(template).render(
            report=self,
            table=[self.cells(row) for row in self.rows],
            text_columns=TEXT_COLUMNS,
            charts=charts,
            omitted=omitted,
            definitions=DEFINITIONS,
        )


def _values(values: Iterable[str]) -> str:
    counts = Counter(values).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return "differs: " + ", ".join(f"{value} ({count_of(number, 'run')})" for value, number in counts)


def _list(items: Iterable[str]) -> str:
    return "".join(f"- {escape(item)}\n" for item in items)


def escape(text: str) -> str:
    """Text without special characters of Markdown tables, HTML, emphasis and math."""
    text = re.sub(r"([\\`*~\[\]|$#]|(?<!\w)_|_(?!\w))", r"\\\1", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _range(value: Spread | None) -> str:
    if value is None:
        return NONE
    ends = f"{value.minimum:,.0f} to {value.maximum:,.0f}, " if value.number > 1 else ""
    return f"{value.median:,.0f} ({ends}{count_of(value.number, 'run')})"


def _step(row: Row) -> str:
    """Time of a step, and the shares of its parts."""
    seconds = f"{row.step_s.median * 1e3:,.1f} ms" if row.step_s else ""
    shares = " / ".join(NONE if part is None else f"{part:.0%}" for part in row.shares) if row.shares else ""
    return ": ".join(filter(None, (seconds, shares))) or NONE


def _efficiency(row: Row) -> str:
    if row.scaling is None:
        return NONE
    return "base" if row.scaling.kind == "base" else f"{row.scaling.kind} {row.scaling.efficiency:.2f}"


def _main_figures(row: Row) -> list[str]:
    """The figures of `terminal_table`."""
    return [
        row.size,
        f"{row.images_per_s.median:,.0f}" if row.images_per_s else NONE,
        _efficiency(row),
        f"{row.accuracy.median:.4f}" if row.accuracy else NONE,
        _difference(row),
    ]


def _accuracy(value: Spread | None) -> str:
    if value is None:
        return NONE
    minimum, median, maximum = (f"{part:.4f}" for part in (value.minimum, value.median, value.maximum))
    return median if minimum == maximum else f"{median} ({minimum} to {maximum})"


def _difference(row: Row) -> str:
    if row.difference is None:
        return NONE
    largest, reference = row.difference
    if largest is None:
        return "reference"
    framework = reference.options["framework"]
    return f"{largest:.2g}" + (f" (from {framework})" if framework != row.framework else "")
