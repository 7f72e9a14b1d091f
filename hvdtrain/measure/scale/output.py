"""What a prediction means in sentences, and the files: Markdown, JSON and a plot."""

from __future__ import annotations

import dataclasses
import math
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdtrain.measure.scale.prediction import UNLIMITED_EFFICIENCY, Job, Prediction
from hvdtrain.runs import plots
from hvdtrain.system.files import write_outputs
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
PART_COLORS = (*plots.COLORS, "#999999")
"""Of the parts of a step."""
WORTH = 1.1
"""A change is named if it makes training faster by this factor."""
LIBRARY_NAMES = {
    "ring": "the ring",
    "gloo": "Gloo's ring",
    "horovod-gloo": "Gloo",
    "mpi": "MPI",
    "nccl": "NCCL",
}
ADVICE = {
    "ring": "a ring (--strategy ring)",
    "mpi": "MPI (--strategy mpi, or horovod over MPI), which exchanges with fewer steps",
    "hierarchical": "a hierarchical allreduce (HOROVOD_HIERARCHICAL_ALLREDUCE=1, with NCCL and MPI)",
}
REMEDIES = {
    "input": "faster storage, or copies of the data on each host",
    "the slowest rank": "hosts without other work, pinned threads and cores",
    "packing of gradients": "a --compression with less arithmetic, such as bf16",
    "Horovod's control plane": "fewer messages, a shorter cycle or the event-driven core",
    "the cost of a call": "fewer messages",
    "latency of the allreduce": "fewer and larger messages, larger batches, --sync-every 8, or an algorithm with "
    "fewer steps",
    "bandwidth of the allreduce": "a faster network, --compression int8 or powersgd:2, --sync-every 8, or larger "
    "batches (--compare-compression compares them)",
    "failures and checkpoints": "faster checkpoints and restarts, or more reliable hosts",
    "the small batch of a rank": "larger batches (--scaling weak): a rank has too few images to compute efficiently",
}


def write(folder: Path, job: Job, predictions: list[Prediction], sentences: list[str], notes: list[str]) -> None:
    """Write FILES. Raises UserError if the folder is not writable."""
    text = "\n".join([table(predictions).markdown(), *sentences, *(f"Assumed: {note}." for note in notes)])
    values = to_json(_as_json(job, predictions, sentences, notes), indent=1)
    contents = (text + "\n", values + "\n", _plot(predictions))
    write_outputs(folder, "--output", dict(zip(FILES, contents, strict=True)))


def table(predictions: list[Prediction]) -> Table:
    """The predictions; columns of time and cost only where they are known."""
    columns, rows = list(COLUMNS), [_row(prediction) for prediction in predictions]
    for name in ("hours", "cost"):
        figures = [getattr(prediction, name) for prediction in predictions]
        if not all(math.isnan(figure) for figure in figures):
            columns.append(Column(name, priority=1))
            for row, figure in zip(rows, figures, strict=True):
                row.append(f"{figure:,.2f}" if math.isfinite(figure) else NO_NUMBER)
    if any(math.isfinite(prediction.checkpoint_interval_s) for prediction in predictions):
        columns += [Column("checkpoint every", priority=2), Column("lost to failures", priority=2)]
        for row, prediction in zip(rows, predictions, strict=True):
            row += [f"{prediction.checkpoint_interval_s:,.0f} s", f"{1 - 1 / prediction.slowdown:.1%}"]
    return Table(columns, [Section(rows)])


def _row(prediction: Prediction) -> list[str]:
    speed, efficiency = prediction.images_per_s, prediction.efficiency
    return [
        f"{prediction.ranks:,}",
        f"{prediction.hosts:,}",
        f"{speed.value:,.0f}",
        f"{speed.low:,.0f} to {speed.high:,.0f}",
        f"{efficiency.value:.0%}",
        f"{efficiency.low:.0%} to {efficiency.high:.0%}",
        f"{prediction.step.seconds * 1e3:,.2f}",
        prediction.limited_by,
    ]


def _as_json(job: Job, predictions: list[Prediction], sentences: list[str], notes: list[str]) -> dict[str, Any]:
    """All inputs and predictions; times in seconds, sizes in bytes."""
    model = job.model
    return {
        "kind": "scale",
        "scaling": job.scaling,
        "workload": dataclasses.asdict(model.workload),
        "communication": dataclasses.asdict(model.communication),
        "overlap": model.overlap,
        "combining": str(model.combining),
        "predictions": [_as_dict(prediction) for prediction in predictions],
        "findings": sentences,
        "assumed": notes,
    }


def _as_dict(prediction: Prediction) -> dict[str, Any]:
    values = {field.name: getattr(prediction, field.name) for field in dataclasses.fields(prediction)}
    for name in ("step", "images_per_s", "efficiency"):
        values[name] = values[name]._asdict()
    return values


def _plot(predictions: list[Prediction]) -> bytes:
    """Images/s, with its range and ideal scaling, and the parts of a step."""
    with plots.drawing(has_names=False):
        figure = plots.new_figure(9, 4)
        _draw(figure, predictions)
        return plots.encode(figure, "png")


def _draw(figure: Figure, predictions: list[Prediction]) -> None:
    speed, parts = figure.subplots(1, 2)
    ranks = [prediction.ranks for prediction in predictions]
    ideal = [prediction.images_per_s.value / prediction.efficiency.value for prediction in predictions]
    low, values, high = zip(*(prediction.images_per_s for prediction in predictions), strict=True)
    speed.plot(ranks, ideal, "k:", label="ideal")
    speed.plot(ranks, values, "o-", color=plots.BLUE, label="predicted")
    speed.fill_between(ranks, low, high, color=plots.BLUE, alpha=0.2)
    speed.set(xscale="log", yscale="log", xlabel="ranks", ylabel="images/s")
    speed.legend()
    bottom = [0.0] * len(predictions)
    places = range(len(predictions))
    for part, color in zip(predictions[0].step._fields, PART_COLORS, strict=True):
        heights = [1e3 * getattr(prediction.step, part) for prediction in predictions]
        parts.bar(places, heights, bottom=bottom, color=color, label=part)
        bottom = [start + height for start, height in zip(bottom, heights, strict=True)]
    parts.set_xticks(places, [f"{number:,}" for number in ranks])
    parts.set(xlabel="ranks", ylabel="step, ms")
    parts.legend()


def findings(job: Job, predictions: list[Prediction]) -> list[str]:
    """Sentences on: how far the job scales, what limits it from where on, and what would help."""
    lines = [_reach(predictions)]
    previous = "computation"
    for prediction in predictions:
        if prediction.limited_by not in ("computation", previous):
            lines.append(
                f"From {prediction.ranks} ranks on, {prediction.limited_by} limits training "
                f"(efficiency {prediction.efficiency.value:.0%}): {REMEDIES[prediction.limited_by]} would help."
            )
        previous = prediction.limited_by
    return [*filter(None, lines), *_better_algorithm(job, predictions), *_slower(predictions)]


def _reach(predictions: list[Prediction]) -> str:
    good = [*takewhile(lambda prediction: prediction.efficiency.value >= UNLIMITED_EFFICIENCY, predictions)]
    reached = good[-1].ranks if good else 1
    return f"Up to {reached} ranks, efficiency is at least {UNLIMITED_EFFICIENCY:.0%}." if reached > 1 else ""


def _better_algorithm(job: Job, predictions: list[Prediction]) -> list[str]:
    """The first number of ranks from which another algorithm is better, and how much at the largest."""
    algorithm = job.model.communication.algorithm
    for prediction in predictions:
        name = max(prediction.algorithms, key=prediction.algorithms.__getitem__)
        if name != algorithm and prediction.algorithms[name] > WORTH * prediction.images_per_s.value:
            last = predictions[-1]
            used = LIBRARY_NAMES.get(algorithm, algorithm)
            best = max(last.algorithms, key=last.algorithms.__getitem__)
            speeds = f"{last.algorithms[best]:,.0f} instead of {last.images_per_s.value:,.0f} images/s"
            advice = f"use {ADVICE[best]}, for {speeds} on {last.ranks} ranks"
            return [f"From {prediction.ranks} ranks on, {used} is too slow: {advice}."]
    return []


def _slower(predictions: list[Prediction]) -> list[str]:
    """Where more ranks train less."""
    best = max(predictions, key=lambda prediction: prediction.images_per_s.value / prediction.slowdown)
    if best is predictions[-1]:
        return []
    return [f"More than {best.ranks} ranks train no faster."]
