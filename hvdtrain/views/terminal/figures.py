"""Figures of runs as short texts, where what is not known is an empty text."""

from __future__ import annotations

from hvdtrain.config.score import LOSS
from hvdtrain.runs.metrics import MAX_NAME, TRAIN_LOSS, metrics_of
from hvdtrain.runs.records import shown
from hvdtrain.system.text import figure, format_bytes
from hvdtrain.views.run_view import RunView

LARGE = 1e9
"""From here on numbers are written with an exponent."""


def speed(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if 100 <= abs(value) < LARGE else f"{value:.3g}"


def decimal(value: float | None) -> str:
    return "" if value is None else figure(value)


def newest(view: RunView) -> dict[str, str]:
    """The newest figures of a run by name; of an evaluation, that of the score is the first."""
    is_loss = bool(view.score and view.score.name == LOSS)
    loss, metrics = {view.loss_name: view.evaluated_loss}, view.metrics
    tested = {**loss, **metrics} if is_loss else {**metrics, **loss}
    logged = metrics_of(view.run.train.logged, ())
    figures = {
        TRAIN_LOSS: decimal(view.loss),
        **{name: decimal(value) for name, value in tested.items()},
        "epoch": short(view.values["epoch"]),
        "lr": short(view.values["lr"]),
        **{f"logged {shown(name, MAX_NAME)}": short(value) for name, value in logged.items()},
    }
    return {name: text for name, text in figures.items() if text}


def short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def memory(value: float | None) -> str:
    return "" if value is None or not 0 <= value < 1 << 60 else format_bytes(value)


def duration(seconds: float | None) -> str:
    """Hours, minutes and seconds, or days and hours."""
    if seconds is None or not 0 <= seconds < LARGE:
        return ""
    whole = round(seconds)
    if whole >= 2 * 86400:
        return f"{whole // 86400} d {whole % 86400 // 3600} h"
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def age(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 99 else duration(seconds) or "long"


def steps(view: RunView) -> str:
    """The step that a run has reached, and its last one: `120/2814`."""
    return str(view.step) if view.last_step is None else f"{view.step}/{view.last_step}"


def total_speed(view: RunView) -> str:
    """Rows per second of all ranks: now, where their heartbeats tell, else of the newest logging step."""
    now = [rank.images_per_s for rank in view.ranks if rank.is_member]
    measured = [value for value in now if value is not None]
    live = bool(now) and len(measured) == len(now) and view.state.name in ("training", "waiting")
    text = speed(sum(measured) if live else view.images_per_s)
    return f"{text} {view.run.unit}/s" if text else ""


def left(view: RunView) -> str:
    text = duration(view.left_s)
    return f"{text} left" if text else ""
