"""One run on the screen while it trains, in as many lines and columns as there are: its parts, also for `show`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from hvdtrain.config.score import ACCURACY, LOSS
from hvdtrain.runs.changes import AUDIT, LOST, Changes
from hvdtrain.runs.history import Curve, HistoryReader, SavedHash
from hvdtrain.runs.metrics import NAME, TRAIN_LOSS
from hvdtrain.runs.plots import widened
from hvdtrain.system.text import count_of, format_ranks
from hvdtrain.views.details import LEVELS, LogMessage, newest_messages
from hvdtrain.views.run_state import STATES, RankView
from hvdtrain.views.run_view import RunView
from hvdtrain.views.table import CellsOf, Column, Table
from hvdtrain.views.terminal import figures

CHART_HEIGHT = 14
"""Lines of a chart where there is room."""
TWO_CHARTS = 90
"""From this width, charts of loss and of a metric are next to each other."""
REASON_LINES = 3
"""Of a reason at most."""
CHANGES, FEW_CHANGES, ROOMY = 5, 2, 30
"""Changes of ranks that are shown: in a terminal with more than so many lines left, and else."""
CHANGE_STYLES = {LOST: "yellow", AUDIT: "red"}


class Shown(NamedTuple):
    view: RunView
    curves: Mapping[str, Curve]
    part: str
    """Of the data that the curves of evaluations are of."""
    messages: Sequence[LogMessage]
    hashes: Mapping[int, SavedHash]
    """Of the weights at checkpoints, by step."""
    changes: Changes

    @classmethod
    def read(cls, view: RunView, metrics: HistoryReader | None = None) -> Shown:
        """Read curves and messages of a run. metrics: a reader that has read the earlier ones."""
        metrics = (metrics or HistoryReader(view.folder / NAME)).read()
        messages, changes = newest_messages(view.folder), Changes.of(metrics)
        return cls(view, metrics.curves(), metrics.part, messages, metrics.hashes(), changes)

    def curve(self, name: str) -> Curve:
        """That of an evaluation's figure; empty if there is none."""
        return self.curves.get(f"{self.part} {name}", Curve([], [], []))

    @property
    def metric(self) -> str:
        """The first one, which is the score if one is; empty without any."""
        return next(iter(self.view.metrics), "")


def screen_lines(shown: Shown, width: int, height: int) -> list[Text]:
    """At most `height` lines of at most `width` columns: what is most important first."""
    view = shown.view
    head = [*title_lines(view, width), *progress_lines(view, width)]
    left = height - len(head) - 1
    # Half of what there is for the ranks, or more if they need no more than leaves room for messages.
    room = max(min(len(view.ranks) + 1, left - 5), left // 2, 3)
    ranks = rank_lines(view, width, room)
    left -= len(ranks) + 1
    changes = change_lines(shown.changes, CHANGES if left > ROOMY else FEW_CHANGES)
    left -= len(changes) + bool(changes)
    # Four messages are worth more than a chart that leaves no room for them.
    charts = chart_lines(shown, width, min(CHART_HEIGHT, left - 5)) if left - 5 >= MIN_HEIGHT else []
    left -= len(charts) + bool(charts)
    messages = message_lines(shown.messages)[-left:] if left > 0 else []
    parts = [head, ranks, changes, charts, messages]
    return cut((line for part in parts if part for line in (Text(), *part)), width)[1 : height + 1]


def cut(lines: Iterable[Text], width: int) -> list[Text]:
    shortened = [line.copy() for line in lines]
    for line in shortened:
        line.truncate(width, overflow="ellipsis")
    return shortened


def title_lines(view: RunView, width: int) -> list[Text]:
    color = "yellow" if view.state.name == "training" and view.state.reason else STATES.get(view.state.name, "")
    reason = textwrap.wrap(view.state.reason, max(width - 2, 10), max_lines=REASON_LINES, placeholder=" ...")
    framework, model, data, started = (view.values[name] for name in ("framework", "model", "data", "started"))
    target = f"{model} on {data}" if model and data else model
    facts = [framework, view.run.strategy, _ranks_of(view), target, started and f"since {started}"]
    return [
        Text.assemble((f"● {view.state.name}", f"bold {color}".strip()), f"  {view.name}"),
        *(Text(f"  {line}", color) for line in reason),
        Text(_joined([fact for fact in facts if fact], width), "dim"),
    ]


def _joined(parts: Sequence[str], width: int) -> str:
    """The first of the parts, as many as fit into a line, and at least one."""
    while len(parts) > 1 and cell_len(", ".join(parts)) + 2 > width:
        parts = parts[:-1]
    return f"  {', '.join(parts)}"


def _ranks_of(view: RunView) -> str:
    """How many ranks there are, and how many there were if that has changed."""
    now, size = view.size_now, view.size
    if now is not None and size:
        return f"{now} of {size} ranks" if now < size else f"{now} ranks ({size} at the start)"
    return count_of(size, "rank") if size else ""


def progress_lines(view: RunView, width: int) -> list[Text]:
    """A bar of the steps, the time that is left, and the newest figures."""
    line = Text("  ".join(filter(None, [f"step {figures.steps(view)}", figures.left(view)])))
    if view.last_step:
        share = min(view.step / view.last_step, 1.0)
        line = Text(f"  {share:4.0%}  ").append_text(line)
        room = max(min(width - cell_len(line.plain) - 2, 60), 5)
        full = round(room * share)
        line = Text.assemble(("━" * full, "green"), ("─" * (room - full), "dim"), line)
    texts = [f"{name} {text}" for name, text in figures.newest(view).items()]
    texts = [*filter(None, [figures.total_speed(view)]), *texts]
    return [Text("  ").append_text(line), *([Text(_joined(texts, width))] if texts else [])]


def chart_lines(shown: Shown, width: int, height: int) -> list[Text]:
    """The charts of loss and of a metric, next to each other in a wide terminal; else that of the loss."""
    evaluated, metric = (ChartLine(shown.part, shown.curve(name), "magenta") for name in (LOSS, shown.metric))
    losses = [ChartLine("train", shown.curves[TRAIN_LOSS], "cyan"), evaluated]
    if width < TWO_CHARTS or len(metric.curve.values) < 2:
        return chart("loss", losses, min(width, TWO_CHARTS), height)
    each = (width - 2) // 2
    left, right = chart("loss", losses, each, height), chart(shown.metric, [metric], each, height)
    if not left or not right:
        return left or right
    pairs = zip(left, right, strict=True)
    return [first.append(" " * max(each + 2 - first.cell_len, 2)).append_text(second) for first, second in pairs]


def change_lines(changes: Changes, most: int) -> list[Text]:
    """The newest changes of the ranks, a line each, the last one first; below a line of how much happened in all."""
    newest = changes.changes[::-1][:most]
    lines = [Text(change.text, CHANGE_STYLES.get(change.kind, "")) for change in newest]
    summary = [Text(changes.summary, "dim")] if len(newest) != 1 else []
    return [*summary, *lines] if changes else []


def message_lines(messages: Sequence[LogMessage]) -> list[Text]:
    lines = []
    for message in messages:
        who = f"rank{'s' * (len(message.ranks) > 1)} {format_ranks(message.ranks)}"
        clock, style = message.time.partition(" ")[2], LEVELS.get(message.level, "")
        lines.append(Text.assemble((f"{clock} {who}: ", "dim"), (message.text, style)))
    return lines


def rank_lines(view: RunView, width: int | None, most: int | None = None) -> list[Text]:
    """A header, a line for each rank, and where there are more than `most` lines, one that counts those left out.

    Those are not the rank that the state names, nor ranks with remarks as long as there is room.
    """
    ranks = shown = list(view.ranks)
    if most is not None and len(ranks) + 1 > most:
        ordered = sorted(ranks, key=lambda rank: (rank.rank != view.state.rank, not rank.remark, rank.rank))
        shown = sorted(ordered[: max(most - 2, 1)], key=lambda rank: rank.rank)
    columns = [(column, cells) for column, cells in _columns(shown, view) if any(cells)]
    lines = Table.of_columns(columns).lines(width) if columns else []
    left = len(ranks) - len(shown)
    if left:
        unusual = sum(bool(rank.remark) for rank in ranks) - sum(bool(rank.remark) for rank in shown)
        remarks = f", {unusual} of them with remarks" if unusual else ""
        lines.append(Text(f"and {count_of(left, 'more rank')}{remarks}", "dim"))
    return lines


def _columns(ranks: Sequence[RankView], view: RunView) -> list[CellsOf]:
    def column(heading: str, priority: int, cells: Sequence[str], least: int = 0) -> CellsOf:
        texts = [Text(cell, _style(rank, view)) for cell, rank in zip(cells, ranks, strict=True)]
        return Column(heading, priority, left=bool(least), least=least), texts

    return [
        column("rank", 0, [str(rank.rank) for rank in ranks]),
        column("host", 6, [rank.beat.host for rank in ranks], least=8),
        column("step", 2, [str(rank.beat.step) for rank in ranks]),
        column(f"{view.run.unit}/s", 3, [figures.speed(rank.images_per_s) for rank in ranks]),
        column("comp/comm/data", 4, [_percents(rank) for rank in ranks]),
        column("memory", 7, [figures.memory(rank.beat.memory) for rank in ranks]),
        column("heartbeat", 5, [figures.age(rank.age_s) for rank in ranks]),
        column("remark", 1, [rank.remark for rank in ranks], least=16),
        column("at", 8, ["" if rank.beat.waits else rank.beat.doing for rank in ranks], least=12),
    ]


def _style(rank: RankView, view: RunView) -> str:
    if not rank.is_member:
        return "dim"
    if rank.is_silent and rank.remark:
        return "red"
    return "yellow" if rank.remark or rank.rank == view.state.rank else ""


def _percents(rank: RankView) -> str:
    """The shares in percent, as `72/20/8`; a question mark where a strategy does not know one."""
    if rank.shares is None:
        return ""
    return "/".join("?" if share is None else f"{100 * share:.0f}" for share in rank.shares)


LOG_FROM = 20.0
"""A loss whose greatest value is this multiple of its least one is drawn on a logarithmic axis."""
EMPTY = 0x2800
"""The Braille character without dots; the lowest 8 bits of the others are their dots."""
DOTS = np.array([[1, 8], [2, 16], [4, 32], [64, 128]])
"""The bits of a character's dots, by line and column."""
MIN_HEIGHT = 5
"""Lines of the smallest chart, with title and axis."""


class ChartLine(NamedTuple):
    name: str
    curve: Curve
    style: str


def chart(title: str, lines: Sequence[ChartLine], width: int, height: int) -> list[Text]:
    """A title with the newest values, the curves over epochs, and the axis: `height` lines; empty without a point."""
    known = [line for line in lines if line.curve]
    if not known or height < MIN_HEIGHT or width < 20:
        return []
    values = [value for line in known for value in line.curve.values]
    epochs = [epoch for line in known for epoch in line.curve.epochs]
    first, last, low, high = min(epochs), max(epochs), min(values), max(values)
    if title == ACCURACY:
        low, high = widened(low, high)
    logarithmic = title == "loss" and low > 0 and high / low > LOG_FROM
    labels = {0: figures.decimal(high), height - 3: figures.decimal(low)}
    room = max(map(len, labels.values())) + 1
    columns = width - room
    heading = Text.assemble((title, "bold"), " (logarithmic)" if logarithmic else "")
    rows = [Text.assemble((f"{labels.get(number, ''):>{room - 1}} ", "dim")) for number in range(height - 2)]
    dots, styles = np.zeros((height - 2, columns), int), np.zeros((height - 2, columns), int)
    for number, line in enumerate(known):
        heading.append(f"  {line.name} {figures.decimal(line.curve.values[-1])}", line.style)
        curve = line.curve.thinned(4 * columns)
        scale = np.log if logarithmic else np.asarray
        x = _places(np.asarray(curve.epochs), first, last, 2 * columns)
        y = _places(-scale(curve.values), -float(scale(high)), -float(scale(low)), 4 * (height - 2))
        drawn = _drawn(list(zip(x, y, strict=True)), dots.shape)
        dots |= drawn
        styles[drawn > 0] = number
    for row, of_row, style in zip(rows, dots, styles, strict=True):
        for dot, number in zip(of_row, style, strict=True):
            row.append(chr(EMPTY + dot) if dot else " ", known[number].style if dot else "")
    heading.truncate(width, overflow="ellipsis")
    ends = f"epoch {figures.short(first)}", figures.short(last)
    axis = f"{ends[0]}{ends[1]:>{max(columns - len(ends[0]), 0)}}"[:columns]
    return [heading, *rows, Text.assemble(" " * room, (axis, "dim"))]


def _places(values: np.ndarray, low: float, high: float, count: int) -> list[int]:
    """Where values are between two others, among so many places; halved as their difference may be infinite."""
    span = high / 2 - low / 2
    shares = (values / 2 - low / 2) / span if span > 0 else np.full(len(values), 0.5)
    return [min(int(share * count), count - 1) for share in shares]


def _drawn(points: Sequence[tuple[int, int]], shape: tuple[int, ...]) -> np.ndarray:
    """The dots of each character, by line and column, for lines from each point to the next."""
    height, width = shape
    marked = np.zeros((4 * height, 2 * width), bool)
    for (x, y), (next_x, next_y) in pairwise([points[0], *points]):
        count = max(abs(next_x - x), abs(next_y - y)) + 1
        marked[np.linspace(y, next_y, count).round().astype(int), np.linspace(x, next_x, count).round().astype(int)] = 1
    return (marked.reshape(height, 4, width, 2) * DOTS[:, None, :]).sum((1, 3))
