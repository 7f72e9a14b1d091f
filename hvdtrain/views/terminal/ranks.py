"""The table of a run's ranks."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from hvdtrain.views.monitor.ranks import RankView
from hvdtrain.views.table import CellsOf, Column, Table
from hvdtrain.views.terminal.figures import age, memory, speed

BAR = 24
"""Columns of the bar that shows what a rank's time is spent on."""
PARTS = (("green", "█", "#"), ("yellow", "▒", "="), ("red", "░", "."))
"""Style and characters of computing, communicating and waiting for data; the last without Unicode."""


def rank_lines(
    ranks: Sequence[RankView], width: int | None, most: int | None = None, first: int | None = None, plain: bool = False
) -> list[Text]:
    """A header, a line for each rank, and where there are more than `most` lines, one that counts those left out.

    Ranks with remarks are shown first, and the rank `first`. plain: without characters beyond ASCII.
    """
    shown = list(ranks)
    if most is not None and len(ranks) + 1 > most:
        shown = _chosen(ranks, max(most - 2, 1), first)
    columns = [(column, cells) for column, cells in _columns(shown, first, plain) if any(cells)]
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


def _columns(ranks: Sequence[RankView], first: int | None, plain: bool) -> list[CellsOf]:
    styles = [_style(view, first) for view in ranks]
    places = ["" if view.beat.waits else view.beat.doing for view in ranks]

    def column(heading: str, priority: int, cells: Sequence[str], least: int = 0) -> CellsOf:
        texts = [Text(cell, style) for cell, style in zip(cells, styles, strict=True)]
        return Column(heading, priority, left=bool(least), least=least), texts

    return [
        column("rank", 0, [str(view.rank) for view in ranks]),
        column("host", 6, [view.beat.host for view in ranks], least=8),
        column("step", 2, [str(view.beat.step) for view in ranks]),
        column("images/s", 3, [speed(view.images_per_s) for view in ranks]),
        (Column("compute/communicate/data", 8, left=True), [_bar(view, plain) for view in ranks]),
        column("comp/comm/data", 4, [_percents(view) for view in ranks]),
        column("memory", 7, [memory(view.beat.memory) for view in ranks]),
        column("heartbeat", 5, [age(view.age_s) for view in ranks]),
        column("remark", 1, [view.remark for view in ranks], least=16),
        column("at", 9, places, least=12),
    ]


def _style(view: RankView, first: int | None) -> str:
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
