"""The plot of a run: losses and a metric over epochs; and the axis of accuracies that all charts have."""

from __future__ import annotations

import logging
import textwrap
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdtrain.config.score import ACCURACY, LOSS, figure_of
from hvdtrain.runs import metrics
from hvdtrain.runs.console import log_to_file
from hvdtrain.runs.history import Curve, HistoryReader
from hvdtrain.system.text import printable

if TYPE_CHECKING:  # importing Matplotlib takes half a second, so only drawing does it
    from matplotlib.figure import Figure

# Colors that are distinct for color-blind readers: Okabe and Ito, Color Universal Design, 2008.
BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # a dollar sign in a name is not math
}
MIN_ACCURACY_SPAN = 0.1
"""Of an axis of accuracies."""


def plot_metrics(folder: Path, title: str, choice: str = "") -> Path | None:
    """Draw train loss, test loss and a metric into `folder/metrics.png`; returns its path.

    choice: the value of --score, which decides the metric. Returns None, and draws nothing, if no curve has two points
    or Matplotlib is missing. Raises OSError if it cannot be written.
    """
    reader = HistoryReader(folder / metrics.NAME).read()
    curves = reader.curves()
    if all(len(curve.values) < 2 for curve in curves.values()):
        return None
    try:
        import matplotlib.figure
    except Exception as error:  # also of an installation that does not work
        log_to_file(logging.INFO, f"no metrics.png: {error}; pip install 'hvdtrain[plots]'")
        return None
    path = folder / "metrics.png"
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # they are drawn as boxes
        figure = matplotlib.figure.Figure(figsize=(7, 4), layout="constrained")  # which opens no window
        _draw(figure, curves, reader.part, textwrap.shorten(printable(title), 80, placeholder=" ..."), choice)
        figure.savefig(path, dpi=120)
    return path


def widened(low: float, high: float) -> tuple[float, float]:
    """The ends of an axis of accuracies, over at least MIN_ACCURACY_SPAN of them, so that small changes look small."""
    if high - low >= MIN_ACCURACY_SPAN or not 0 <= low <= high <= 1:
        return low, high
    bottom = min(max((low + high - MIN_ACCURACY_SPAN) / 2, 0.0), 1.0 - MIN_ACCURACY_SPAN)
    return bottom, bottom + MIN_ACCURACY_SPAN


def _draw(figure: Figure, curves: Mapping[str, Curve], part: str, title: str, choice: str) -> None:
    """part: of the data that the curves of evaluations are of."""
    left = figure.subplots()
    right = left.twinx()
    right.grid(visible=False)
    of_part = {name: curve.values[-1] for name, curve in curves.items() if curve and name.startswith(f"{part} ")}
    newest = {name.removeprefix(f"{part} "): value for name, value in of_part.items() if name != f"{part} {LOSS}"}
    score, lines = figure_of(None, newest, choice).finite, []
    metric = score.name if score else next(iter(newest), "")
    for axis, name, style, color in (
        (left, metrics.TRAIN_LOSS, "-", BLUE),
        (left, f"{part} {LOSS}", "o-", ORANGE),
        (right, f"{part} {metric}", "s--", GREEN),
    ):
        if curve := curves.get(name):
            lines += axis.plot(curve.epochs, curve.values, style, color=color, markersize=4, label=printable(name))
    left.set(xlabel="epoch", ylabel="loss", title=title)
    left.set_ylim(bottom=0)
    right.set(ylabel=printable(metric))
    right.yaxis.set_visible(bool(metric))
    if metric == ACCURACY and newest[metric] <= 1:
        right.set_ylim(0, 1.01)
    left.legend(handles=lines, loc="center right")
