"""One run on the screen while it trains, in as many lines and columns as there are."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from hvdtrain.system.text import format_ranks
from hvdtrain.views.monitor.curves import Curve, CurveReader
from hvdtrain.views.monitor.messages import Message, last_messages
from hvdtrain.views.monitor.run import RunView
from hvdtrain.views.table import cut
from hvdtrain.views.terminal import figures
from hvdtrain.views.terminal.chart import LEAST_HEIGHT, Line, chart
from hvdtrain.views.terminal.listing import STYLES
from hvdtrain.views.terminal.ranks import rank_lines

MOST_READ, MOST_MESSAGES = 10_000, 50
"""Messages that are read, and those kept for a screen of any height."""
CHART_HEIGHT = 14
"""Lines of a chart where there is room."""
TWO_CHARTS = 90
"""From this width, charts of loss and accuracy are next to each other."""
REASON_LINES = 3
"""Of a reason at most."""
LEVELS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}


class Shown(NamedTuple):
    """What is read of a run for its screen."""

    view: RunView
    loss: Curve
    test_loss: Curve
    accuracy: Curve
    messages: Sequence[Message]

    @classmethod
    def read(cls, view: RunView, curves: CurveReader) -> Shown:
        """Read curves and messages of a run."""
        curves.read()
        loss, test_loss, accuracy = (curves.curve(name) for name in ("loss", "test loss", "accuracy"))
        return cls(view, loss, test_loss, accuracy, _worth_showing(last_messages(view.folder, MOST_READ)))

    @classmethod
    def of(cls, view: RunView) -> Shown:
        """Read a run once."""
        return cls.read(view, CurveReader(Path(view.folder)))


def _worth_showing(messages: Sequence[Message]) -> list[Message]:
    """Of what is only information, that of the first rank, as all ranks log their own figures; and all warnings."""
    first = min((one.rank for one in messages), default=0)
    return [one for one in messages if one.rank == first or one.level in LEVELS][-MOST_MESSAGES:]


def screen_lines(shown: Shown, width: int, height: int, plain: bool = False) -> list[Text]:
    """At most `height` lines of at most `width` columns: what is most important first.

    plain: without characters beyond ASCII.
    """
    view = shown.view
    head = [*title_lines(view, width, plain), *progress_lines(view, width, plain)]
    left = height - len(head) - 1
    ranks = rank_lines(view.ranks, width, _room_for_ranks(len(view.ranks), left), view.state.rank, plain)
    left -= len(ranks) + 1
    # Four messages are worth more than a chart that leaves no room for them.
    charts = chart_lines(shown, width, min(CHART_HEIGHT, left - 5), plain) if left - 5 >= LEAST_HEIGHT else []
    left -= len(charts) + bool(charts)
    messages = message_lines(shown.messages, width, plain)[-left:] if left > 0 else []
    parts = [head, ranks, charts, messages]
    lines = [line for part in parts if part for line in (Text(), *part)]
    return [cut(line, width, plain) for line in lines[1 : height + 1]]


def _room_for_ranks(count: int, left: int) -> int:
    """Lines for the ranks: half of what there is, or more if they need no more than leaves room for messages."""
    return max(min(count + 1, left - 5), left // 2, 3)


def title_lines(view: RunView, width: int, plain: bool = False) -> list[Text]:
    """The state with its reason, and what is trained."""
    color = STYLES.get(view.state.name, "")
    color = "yellow" if view.state.name == "training" and view.state.reason else color
    style = f"bold {color}".strip()
    title = Text.assemble((f"{'*' if plain else '●'} {view.state.name}", style), f"  {view.name}")
    found = [title]
    if view.state.reason:
        lines = textwrap.wrap(view.state.reason, max(width - 2, 10)) or [""]
        if len(lines) > REASON_LINES:
            lines[REASON_LINES - 1] += " ..."
        found += [Text(f"  {line}", color) for line in lines[:REASON_LINES]]
    facts = [view.framework, view.strategy, f"{view.size} rank{'s' * (view.size != 1)}" if view.size else "",
             view.model and f"{view.model} on {view.data}", view.started and f"since {view.started}"]  # fmt: skip
    return [cut(line, width, plain) for line in (*found, _joined([fact for fact in facts if fact], width, "  "))]


def _joined(parts: Sequence[str], width: int, indent: str, style: str = "dim") -> Text:
    """The first of the parts that fit into a line, and at least one."""
    text = ""
    for part in parts:
        longer = f"{text}, {part}" if text else f"{indent}{part}"
        if text and cell_len(longer) > width:
            continue
        text = longer
    return Text(text, style)


def progress_lines(view: RunView, width: int, plain: bool = False) -> list[Text]:
    """A bar of the steps, the time that is left, and the newest figures."""
    left = figures.duration(view.left_s)
    parts = [f"step {figures.steps(view)}", f"{left} left" if left else ""]
    text = "  ".join(part for part in parts if part)
    lines = []
    if view.last_step:
        share = min(view.step / view.last_step, 1.0)
        text = f"{share:4.0%}  {text}"
        room = max(min(width - cell_len(text) - 4, 60), 5)
        full = round(room * share)
        bar = ("#" * full, "." * (room - full)) if plain else ("━" * full, "─" * (room - full))
        lines.append(Text.assemble("  ", (bar[0], "green"), (bar[1], "dim"), f"  {text}"))
    else:
        lines.append(Text(f"  {text}"))
    known = {
        "images/s": figures.speed(figures.total_speed(view)), "loss": figures.decimal(view.loss),
        "accuracy": figures.decimal(view.accuracy), "epoch": figures.short(view.epoch),
        "test loss": figures.decimal(view.test_loss), "lr": figures.short(view.lr),
    }  # fmt: skip
    texts = [f"{value} {name}" if name == "images/s" else f"{name} {value}" for name, value in known.items() if value]
    if texts:
        lines.append(_joined(texts, width, "  ", ""))
    return [cut(line, width, plain) for line in lines]


def chart_lines(shown: Shown, width: int, height: int, plain: bool = False) -> list[Text]:
    """The charts of loss and accuracy, next to each other in a wide terminal; else that of the loss."""
    losses = [Line("train", shown.loss, "cyan"), Line("test", shown.test_loss, "magenta")]
    accuracies = [Line("test", shown.accuracy, "magenta")]
    if width < TWO_CHARTS or len(shown.accuracy.values) < 2:
        return chart("loss", losses, min(width, TWO_CHARTS), height, plain)
    each = (width - 2) // 2
    left, right = chart("loss", losses, each, height, plain), chart("accuracy", accuracies, each, height, plain)
    if not left or not right:
        return left or right
    pairs = zip(left, right, strict=True)
    return [one.append(" " * max(each + 2 - one.cell_len, 2)).append_text(two) for one, two in pairs]


def message_lines(messages: Sequence[Message], width: int | None, plain: bool = False) -> list[Text]:
    """Messages, a line each; what several ranks say, once."""
    groups: dict[tuple[str, str], tuple[Message, set[int]]] = {}
    ordered: list[tuple[Message, set[int]]] = []
    for one in messages:
        group = groups.get((one.level, one.text))
        if group and one.rank not in group[1]:
            group[1].add(one.rank)
        else:
            ordered.append((one, {one.rank}))
            groups[one.level, one.text] = ordered[-1]
    lines = []
    for one, ranks in ordered:
        who = f"rank{'s' * (len(ranks) > 1)} {format_ranks(ranks)}"
        line = Text.assemble((f"{one.time.partition(' ')[2]} {who}: ", "dim"), (one.text, LEVELS.get(one.level, "")))
        lines.append(line if width is None else cut(line, width, plain))
    return lines
