"""One run on the screen while it trains, in as many lines and columns as there are: its parts, also for `show`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from hvdtrain.config.score import LOSS
from hvdtrain.runs.changes import AUDIT, LOST, Changes
from hvdtrain.runs.metrics import NAME, Curve, MetricsReader, SavedHash
from hvdtrain.system.text import format_ranks
from hvdtrain.views.details import LEVELS, SharedMessage, joined_messages, last_messages
from hvdtrain.views.listing import STYLES
from hvdtrain.views.rank_view import RankView
from hvdtrain.views.run_view import RunView
from hvdtrain.views.table import CellsOf, Column, Table, cut
from hvdtrain.views.terminal import figures
from hvdtrain.views.terminal.chart import MIN_HEIGHT, Line, chart

MAX_READ, MAX_MESSAGES = 10_000, 50
"""Messages that are read, and those kept for a screen of any height."""
CHART_HEIGHT = 14
"""Lines of a chart where there is room."""
TWO_CHARTS = 90
"""From this width, charts of loss and of a metric are next to each other."""
REASON_LINES = 3
"""Of a reason at most."""
CHANGES, FEW_CHANGES, ROOMY = 5, 2, 30
"""Changes of ranks that are shown: in a terminal with more than so many lines left, and else."""
CHANGE_STYLES = {LOST: "yellow", AUDIT: "red"}
BAR = 24
"""Columns of the bar that shows what a rank's time is spent on."""
PARTS = (("green", "█", "#"), ("yellow", "▒", "="), ("red", "░", "."))
"""Style and characters of computing, communicating and waiting for data; the last without Unicode."""


class Shown(NamedTuple):
    """What is read of a run for its screen."""

    view: RunView
    loss: Curve
    evaluated_loss: Curve
    score: Curve
    """That of the metric by which the run is compared; empty where that is the loss."""
    messages: Sequence[SharedMessage]
    hashes: Mapping[int, SavedHash]
    """Of the weights at checkpoints, by step."""
    scores: Mapping[int, float]
    """Of evaluations, by step."""
    changes: Changes
    """Of the ranks."""

    @classmethod
    def read(cls, view: RunView, metrics: MetricsReader | None = None) -> Shown:
        """Read curves and messages of a run. metrics: a reader that has read the earlier ones."""
        metrics = (metrics or MetricsReader(view.folder / NAME)).read()
        loss, evaluated = (metrics.curve(name) for name in ("loss", f"{metrics.part} loss"))
        name = next(iter(view.metrics), "")
        score = metrics.curve(name) if name else Curve([], [], [])
        by_loss = view.score is not None and view.score.name == LOSS
        scores = dict(
            zip((evaluated if by_loss else score).steps, (evaluated if by_loss else score).values, strict=True)
        )
        messages = joined_messages(last_messages(view.folder, MAX_READ))[-MAX_MESSAGES:]
        return cls(view, loss, evaluated, score, messages, metrics.hashes(), scores, Changes.of(metrics))


def screen_lines(shown: Shown, width: int, height: int, plain: bool = False) -> list[Text]:
    """At most `height` lines of at most `width` columns: what is most important first.

    plain: without characters beyond ASCII.
    """
    view = shown.view
    head = [*title_lines(view, width, plain), *progress_lines(view, width, plain)]
    left = height - len(head) - 1
    ranks = rank_lines(view.ranks, width, _room_for_ranks(len(view.ranks), left), view.state.rank, plain, view.run.unit)
    left -= len(ranks) + 1
    changes = change_lines(shown.changes, width, CHANGES if left > ROOMY else FEW_CHANGES)
    left -= len(changes) + bool(changes)
    # Four messages are worth more than a chart that leaves no room for them.
    charts = chart_lines(shown, width, min(CHART_HEIGHT, left - 5), plain) if left - 5 >= MIN_HEIGHT else []
    left -= len(charts) + bool(charts)
    messages = message_lines(shown.messages, width, plain)[-left:] if left > 0 else []
    parts = [head, ranks, changes, charts, messages]
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
    lines = [title]
    if view.state.reason:
        reason = textwrap.wrap(view.state.reason, max(width - 2, 10)) or [""]
        if len(reason) > REASON_LINES:
            reason[REASON_LINES - 1] += " ..."
        lines += [Text(f"  {line}", color) for line in reason[:REASON_LINES]]
    framework, model, data = (view.values[name] for name in ("framework", "model", "data"))
    facts = [framework, view.run.strategy, _ranks_of(view),
             f"{model} on {data}" if model and data else model, view.started and f"since {view.started}"]  # fmt: skip
    return [cut(line, width, plain) for line in (*lines, _joined([fact for fact in facts if fact], width, "  "))]


def _ranks_of(view: RunView) -> str:
    """How many ranks there are, and how many there were if that has changed."""
    now, size = view.size_now, view.size
    if now is not None and size:
        return f"{now} of {size} ranks" if now < size else f"{now} ranks ({size} at the start)"
    return f"{size} rank{'s' * (size != 1)}" if size else ""


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
        "loss": figures.decimal(view.loss), **figures.tested(view),
        "epoch": figures.short(view.values["epoch"]), "lr": figures.short(view.values["lr"]),
        **{f"logged {name}": value for name, value in figures.logged(view).items()},
    }  # fmt: skip
    speed = figures.speed(figures.total_speed(view))
    texts = [f"{speed} {view.run.unit}/s"] * bool(speed) + [f"{name} {value}" for name, value in known.items() if value]
    if texts:
        lines.append(_joined(texts, width, "  ", ""))
    return [cut(line, width, plain) for line in lines]


def chart_lines(shown: Shown, width: int, height: int, plain: bool = False) -> list[Text]:
    """The charts of loss and of a metric, next to each other in a wide terminal; else that of the loss."""
    losses = [Line("train", shown.loss, "cyan"), Line(shown.view.run.part, shown.evaluated_loss, "magenta")]
    scores = [Line(shown.view.run.part, shown.score, "magenta")]
    lost = [change.epoch for change in shown.changes.changes if change.kind == LOST and change.epoch is not None]
    if width < TWO_CHARTS or len(shown.score.values) < 2:
        return chart("loss", losses, min(width, TWO_CHARTS), height, plain, lost)
    each = (width - 2) // 2
    name = next(iter(shown.view.metrics), "")
    left, right = (chart(*named, each, height, plain, lost) for named in (("loss", losses), (name, scores)))
    if not left or not right:
        return left or right
    pairs = zip(left, right, strict=True)
    return [first.append(" " * max(each + 2 - first.cell_len, 2)).append_text(second) for first, second in pairs]


def change_lines(changes: Changes, width: int | None, most: int) -> list[Text]:
    """The newest changes of the ranks, a line each, the last one first; below a line of how much happened in all."""
    newest = changes.changes[::-1][:most]
    lines = [Text(change.text, CHANGE_STYLES.get(change.kind, "")) for change in newest]
    summary = [Text(changes.summary, "dim")] if len(newest) > 1 or not newest else []
    return [line if width is None else cut(line, width) for line in (*summary, *lines)] if changes else []


def message_lines(messages: Sequence[SharedMessage], width: int | None, plain: bool = False) -> list[Text]:
    """Messages, a line each."""
    lines = []
    for message, ranks in messages:
        who = f"rank{'s' * (len(ranks) > 1)} {format_ranks(ranks)}"
        clock, style = message.time.partition(" ")[2], LEVELS.get(message.level, "")
        line = Text.assemble((f"{clock} {who}: ", "dim"), (message.text, style))
        lines.append(line if width is None else cut(line, width, plain))
    return lines


def rank_lines(
    ranks: Sequence[RankView],
    width: int | None,
    most: int | None = None,
    first: int | None = None,
    plain: bool = False,
    unit: str = "images",
) -> list[Text]:
    """A header, a line for each rank, and where there are more than `most` lines, one that counts those left out.

    Ranks with remarks are shown first, and the rank `first`. plain: without characters beyond ASCII. unit: of rows.
    """
    shown = list(ranks)
    if most is not None and len(ranks) + 1 > most:
        shown = _chosen(ranks, max(most - 2, 1), first)
    columns = [(column, cells) for column, cells in _columns(shown, first, plain, unit) if any(cells)]
    lines = Table.of_columns(columns).lines(width, plain) if columns else []
    left = len(ranks) - len(shown)
    if left:
        unusual = sum(bool(view.remark) for view in ranks) - sum(bool(view.remark) for view in shown)
        remarks = f", {unusual} of them with remarks" if unusual else ""
        lines.append(Text(f"and {left} more rank{'s' * (left != 1)}{remarks}", "dim"))
    return lines


def _chosen(ranks: Sequence[RankView], most: int, first: int | None) -> list[RankView]:
    """The ranks that are shown if there is not enough room for all, in their order."""
    by_importance = sorted(ranks, key=lambda view: (view.rank != first, not view.remark, view.rank))
    return sorted(by_importance[:most], key=lambda view: view.rank)


def _columns(ranks: Sequence[RankView], first: int | None, plain: bool, unit: str) -> list[CellsOf]:
    styles = [_style(view, first) for view in ranks]
    places = ["" if view.beat.waits else view.beat.doing for view in ranks]

    def column(heading: str, priority: int, cells: Sequence[str], least: int = 0) -> CellsOf:
        texts = [Text(cell, style) for cell, style in zip(cells, styles, strict=True)]
        return Column(heading, priority, left=bool(least), least=least), texts

    return [
        column("rank", 0, [str(view.rank) for view in ranks]),
        column("host", 6, [view.beat.host for view in ranks], least=8),
        column("step", 2, [str(view.beat.step) for view in ranks]),
        column(f"{unit}/s", 3, [figures.speed(view.images_per_s) for view in ranks]),
        (Column("compute/communicate/data", 8, left=True), [_bar(view, plain) for view in ranks]),
        column("comp/comm/data", 4, [_percents(view) for view in ranks]),
        column("memory", 7, [figures.memory(view.beat.memory) for view in ranks]),
        column("heartbeat", 5, [figures.age(view.age_s) for view in ranks]),
        column("remark", 1, [view.remark for view in ranks], least=16),
        column("at", 9, places, least=12),
    ]


def _style(view: RankView, first: int | None) -> str:
    if not view.is_member:
        return "dim"
    if view.is_silent and view.remark:
        return "red"
    return "yellow" if view.remark or view.rank == first else ""


def _percents(view: RankView) -> str:
    """The shares in percent, as `72/20/8`; a question mark where a strategy does not know one."""
    if view.shares is None:
        return ""
    return "/".join("?" if share is None else f"{100 * share:.0f}" for share in view.shares)


def _bar(view: RankView, plain: bool) -> Text:
    """The shares as a bar; empty where they are not known yet."""
    bar, begun, drawn = Text(), 0.0, 0
    if view.shares is None:
        return bar
    for share, (style, filled, ascii_filled) in zip(view.shares, PARTS, strict=True):
        begun += share or 0.0
        end = min(round(begun * BAR), BAR)
        bar.append((ascii_filled if plain else filled) * (end - drawn), style)
        drawn = max(end, drawn)
    return bar
