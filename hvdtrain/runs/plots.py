"""Figures: how all of them are drawn and look, and the plot of a run: loss and a metric over epochs."""

from __future__ import annotations

import contextlib
import io
import logging
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hvdtrain.config.score import ACCURACY, score_of
from hvdtrain.errors import needed_by
from hvdtrain.runs import metrics
from hvdtrain.runs.console import log_to_file
from hvdtrain.system.text import printable

if TYPE_CHECKING:  # importing Matplotlib takes half a second, so only drawing does it
    from matplotlib.figure import Figure

# Colors that are distinct for color-blind readers: Okabe and Ito, Color Universal Design, 2008.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
COLORS = (BLUE, ORANGE, GREEN, "#D55E00", PINK, "#56B4E9")
MARKERS = "osD^vP"
LINES = ("-", "--", "-.")
"""So that lines on top of each other are all visible."""
STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "path",  # an SVG in <img> cannot use the fonts of the page
}
MIN_ACCURACY_SPAN = 0.1
"""Of an axis of accuracies."""


@contextlib.contextmanager
def drawing(salt: str = "") -> Iterator[None]:
    """Figures are drawn and saved within it. salt: makes the ids in an SVG its own, and the same each time.

    Raises MissingPackage without Matplotlib.
    """
    with needed_by("a chart", "plots"):
        import matplotlib

    more = {"svg.hashsalt": salt, "text.parse_math": False}  # a dollar sign in a name is not math
    with matplotlib.rc_context({**STYLE, **more}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # they are drawn as boxes
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches, which opens no window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def encode(figure: Figure, form: Literal["png", "svg"]) -> bytes:
    """The figure as a file; the same figure gives the same bytes."""
    file = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if form == "svg" else None
    figure.savefig(file, format=form, dpi=120, metadata=metadata)
    return file.getvalue()


def plot_metrics(folder: Path, title: str, choice: str = "") -> Path | None:
    """Draw train loss, test loss and a metric into `folder/metrics.png`; returns its path.

    choice: the value of --score, which decides the metric. Returns None, and draws nothing, if no curve has two points
    or Matplotlib is missing. Raises OSError if it cannot be written.
    """
    records = metrics.read(folder / "metrics.jsonl")
    if max(Counter(record["kind"] for record in records if record["kind"] in metrics.KINDS).values(), default=0) < 2:
        return None
    try:
        import matplotlib.figure  # noqa: F401
    except Exception as error:  # also of an installation that does not work
        log_to_file(logging.INFO, f"no metrics.png: {error}; pip install 'hvdtrain[plots]'")
        return None
    path = folder / "metrics.png"
    with drawing():
        figure = new_figure(7, 4)
        _draw(figure, records, textwrap.shorten(printable(title), 80, placeholder=" ..."), choice)
        path.write_bytes(encode(figure, "png"))
    return path


def widened(low: float, high: float) -> tuple[float, float]:
    """The ends of an axis of accuracies, over at least MIN_ACCURACY_SPAN of them, so that small changes look small."""
    if high - low >= MIN_ACCURACY_SPAN or not 0 <= low <= high <= 1:
        return low, high
    bottom = min(max((low + high - MIN_ACCURACY_SPAN) / 2, 0.0), 1.0 - MIN_ACCURACY_SPAN)
    return bottom, bottom + MIN_ACCURACY_SPAN


def widened_limits(limits: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """The limits of an axis of accuracies with these least and greatest values, by `widened`, with a margin."""
    low, high = widened(*values)
    margin = (high - low) * 0.05
    return min(limits[0], low - margin), max(limits[1], high + margin)


def _draw(figure: Figure, records: list[dict[str, Any]], title: str, choice: str) -> None:
    left = figure.subplots()
    right = left.twinx()
    right.grid(visible=False)
    kinds = {record["kind"] for record in records}
    part = next((part for part in metrics.EVALUATIONS if part in kinds), "test")
    tested = next((metrics.metrics_of(record) for record in reversed(records) if record["kind"] == part), {})
    score, lines = score_of(None, tested, choice), []
    metric = score.name if score else next(iter(tested), "")
    for axis, kind, name, style, color in (
        (left, "train", "loss", "-", BLUE),
        (left, part, "loss", "o-", ORANGE),
        *([(right, part, metric, "s--", GREEN)] if metric else []),
    ):
        chosen = [record for record in records if record["kind"] == kind and {"epoch", name} <= record.keys()]
        x, y = ([record[key] for record in chosen] for key in ("epoch", name))
        lines += axis.plot(x, y, style, color=color, markersize=4, label=printable(f"{kind} {name}"))
    left.set(xlabel="epoch", ylabel="loss", title=title)
    left.set_ylim(bottom=0)
    right.set(ylabel=printable(metric))
    right.yaxis.set_visible(bool(metric))
    if metric == ACCURACY and tested[metric] <= 1:
        right.set_ylim(0, 1.01)
    left.legend(handles=lines, loc="center right")
