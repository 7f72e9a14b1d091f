"""All charts: what each shows, when it is left out, and drawing them as SVG."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from hvdtrain.config.score import ACCURACY, LOSS
from hvdtrain.errors import MissingPackage
from hvdtrain.runs import plots
from hvdtrain.system.text import printable
from hvdtrain.views.report.charts.bars import draw_score, draw_speed
from hvdtrain.views.report.charts.lines import draw_curves, draw_scaling, has_curve
from hvdtrain.views.report.rows import ReportRow, count_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SCORE = "Score"


class ChartKind(NamedTuple):
    """A kind of chart."""

    title: str
    about: str
    """What it shows, for the alternative text."""
    has: Callable[[ReportRow], object]
    """Whether a row has something to show."""
    draw: Callable[[list[ReportRow]], Figure]
    missing: str
    """Why it is omitted if no row has anything to show."""


class Chart(NamedTuple):
    """A chart on the page."""

    title: str
    alt: str
    uri: str
    """The SVG as a data: URI, so that its ids cannot collide with those of another chart."""
    width: int
    height: int
    """Natural size in CSS pixels."""


def draw(rows: list[ReportRow]) -> tuple[list[Chart], list[str]]:
    """The charts, and the titles of those that are omitted, with the reason."""
    charts, omitted = [], []
    for kind in _kinds(rows):
        chosen = [row for row in rows if kind.has(row)]
        if not chosen:
            omitted.append(f"{kind.title}: {kind.missing}.")
            continue
        try:
            with plots.drawing(salt=kind.title):
                charts.append(_chart(kind, kind.draw(chosen), chosen))
        except MissingPackage as error:
            return [], [f"{error}."]
    return charts, omitted


def _kinds(rows: list[ReportRow]) -> Iterator[ChartKind]:
    """Those of KINDS; that of scores once for each metric that is one."""
    names = list(dict.fromkeys(row.scored_by for row in rows if row.scored_by)) or [ACCURACY]
    for kind in KINDS:
        for name in names if kind.title == SCORE else [""]:
            yield _of_score(kind, name) if name else kind


def _of_score(kind: ChartKind, name: str) -> ChartKind:
    shown = printable(name)
    title = "Test loss" if name == LOSS else shown[:1].upper() + shown[1:]
    about = kind.about.format(shown)
    return kind._replace(title=title, about=about, has=lambda row: row.score and row.scored_by == name)


def _chart(kind: ChartKind, figure: Figure, rows: list[ReportRow]) -> Chart:
    uri = f"data:image/svg+xml;base64,{base64.b64encode(plots.encode(figure, 'svg')).decode()}"
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    names = "; ".join(row.label for row in rows)
    alt = f"{kind.about}, for {count_of(len(rows), 'row')}: {names}. The tables have the figures."
    return Chart(kind.title, alt, uri, width, height)


KINDS: tuple[ChartKind, ...] = (
    ChartKind(
        "Speed",
        "Bars: rows per second, colored by framework, with whiskers from the minimum to the maximum of the runs",
        lambda row: row.images_per_s,
        draw_speed,
        "no run measured its speed",
    ),
    ChartKind(
        "Scaling",
        "Lines: rows per second over the number of replicas, with whiskers and the ideal line",
        lambda row: row.scaling and row.run.replicas > 1,
        draw_scaling,
        "no row with several replicas has a comparable row with one replica",
    ),
    ChartKind(
        SCORE,
        "Points: the test {}, colored by framework, of accuracies with bars for the interval that chance in the test "
        "rows gives, and whiskers from the minimum to the maximum of the runs",
        lambda row: row.score,
        draw_score,
        "no run measured it",
    ),
    ChartKind(
        "Learning curves",
        "Lines: training loss, test loss and metrics over epochs, a line for each run",
        has_curve,
        draw_curves,
        "no run has a metrics.jsonl with losses",
    ),
)
