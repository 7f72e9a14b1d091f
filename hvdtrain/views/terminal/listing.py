"""The table of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rich.text import Text

from hvdtrain.views.monitor.run import RunView
from hvdtrain.views.monitor.state import STATES
from hvdtrain.views.table import Cell, CellsOf, Column, Table
from hvdtrain.views.terminal.figures import decimal, duration, short, speed, steps

STYLES = {
    "starting": "cyan", "training": "green", "waiting": "yellow", "restarting": "yellow", "finished": "",
    "stopped": "yellow", "failed": "red", "hung": "red",
}  # fmt: skip
"""The color of each state."""


def state_text(view: RunView) -> Text:
    """The state, and its reason."""
    text = Text(view.state.name, f"bold {STYLES.get(view.state.name, '')}".strip())
    return text.append(f": {view.state.reason}", "not bold") if view.state.reason else text


def run_lines(views: Sequence[RunView], width: int | None, plain: bool = False) -> list[Text]:
    """The table. width: of the terminal; None for lines that are not cut. plain: without characters beyond ASCII."""

    def column(heading: str, priority: int, text: Callable[[RunView], Cell], **layout: Any) -> CellsOf:
        return Column(heading, priority, **layout), [text(view) for view in views]

    begun = None if width is None else 16  # up to the minute
    table = Table.of_columns(
        [
            column("name", 0, lambda view: view.name, left=True, least=28, overflow="middle"),
            column("when", 8, lambda view: view.started[:begun], left=True),
            column("state", 1, state_text, left=True, least=10),
            column("framework", 9, lambda view: view.framework, left=True),
            column("strategy", 7, lambda view: view.strategy, left=True, least=8),
            column("ranks", 6, lambda view: str(view.size or "")),
            column("step", 5, steps),
            column("loss", 3, lambda view: decimal(view.loss)),
            column("accuracy", 2, lambda view: decimal(view.accuracy)),
            column("images/s", 4, lambda view: speed(view.images_per_s)),
            column("epoch", 11, lambda view: short(view.epoch)),
            column("time left", 10, lambda view: duration(view.left_s)),
            column("model", 12, lambda view: view.model, left=True, least=8, overflow="middle"),
            column("data", 13, lambda view: view.data, left=True, least=12, overflow="middle"),
        ]
    )
    return table.lines(width, plain)


def counted(views: Sequence[RunView]) -> str:
    """How many runs there are, and in which states."""
    counts = Counter(view.state.name for view in views)
    states = ", ".join(f"{counts[name]} {name}" for name in STATES if counts[name])
    return f"{len(views)} run{'s' * (len(views) != 1)}: {states}" if views else "no runs"
