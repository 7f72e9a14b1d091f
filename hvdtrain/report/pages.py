"""The same figures as Markdown, CSV and an HTML page."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable
from importlib import resources
from typing import Any

import jinja2

from hvdtrain.report.charts import draw
from hvdtrain.report.rows import Row, Spread, count_of, make_rows
from hvdtrain.report.runs import Run, clean

NONE = "—"

HEADINGS = (
    "framework",
    "strategy",
    "ranks × devices",
    "images/s: median (least to greatest, runs)",
    "epoch on the slowest rank, s",
    "compute / communicate / data",
    "scaling efficiency",
    "Karp–Flatt serial fraction",
    "peak memory of a rank, MB",
    "test accuracy",
    "max difference of any parameter from one process",
)
NOTE = "settings unlike most runs"
TEXT_COLUMNS = (HEADINGS[0], HEADINGS[1], NOTE)

DEFINITIONS = (
    (
        "Row",
        "The runs that differ only in repetition: same framework, strategy, ranks, devices, settings and machine. "
        "Seeds may differ.",
    ),
    ("Machine", "As rank 0 saw it."),
    ("Ranks × devices", "Processes, times the devices of each; p, the number of replicas, is their product."),
    (
        "Images/s",
        "Training images a second over all ranks, the median interval of a run. Of several runs the median, the least "
        "and the greatest.",
    ),
    ("Epoch", "Seconds that one epoch's training took on the rank that took longest; the median of the runs."),
    (
        "Compute / communicate / data",
        "Parts of a step's time, the mean of the runs that measured them (train --profile N).",
    ),
    (
        "Scaling efficiency",
        "S / p, where the speedup S is images/s over the images/s of the base: the row of one replica with strategy "
        "single, else with the same strategy, of the same framework, precision, network, data and machine. Strong: the "
        "base has the same global batch (Amdahl, Validity of the single processor approach to achieving large scale "
        "computing capabilities, AFIPS 1967). Weak, with --batch-scope per-rank: the base has the batch of one replica "
        "(Gustafson, Reevaluating Amdahl's law, CACM 31(5), 1988). 1 is ideal.",
    ),
    (
        "Karp–Flatt serial fraction",
        "e = (1/S - 1/p) / (1 - 1/p), for strong scaling with p above 1: the part of the work that would have to be "
        "serial to explain S. A fraction that grows with p tells of communication, not of serial work; one below 0, of "
        "a speedup beyond p; one above 1, of a job slower than its base (Karp and Flatt, Measuring "
        "parallel processor performance, CACM 33(5), 1990).",
    ),
    ("Peak memory", "The largest resident set of any rank, in MB of 2^20 bytes; the greatest of the runs."),
    ("Test accuracy", "Part of the test images classified as labelled, after the last step; the median of the runs."),
    (
        "Max difference",
        "max |a - b| over all parameters at the last step, where b is a run with strategy single: of the same "
        "framework, else of the one named; with the same data, seed, first weights, network, global batch, learning "
        "rate, other options and number of steps. The greatest of the runs; compression may differ.",
    ),
    (NONE, "Not measured, or no run to compare with."),
)


HOST = ("name", "processor", "cores", "system")


class Report:
    """The rows with all that is said about them, on any kind of page."""

    title = "Runs of hvdtrain, compared"

    def __init__(self, runs: list[Run], unfinished: list[str]) -> None:
        self.rows = make_rows(runs)
        self.unfinished = unfinished
        self._runs = runs
        self._noted = any(row.note for row in self.rows)
        self.headings = [*HEADINGS[:3], *([NOTE] if self._noted else []), *HEADINGS[3:]]

    def summary(self) -> str:
        """How much was read, and of when."""
        times = sorted(run.started for run in self._runs if run.started)
        span = f", started {times[0]}" + (f" to {times[-1]}" if times[-1] != times[0] else "") if times else ""
        return f"{count_of(len(self._runs), 'run')} in {count_of(len(self.rows), 'row')}{span}."

    def machines(self) -> list[str]:
        """One line a machine."""
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
        """(package, version), each version with its number of runs where they differ."""
        names = dict.fromkeys(name for run in self._runs for name in run.versions)
        return [(name, self._values(run.versions.get(name, "not there") for run in self._runs)) for name in names]

    def settings(self) -> list[tuple[str, str]]:
        """(option, value), each value with its number of runs where they differ."""
        names = dict.fromkeys(name for run in self._runs for name in run.settings)
        texts = [
            (name.replace("_", "-"), self._values(run.settings.get(name, "not there") for run in self._runs))
            for name in names
            if name != "machine"
        ]
        texts.append(("seed", self._values(str(run.options["seed"]) for run in self._runs)))
        threads = "OMP_NUM_THREADS"
        texts.append((threads, self._values(run.host.get(threads) or "unset" for run in self._runs)))
        return texts

    @staticmethod
    def _values(values: Iterable[str]) -> str:
        counts = Counter(values).most_common()
        if len(counts) == 1:
            return counts[0][0]
        return "differs: " + ", ".join(f"{value} ({count_of(number, 'run')})" for value, number in counts)

    def cells(self, row: Row) -> list[str]:
        """A row as text, in the order of `headings`."""
        noted = [row.note] if self._noted else []
        return [
            row.framework,
            row.strategy,
            row.size,
            *noted,
            _range(row.images_per_s),
            f"{row.epoch_s.median:.2f}" if row.epoch_s else NONE,
            " / ".join(f"{part:.0%}" for part in row.shares) if row.shares else NONE,
            _efficiency(row),
            f"{row.scaling.serial_fraction:.3f}" if row.scaling and row.scaling.serial_fraction is not None else NONE,
            f"{row.peak_rss_mb.greatest:,.0f}" if row.peak_rss_mb else NONE,
            _accuracy(row.accuracy),
            _difference(row),
        ]

    def markdown_table(self) -> str:
        """The rows as a table of Markdown."""
        rules = ["---" if heading in TEXT_COLUMNS else "---:" for heading in self.headings]
        lines = [self.headings, rules, *(list(map(_escape, self.cells(row))) for row in self.rows)]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def markdown(self) -> str:
        """The page in Markdown, without charts."""
        parts = [f"# {self.title}\n\n{self.summary()}\n"]
        for title, pairs in (("Versions", self.versions()), ("Settings", self.settings())):
            parts.append(f"## {title}\n\n" + "".join(f"- {_escape(name)}: {_escape(text)}\n" for name, text in pairs))
        parts.insert(1, "## Machine\n\n" + "".join(f"- {_escape(line)}\n" for line in self.machines()))
        parts.append(f"## Figures\n\n{self.markdown_table()}")
        if self.unfinished:
            parts.append("## Unfinished runs\n\n" + "".join(f"- {_escape(line)}\n" for line in self.unfinished))
        parts.append("## Definitions\n\n" + "".join(f"- **{name}**: {_escape(text)}\n" for name, text in DEFINITIONS))
        return "\n".join(parts)

    def csv(self) -> str:
        """The rows as numbers in full precision; a cell without a number is empty."""
        file = io.StringIO()
        records = [_csv_record(row) for row in self.rows]
        writer = csv.DictWriter(file, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return file.getvalue()

    def html(self) -> str:
        """The page with charts, in one file that needs no other."""
        charts, left_out = draw(self.rows)
        template = resources.files("hvdtrain.report").joinpath("page.html.jinja").read_text(encoding="utf-8")
        environment = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        return environment.from_string(template).render(
            report=self,
            table=[self.cells(row) for row in self.rows],
            text_columns=TEXT_COLUMNS,
            charts=charts,
            left_out=left_out,
            definitions=DEFINITIONS,
        )


def _escape(text: str) -> str:
    """Text in Markdown as it stands: no table's border, no HTML, no emphasis."""
    for character in "\\`*[]|":
        text = text.replace(character, f"\\{character}")
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _range(value: Spread | None) -> str:
    if value is None:
        return NONE
    ends = f"{value.least:,.0f} to {value.greatest:,.0f}, " if value.number > 1 else ""
    return f"{value.median:,.0f} ({ends}{count_of(value.number, 'run')})"


def _efficiency(row: Row) -> str:
    if row.scaling is None:
        return NONE
    return "base" if row.scaling.base is row else f"{row.scaling.kind} {row.scaling.efficiency:.2f}"


def _accuracy(value: Spread | None) -> str:
    if value is None:
        return NONE
    least, middle, greatest = (f"{part:.4f}" for part in (value.least, value.median, value.greatest))
    return middle if least == greatest else f"{middle} ({least} to {greatest})"


def _difference(row: Row) -> str:
    if row.difference is None:
        return NONE
    largest, reference = row.difference
    if largest is None:
        return "reference"
    framework = reference.options["framework"]
    return f"{largest:.2g}" + (f" (from {framework})" if framework != row.framework else "")


def _csv_record(row: Row) -> dict[str, Any]:
    run, speed, compared = row.run, row.images_per_s, row.scaling
    shares = row.shares or (None, None, None)
    return {
        "framework": row.framework,
        "strategy": run.options["strategy"],
        "api": run.options["api"],
        "kvstore": run.options["kvstore"] if run.options["strategy"] == "kvstore" else None,
        "ranks": run.ranks,
        "devices": run.devices,
        "replicas": run.replicas,
        "settings": row.note,
        "global_batch": run.global_batch,
        "runs": len(row.runs),
        "images_per_s_median": speed and speed.median,
        "images_per_s_least": speed and speed.least,
        "images_per_s_greatest": speed and speed.greatest,
        "epoch_s": row.epoch_s and row.epoch_s.median,
        "compute_share": shares[0],
        "communicate_share": shares[1],
        "data_share": shares[2],
        "scaling": compared and compared.kind,
        "scaling_base": compared and compared.base.label,
        "speedup": compared and compared.speedup,
        "efficiency": compared and compared.efficiency,
        "karp_flatt": compared and compared.serial_fraction,
        "peak_rss_mb": row.peak_rss_mb and row.peak_rss_mb.greatest,
        "accuracy_median": row.accuracy and row.accuracy.median,
        "accuracy_least": row.accuracy and row.accuracy.least,
        "accuracy_greatest": row.accuracy and row.accuracy.greatest,
        "max_parameter_difference": row.difference and row.difference.largest,
        "difference_from": row.difference and clean(str(row.difference.reference.folder)),
        "folders": " ".join(clean(str(one.folder)) for one in row.runs),
    }
