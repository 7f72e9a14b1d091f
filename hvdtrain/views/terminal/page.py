"""All of one run, for `show`."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from hvdtrain.runs.changes import Changes
from hvdtrain.runs.records import Record, shown
from hvdtrain.system.checkpoint_folder import Entry, best_first
from hvdtrain.system.text import format_ranks
from hvdtrain.views import details
from hvdtrain.views.details import STACKS, value_text
from hvdtrain.views.table import CellsOf, Column, Section, Table
from hvdtrain.views.terminal import figures
from hvdtrain.views.terminal.screen import (
    CHART_HEIGHT,
    Shown,
    change_lines,
    chart_lines,
    message_lines,
    progress_lines,
    rank_lines,
    title_lines,
)

FILE_WIDTH = 120
"""Columns of charts in a file."""
LAST_MESSAGES = 10
LAST_CHECKPOINTS = 8
LAST_ATTEMPTS = LAST_CHANGES = 20


def page_lines(screen: Shown, width: int | None, all_options: bool, plain: bool = False) -> list[Text]:
    """The page. width: of the terminal; None for a file, whose lines are not cut.

    all_options: also those that are the defaults of the run's recipe. plain: without characters beyond ASCII.
    """
    view, run, folder = screen.view, screen.view.run, screen.view.folder
    options = details.options(run) if all_options else details.changed_options(run)
    named = "options" if all_options else "options that differ from the defaults of the recipe"
    inner = width - 2 if width else None
    sections: list[tuple[str, Sequence[Text]]] = [
        (named, _values(options, inner)),
        ("results", _values(details.results(run), inner)),
        ("ranks", rank_lines(view.ranks, inner, first=view.state.rank, plain=plain, unit=run.unit)),
        ("changes of ranks", _changes(screen.changes, inner)),
        ("attempts", _attempts(details.attempts(folder), inner, plain)),
        ("checkpoints", _checkpoints(details.checkpoints(folder), screen, inner, plain)),
        ("curves", chart_lines(screen, inner or FILE_WIDTH, CHART_HEIGHT - 2, plain)),
        ("last messages", message_lines(screen.messages, inner, plain)[-LAST_MESSAGES:]),
        ("findings of the doctor", _findings(details.findings(folder), inner)),
        ("versions", _values(details.versions(run), inner)),
        ("host", _values(details.host(run), inner)),
        ("files", list(_files(screen, inner))),
    ]
    lines = [*title_lines(view, width or 1 << 16, plain), *progress_lines(view, width or FILE_WIDTH, plain)]
    for name, content in sections:
        if content:
            titles = (Text(line, "bold underline") for line in _wrapped(name, width))
            lines += [Text(), *titles, *(Text("  ").append_text(line) for line in content)]
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


def _changes(changes: Changes, width: int | None) -> list[Text]:
    """Those of the ranks, in whole lines."""
    lines = change_lines(changes, None, LAST_CHANGES)
    return [Text(part, line.style) for line in lines for part in _wrapped(line.plain, width)]


def _attempts(records: Sequence[Record], width: int | None, plain: bool) -> list[Text]:
    earlier, records = len(records[:-LAST_ATTEMPTS]), records[-LAST_ATTEMPTS:]
    if not records:
        return []

    def column(heading: str, priority: int, cells: Sequence[object], **layout: Any) -> CellsOf:
        return Column(heading, priority, **layout), ["" if cell is None else str(cell) for cell in cells]

    table = Table.of_columns(
        [
            column("attempt", 0, range(earlier + 1, earlier + len(records) + 1)),
            column("began", 6, [_clock(record.number("began")) for record in records], left=True),
            column("took", 5, [figures.duration(record.number("seconds")) for record in records]),
            column("ranks", 7, [record.count("ranks") or 0 for record in records]),
            column("from step", 4, [record.count("checkpoint") for record in records]),
            column("to step", 2, [record.count("step") for record in records]),
            column("status", 3, [record.count("status") or 0 for record in records]),
            column("ended", 1, [record.text("ended") for record in records], left=True, least=20),
        ]
    )
    lines = table.lines(width, plain)
    return [*lines[:1], *([Text(f"{earlier} earlier ones", "dim")] if earlier else []), *lines[1:]]


def _clock(seconds: float | None) -> str:
    """Date and time of seconds since the epoch."""
    try:
        return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (ValueError, OverflowError, OSError):
        return ""


def _checkpoints(entries: Sequence[Entry], screen: Shown, width: int | None, plain: bool) -> list[Text]:
    if not entries:
        return []
    best = next(iter(best_first(entries)), None)
    shown_last = entries[-LAST_CHECKPOINTS:]
    chosen = [*([best] if best and best not in shown_last else []), *shown_last]
    rows = [_checkpoint(entry, entry == best, screen) for entry in chosen]
    columns = (
        Column("checkpoint", left=True, least=14),
        Column("step", 2),
        Column(screen.view.score.title if screen.view.score else "score", 1),
        Column("hash", 4),
        Column("note", 3, left=True, least=10),
    )
    lines = Table(columns, [Section(rows)], ruled=False).lines(width, plain)
    older = len(entries) - len(chosen)
    return [*lines[:1], *([Text(f"{older} older ones", "dim")] if older else []), *lines[1:]]


def _checkpoint(entry: Entry, is_best: bool, screen: Shown) -> list[str]:
    """The cells of one checkpoint: what was measured at its step, and what it is."""
    known, score = screen.hashes.get(entry.step), screen.scores.get(entry.step)
    return [
        shown(entry.path.name),
        str(entry.step),
        figures.decimal(score),
        known.parameters if known else "",
        "the best" * is_best,
    ]


def _findings(records: Sequence[Record], width: int | None) -> list[Text]:
    lines = []
    for record in records:
        status, remedy = record.text("status"), record.text("remedy")
        sentence = f"{status}: {record.text('text')}{f'; {remedy}' if remedy else ''}"
        lines += [Text(line, "red" if status == "fail" else "yellow") for line in _wrapped(sentence, width)]
    return lines


def _files(screen: Shown, width: int | None) -> Iterator[Text]:
    folder, run_id = screen.view.folder, screen.view.values["id"]
    texts = [f"folder {details.value_text(str(folder))}"]
    if run_id:
        texts.append(f"id {run_id}")
    if ranks := STACKS.ranks(folder):
        texts.append(f"stacks of rank {format_ranks(ranks)}: heartbeats/stacks-rank-N.txt")
    if name := details.newest_timeline(folder):
        texts.append(f"timeline {name}")
    yield from _filled(texts, width)
