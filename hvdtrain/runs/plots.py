"""The plot of a run: loss and accuracy over epochs."""

from __future__ import annotations

import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdtrain.runs import metrics
from hvdtrain.system.text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_metrics(folder: Path, title: str) -> Path:
    """Draw training loss, test loss and test accuracy into `folder/metrics.png`; returns its path.

    Raises OSError if it cannot be written.
    """
    import matplotlib  # slow to import
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    records = metrics.read(folder / "metrics.jsonl")
    with matplotlib.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        # A dollar sign in a name is not math; characters that the font lacks are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure(figsize=(7, 4), layout="constrained")
        FigureCanvasAgg(figure)
        _draw(figure, records, textwrap.shorten(printable(title), 80, placeholder=" ..."))
        path = folder / "metrics.png"
        figure.savefig(path, dpi=120)
    return path


def _draw(figure: Figure, records: list[dict[str, Any]], title: str) -> None:
    left = figure.subplots()
    right = left.twinx()
    lines = []
    for axis, kind, name, style in (
        (left, "train", "loss", "C0-"),
        (left, "test", "loss", "C1o-"),
        (right, "test", "accuracy", "C2s--"),
    ):
        chosen = [record for record in records if record["kind"] == kind and {"epoch", name} <= record.keys()]
        x, y = ([record[key] for record in chosen] for key in ("epoch", name))
        lines += axis.plot(x, y, style, markersize=4, label=f"{kind} {name}")
    left.set(xlabel="epoch", ylabel="loss (nats)", title=title)
    left.set_ylim(bottom=0)
    right.set(ylabel="accuracy", ylim=(0, 1.01))
    left.legend(handles=lines, loc="center right")
