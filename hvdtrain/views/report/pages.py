"""The files of a report: Markdown, CSV, and one self-contained HTML page with charts."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from hvdtrain.config.option import key
from hvdtrain.config.score import ACCURACY
from hvdtrain.errors import UserError, needed_by
from hvdtrain.runs.step_times import StepSeconds
from hvdtrain.system.files import require_writable
from hvdtrain.system.text import printable, to_json
from hvdtrain.views.report.charts import lane_charts, line_charts
from hvdtrain.views.report.content import RunsReport
from hvdtrain.views.report.rows import ReportRow
from hvdtrain.views.table import escape, to_csv

FILES = ("report.md", "report.csv", "report.html")


WEB = "hvdtrain.views.web"


def _resource(name: str, package: str = "hvdtrain.views.report") -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def definitions() -> list[list[str]]:
    """What each figure of the report means: names, and texts."""
    return [line.split("\t") for line in _resource("definitions.tsv").splitlines()]


def check_pages(folder: Path) -> None:
    """Create the folder. Raises UserError if the files of a report cannot be written there."""
    require_writable(folder, "--output")
    for name in FILES:
        if (folder / name).is_dir():
            raise UserError(f"{folder / name} is a folder, not a file", "give another --output")


def markdown_page(report: RunsReport) -> str:
    """The page: what came out, the figures, the runs, and at the end what was used and what the figures mean."""
    parts = [f"# {report.title}\n", *(f"{escape(sentence)}\n" for sentence in report.findings)]
    parts += [f"{escape(report.summary())}\n", f"## Figures\n\n{report.table(report.main).markdown()}"]
    parts.append(f"## More figures\n\n{report.table(report.more).markdown()}")
    if report.classes:
        parts.append("## Test accuracy of classes\n\n" + _list(report.classes))
    parts.append("## Runs\n\n" + _list(f"{label}: {'; '.join(runs)}" for label, runs in report.runs()))
    if report.unfinished:
        parts.append("## Unfinished runs\n\n" + _list(report.unfinished))
    for title, pairs in report.facts().items():
        parts.append(f"## {title}\n\n" + _list(f"{name}: {text}" for name, text in pairs))
    parts.append("## Definitions\n\n" + "".join(f"- **{name}**: {escape(text)}\n" for name, text in definitions()))
    return "\n".join(parts)


def _list(items: Iterable[str]) -> str:
    return "".join(f"- {escape(item)}\n" for item in items)


def csv_page(report: RunsReport) -> str:
    """A header and one line per row, with numbers in full precision; metrics besides accuracy by their names."""
    names = sorted({name for row in report.rows for name in row.metrics} - {ACCURACY})
    records = []
    for row in report.rows:
        metrics = {f"metric:{printable(name)}": (value := row.metrics.get(name)) and value.median for name in names}
        is_fastest = any(row is group.fastest for group in report.groups)
        options = {f"option:{key(name)}": row.run.settings.get(name) for name in report.options}
        records.append({**_record(row), **options, **metrics, "most_images_per_s": is_fastest})
    return to_csv(records)


ENDS = ("median", "low", "high", "mean", "deviation")
SPREADS = ("images_per_s", "images_per_core_s", "gflops_per_core", "step_s", "epoch_s", "peak_rss_mb", "score", "loss")
"""Figures of which the runs have a spread."""


def _record(row: ReportRow) -> dict[str, Any]:
    run, compared = row.run, row.scaling
    spreads = {name: getattr(row, name) for name in SPREADS}
    return {
        "framework": row.framework, "strategy": run.options["strategy"], "controller": run.config.controller or None,
        "ranks": run.config.ranks, "devices": run.config.devices, "replicas": run.replicas, "settings": row.note,
        "global_batch": run.result.global_batch, "runs": len(row.runs),
        **{f"{name}_{end}": value and getattr(value, end) for name, value in spreads.items() for end in ENDS},
        **{f"{part}_share": share for part, share in zip(StepSeconds._fields, row.shares or (None,) * 3, strict=True)},
        "scaling": compared and compared.kind, "scaling_base": compared and compared.base.label,
        "speedup": compared and compared.speedup, "efficiency": compared and compared.efficiency,
        "score": row.scored_by, "test_rows": run.test_rows,
        "accuracy_interval_low": row.chance and row.chance.low,
        "accuracy_interval_high": row.chance and row.chance.high,
        "max_parameter_difference": row.difference and row.difference.largest,
        "difference_from": row.difference and printable(str(row.difference.reference.folder)),
        "parameters": " ".join(dict.fromkeys(run.result.parameters for run in row.runs)),
        "started": " ".join(run.config.started for run in row.runs),
        "folders": " ".join(printable(str(run.folder)) for run in row.runs),
    }  # fmt: skip


def html_page(report: RunsReport) -> str:
    """The page, with the style and the charts of the live one. Raises MissingPackage without Jinja."""
    with needed_by("report.html", "report"):
        import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # One script without imports, of the modules of the live page that draw charts.
    modules = "\n".join(_resource(f"static/{name}.js", WEB) for name in ("dom", "format", "chart", "report"))
    script = re.sub("^(import .*\n|export )", "", modules, flags=re.MULTILINE)
    return environment.from_string(_resource("page.html.jinja")).render(
        report=report,
        lanes=lane_charts(report.rows),
        charts=to_json(line_charts(report.rows)).replace("<", r"\u003c"),
        style=_resource("static/style.css", WEB),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        definitions=definitions(),
    )
