"""Figures of runs as short texts, where what is not known is an empty text."""

from __future__ import annotations

from hvdtrain.config.score import LOSS
from hvdtrain.runs.metrics import MAX_NAME, metrics_of
from hvdtrain.runs.records import shown
from hvdtrain.system.text import format_bytes
from hvdtrain.views.run_view import RunView
from hvdtrain.views.table import figure_form

LARGE = 1e9
"""From here on numbers are written with an exponent."""


def speed(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if 100 <= abs(value) < LARGE else f"{value:.3g}"


def decimal(value: float | None) -> str:
    return "" if value is None else f"{value:{figure_form(value)}}"


def tested(view: RunView) -> dict[str, str]:
    """The figures of the newest evaluation by name, that of the score first."""
    figures = {name: decimal(value) for name, value in [*view.metrics.items(), (view.loss_name, view.evaluated_loss)]}
    first = view.loss_name if view.score and view.score.name == LOSS else ""
    return {name: figures[name] for name in sorted(figures, key=lambda name: name != first) if figures[name]}


def logged(view: RunView) -> dict[str, str]:
    """The figures that a script has logged at the newest logging step, by name."""
    return {shown(name, MAX_NAME): short(value) for name, value in metrics_of(view.run.train.logged, ()).items()}


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


def total_speed(view: RunView) -> float | None:
    """Rows per second of all ranks: now, where their heartbeats tell, else of the newest logging step."""
    now = [rank.images_per_s for rank in view.ranks if rank.is_member]
    measured = [value for value in now if value is not None]
    live = bool(now) and len(measured) == len(now) and view.state.name in ("training", "waiting")
    return sum(measured) if live else view.images_per_s
