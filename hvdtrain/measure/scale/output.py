"""Predictions as text, Markdown, JSON and a plot."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdtrain.measure.scale.prediction import Job, Prediction, Range
from hvdtrain.system.files import write_all_atomically
from hvdtrain.system.text import to_json
from hvdtrain.views.table import Column, Section, Table, text_column

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILES = ("scale.md", "scale.json", "scale.png")
COLUMNS = (
    Column("ranks"),
    Column("hosts", priority=3),
    Column("images/s"),
    Column("range", priority=5),
    Column("efficiency"),
    Column("range", priority=6),
    Column("step, ms", priority=4),
    text_column("limited by"),
)
NO_NUMBER = "–"


def write(folder: Path, job: Job, predictions: list[Prediction], sentences: list[str], notes: list[str]) -> None:
    """Write FILES. Raises OSError."""
    text = "\n".join([table(predictions).markdown(), *sentences, *(f"Assumed: {note}." for note in notes)])
    values = to_json(as_json(job, predictions, sentences, notes), indent=1)
    write_all_atomically({folder / "scale.md": text + "\n", folder / "scale.json": values + "\n"})
    plot(predictions, folder / "scale.png")


def table(predictions: list[Prediction]) -> Table:
    """The predictions; columns of time and cost only where they are known."""
    columns, rows = list(COLUMNS), [_row(one) for one in predictions]
    for name in ("hours", "cost"):
        figures = [getattr(one, name) for one in predictions]
        if not all(math.isnan(figure) for figure in figures):
            columns.append(Column(name, priority=1))
            for row, figure in zip(rows, figures, strict=True):
                row.append(f"{figure:,.2f}" if math.isfinite(figure) else NO_NUMBER)
    if any(math.isfinite(one.checkpoint_interval_s) for one in predictions):
        columns += [Column("checkpoint every", priority=2), Column("lost to failures", priority=2)]
        for row, one in zip(rows, predictions, strict=True):
            row += [f"{one.checkpoint_interval_s:,.0f} s", f"{1 - 1 / one.slowdown:.1%}"]
    return Table(columns, [Section(rows)])


def _row(one: Prediction) -> list[str]:
    speed, efficiency = one.images_per_s, one.efficiency
    return [
        f"{one.ranks:,}",
        f"{one.hosts:,}",
        f"{speed.value:,.0f}",
        f"{speed.low:,.0f} to {speed.high:,.0f}",
        f"{efficiency.value:.0%}",
        f"{efficiency.low:.0%} to {efficiency.high:.0%}",
        f"{one.step.seconds * 1e3:,.2f}",
        one.limited_by,
    ]


def as_json(job: Job, predictions: list[Prediction], sentences: list[str], notes: list[str]) -> dict[str, Any]:
    """All inputs and predictions; times in seconds, sizes in bytes."""
    model = job.model
    return {
        "kind": "scale",
        "scaling": job.scaling,
        "workload": dataclasses.asdict(model.workload),
        "communication": dataclasses.asdict(model.communication),
        "overlap": model.overlap,
        "predictions": [_as_dict(one) for one in predictions],
        "findings": sentences,
        "assumed": notes,
    }


def _as_dict(one: Prediction) -> dict[str, Any]:
    values = {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
    for name in ("step", "images_per_s", "efficiency"):
        values[name] = values[name]._asdict()
    return values


def plot(predictions: list[Prediction], path: Path) -> None:
    """Draw images/s, with its range and ideal scaling, and the parts of a step. Raises OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    _draw(figure, predictions)
    figure.savefig(path, dpi=120)


def _draw(figure: Figure, predictions: list[Prediction]) -> None:
    speed, parts = figure.subplots(1, 2)
    ranks = [one.ranks for one in predictions]
    ideal = [one.images_per_s.value / one.efficiency.value for one in predictions]
    ranges = [Range(*one.images_per_s) for one in predictions]
    speed.plot(ranks, ideal, "k:", label="ideal")
    speed.plot(ranks, [one.value for one in ranges], "o-", color="#0072B2", label="predicted")
    speed.fill_between(ranks, [one.low for one in ranges], [one.high for one in ranges], color="#0072B2", alpha=0.2)
    speed.set(xscale="log", yscale="log", xlabel="ranks", ylabel="images/s")
    speed.legend()
    bottom = [0.0] * len(predictions)
    places = range(len(predictions))
    for part in predictions[0].step._fields:
        heights = [1e3 * getattr(one.step, part) for one in predictions]
        parts.bar(places, heights, bottom=bottom, label=part)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    parts.set_xticks(places, [f"{number:,}" for number in ranks])
    parts.set(xlabel="ranks", ylabel="step, ms")
    parts.legend()
