"""The report as one self-contained HTML page, with charts."""

from __future__ import annotations

from importlib import resources

import jinja2

from hvdtrain.views.report.charts.registry import draw
from hvdtrain.views.report.columns import MAIN, MORE
from hvdtrain.views.report.content import Report, figures
from hvdtrain.views.report.definitions import DEFINITIONS, NOTE

SHOWN_RUNS = 12
"""The names of more runs are folded."""


def to_html(report: Report) -> str:
    """The page."""
    charts, omitted = draw(report.rows)
    template = resources.files("hvdtrain.views.report").joinpath("page.html.jinja").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(template).render(
        report=report,
        main=MAIN,
        more=MORE,
        figures=figures,
        note=NOTE,
        charts=charts,
        omitted=omitted,
        definitions=DEFINITIONS,
        runs_open=sum(len(runs) for _, runs in report.runs()) <= SHOWN_RUNS,
    )
