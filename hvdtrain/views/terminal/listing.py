"""The table of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rich.text import Text

from hvdtrain.views.monitor.run import RunView
from hvdtrain.views.monitor.state import STATES
from hvdtrain.views.terminal.figures import decimal, duration, short, speed, steps
from hvdtrain.views.terminal.table import Column, table_lines

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

    def column(heading: str, text: Callable[[RunView], str], importance: int, right: bool = True) -> Column:
        return Column(heading, [Text(text(view)) for view in views], importance, right)

    columns = [
        Column("name", [Text(view.name) for view in views], 100, least=28, cut_middle=True),
        column("when", lambda view: view.started[: None if width is None else 16], 50, right=False),
        Column("state", [state_text(view) for view in views], 90, least=10),
        column("framework", lambda view: view.framework, 45, right=False),
        Column("strategy", [Text(view.strategy) for view in views], 55, least=8),
        column("ranks", lambda view: str(view.size or ""), 58),
        column("step", steps, 60),
        column("loss", lambda view: decimal(view.loss), 70),
        column("accuracy", lambda view: decimal(view.accuracy), 80),
        column("images/s", lambda view: speed(view.images_per_s), 65),
        column("epoch", lambda view: short(view.epoch), 30),
        column("time left", lambda view: duration(view.left_s), 35),
        Column("model", [Text(view.model) for view in views], 25, least=8, cut_middle=True),
        Column("data", [Text(view.data) for view in views], 20, least=12, cut_middle=True),
    ]
    return table_lines(columns, width, plain)


def counted(views: Sequence[RunView]) -> str:
    """How many runs there are, and in which states."""
    counts = Counter(view.state.name for view in views)
    states = ", ".join(f"{counts[name]} {name}" for name in STATES if counts[name])
    return f"{len(views)} run{'s' * (len(views) != 1)}: {states}" if views else "no runs"
