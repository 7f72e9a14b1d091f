"""The plot of a run: loss and accuracy over epochs."""

from __future__ import annotations

from pathlib import Path

from hvdtrain.runs import metrics


def plot_metrics(folder: Path, title: str) -> Path:
    """Draw training loss, test loss and test accuracy into `folder/metrics.png`; returns its path.

    Raises OSError if it cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import
    from matplotlib.figure import Figure

    records = metrics.read(folder / "metrics.jsonl")
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
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
    path = folder / "metrics.png"
    figure.savefig(path, dpi=120)
    return path
