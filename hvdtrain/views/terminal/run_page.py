"""All of one run, for `show`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from hvdtrain.system.text import format_ranks
from hvdtrain.views.monitor import details
from hvdtrain.views.monitor.details import Details, value_text
from hvdtrain.views.monitor.messages import stack_ranks
from hvdtrain.views.table import CellsOf, Column, Table
from hvdtrain.views.terminal import figures
from hvdtrain.views.terminal.ranks import rank_lines
from hvdtrain.views.terminal.screen import (
    CHART_HEIGHT,
    Shown,
    chart_lines,
    message_lines,
    progress_lines,
    title_lines,
)

FILE_WIDTH = 120
"""Columns of charts in a file."""
LAST_MESSAGES = 10
LAST_CHECKPOINTS = 8
LAST_ATTEMPTS = 20


def page_lines(shown: Shown, width: int | None, all_options: bool, plain: bool = False) -> list[Text]:
    """The page. width: of the terminal; None for a file, whose lines are not cut.

    all_options: also those that are the defaults of the run's recipe. plain: without characters beyond ASCII.
    """
    folder, found = shown.view.folder, Details.read(shown.view.folder)
    options = found.options if all_options else found.changed_options
    named = "options" if all_options else "options that differ from the defaults of the recipe"
    inner = width - 2 if width else None
    sections: list[tuple[str, Sequence[Text]]] = [
        (named, _values(options, inner)),
        ("results", _values(found.results, inner)),
        ("ranks", rank_lines(shown.view.ranks, inner, first=shown.view.state.rank, plain=plain)),
        ("attempts", _attempts(details.attempts(folder), inner, plain)),
        ("checkpoints", _checkpoints(details.checkpoints(folder), inner, plain)),
        ("curves", chart_lines(shown, inner or FILE_WIDTH, CHART_HEIGHT - 2, plain)),
        ("last messages", message_lines(shown.messages, inner, plain)[-LAST_MESSAGES:]),
        ("findings of the doctor", _findings(details.findings(folder), inner)),
        ("versions", _values(found.versions, inner)),
        ("host", _values(found.host, inner)),
        ("files", list(_files(shown, inner))),
    ]
    lines = [*title_lines(shown.view, width or 1 << 16, plain), *progress_lines(shown.view, width or FILE_WIDTH, plain)]
    for name, content in sections:
        if content:
            lines += [Text(), Text(name, "bold underline"), *(Text("  ").append_text(line) for line in content)]
    return lines


def _values(values: Mapping[str, object], width: int | None) -> list[Text]:
    """`name value`, as many in a line as there is room for."""
    texts = [f"{name} {value_text(value)}".rstrip() for name, value in values.items()]
    return _filled(texts, width)


def _filled(texts: Sequence[str], width: int | None) -> list[Text]:
    """Texts one after the other, in lines of at most that many columns."""
    lines: list[str] = []
    room = width or FILE_WIDTH
    for text in texts:
        if lines and len(lines[-1]) + 2 + len(text) <= room:
            lines[-1] += f"  {text}"
        else:
            lines += _wrapped(text, width)
    return [Text(line) for line in lines]


def _wrapped(text: str, width: int | None) -> list[str]:
    return textwrap.wrap(text, max(width, 10), subsequent_indent="    ") or [""] if width else [text]


def _attempts(rows: Sequence[details.AttemptRow], width: int | None, plain: bool) -> list[Text]:
    left, rows = len(rows[:-LAST_ATTEMPTS]), rows[-LAST_ATTEMPTS:]
    if not rows:
        return []

    def column(heading: str, priority: int, cells: Sequence[object], **layout: Any) -> CellsOf:
        return Column(heading, priority, **layout), ["" if cell is None else str(cell) for cell in cells]

    table = Table.of_columns(
        [
            column("attempt", 0, range(left + 1, left + len(rows) + 1)),
            column("began", 6, [row.began for row in rows], left=True),
            column("took", 5, [figures.duration(row.seconds) for row in rows]),
            column("ranks", 7, [row.ranks for row in rows]),
            column("from step", 4, [row.checkpoint for row in rows]),
            column("to step", 2, [row.step for row in rows]),
            column("status", 3, [row.status for row in rows]),
            column("ended", 1, [row.ended for row in rows], left=True, least=20),
        ]
    )
    lines = table.lines(width, plain)
    return [*lines[:1], *([Text(f"{left} earlier ones", "dim")] if left else []), *lines[1:]]


def _checkpoints(rows: Sequence[details.CheckpointRow], width: int | None, plain: bool) -> list[Text]:
    left, rows = len(rows[:-LAST_CHECKPOINTS]), rows[-LAST_CHECKPOINTS:]
    if not rows:
        return []
    notes = ["" if row.is_continued else "not continued by the newest" for row in rows]
    table = Table.of_columns(
        [
            (Column("checkpoint", left=True, least=12), [row.name for row in rows]),
            (Column("step", 2), [str(row.step) for row in rows]),
            (Column("score", 1), [figures.decimal(row.score) for row in rows]),
            (Column("note", 3, left=True, least=10), notes),
        ]
    )
    lines = table.lines(width, plain)
    return [*lines[:1], *([Text(f"{left} older ones", "dim")] if left else []), *lines[1:]]


def _findings(rows: Sequence[details.FindingRow], width: int | None) -> list[Text]:
    lines = []
    for row in rows:
        words = f"{row.status}: {row.text}{f'; {row.remedy}' if row.remedy else ''}"
        lines += [Text(line, "red" if row.status == "fail" else "yellow") for line in _wrapped(words, width)]
    return lines


def _files(shown: Shown, width: int | None) -> Iterator[Text]:
    folder = shown.view.folder
    texts = [f"folder {details.value_text(str(folder))}"]
    if shown.view.id:
        texts.append(f"id {shown.view.id}")
    if ranks := stack_ranks(folder):
        texts.append(f"stacks of rank {format_ranks(ranks)}: heartbeats/stacks-rank-N.txt")
    if name := details.newest_timeline(folder):
        texts.append(f"timeline {name}")
    yield from _filled(texts, width)
