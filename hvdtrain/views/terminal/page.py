"""All of one run, for `show`."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.text import Text

from hvdtrain.runs.records import AttemptRecord, Findings, read, shown
from hvdtrain.system import checkpoint_folder
from hvdtrain.system.checkpoint_folder import best_first
from hvdtrain.system.text import format_ranks
from hvdtrain.views import details
from hvdtrain.views.details import STACKS, value_text
from hvdtrain.views.table import FILE_WIDTH, Column, Section, Table
from hvdtrain.views.terminal import figures
from hvdtrain.views.terminal.screen import (
    CHART_HEIGHT,
    Shown,
    change_lines,
    chart_lines,
    cut,
    message_lines,
    progress_lines,
    rank_lines,
    title_lines,
)

LAST_MESSAGES = 10
LAST_CHECKPOINTS = 8
LAST_ATTEMPTS = LAST_CHANGES = 20


def page_lines(screen: Shown, width: int | None, all_options: bool) -> list[Text]:
    """The page. width: of the terminal; None for a file, whose lines are not cut.

    all_options: also those that are the defaults of the run's recipe.
    """
    view, run, folder = screen.view, screen.view.run, screen.view.folder
    options = details.options(run) if all_options else details.changed_options(run)
    named = "options" if all_options else "options that differ from the defaults of the recipe"
    inner = width - 2 if width else None
    changes = change_lines(screen.changes, LAST_CHANGES)
    sections: list[tuple[str, Sequence[Text]]] = [
        (named, _values(options, inner)),
        ("columns of the table", _values(details.columns(run), inner)),
        ("results", _values(details.results(run), inner)),
        ("test accuracy of classes", [Text(f"{name}: {text}") for name, text in details.classes(run).items()]),
        ("ranks", rank_lines(view, inner)),
        ("changes of ranks", [line for change in changes for line in _wrapped(change.plain, inner, str(change.style))]),
        ("attempts", _attempts(folder, inner)),
        ("checkpoints", _checkpoints(screen, inner)),
        ("curves", chart_lines(screen, inner or FILE_WIDTH, CHART_HEIGHT - 2)),
        ("last messages", message_lines(screen.messages)[-LAST_MESSAGES:]),
        ("findings of the doctor", _findings(folder, inner)),
        ("versions", _values(details.versions(run), inner)),
        ("host", _values(details.host(run), inner)),
        ("files", _values(_files(screen), inner)),
    ]
    lines = [*title_lines(view, width or 1 << 16), *progress_lines(view, width or FILE_WIDTH)]
    for name, content in sections:
        if content:
            lines += [Text(), *_wrapped(name, width, "bold underline")]
            lines += [Text("  ").append_text(line) for line in content]
    return cut(lines, width) if width else lines


def _values(values: Mapping[str, object], width: int | None) -> list[Text]:
    """`name value`, as many in a line as there is room for."""
    lines: list[str] = []
    for name, value in values.items():
        text = f"{name} {value_text(value)}".rstrip()
        if lines and len(lines[-1]) + 2 + len(text) <= (width or FILE_WIDTH):
            lines[-1] += f"  {text}"
        else:
            lines += [line.plain for line in _wrapped(text, width)]
    return [Text(line) for line in lines]


def _wrapped(text: str, width: int | None, style: str = "") -> list[Text]:
    lines = textwrap.wrap(text, max(width, 10), subsequent_indent="    ") or [""] if width else [text]
    return [Text(line, style) for line in lines]


def _attempts(folder: Path, width: int | None) -> list[Text]:
    """Those that the launcher recorded; none for a job without restarts."""
    lines = []
    for number, record in list(enumerate(read(folder / "attempts.json", list[AttemptRecord]), 1))[-LAST_ATTEMPTS:]:
        facts = {
            "": _clock(record.began), "took": figures.duration(record.seconds), "ranks": record.ranks,
            "from step": record.checkpoint, "to step": record.step, "status": record.status, "ended:": record.ended,
        }  # fmt: skip
        text = ", ".join(f"{name} {value}".strip() for name, value in facts.items() if value not in (None, "", -1))
        lines += _wrapped(f"{number}: {text}", width)
    return lines


def _clock(seconds: float | None) -> str:
    try:
        return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (ValueError, OverflowError, OSError):
        return ""


def _checkpoints(screen: Shown, width: int | None) -> list[Text]:
    """Of those that can be read, the newest ones and the best one: what was measured at the step of each."""
    try:
        entries = checkpoint_folder.entries(screen.view.folder / "checkpoints")
    except OSError:
        entries = []
    if not entries:
        return []
    best, score = next(iter(best_first(entries)), None), screen.view.score
    compared = screen.curve(score.name if score else screen.metric)
    scores, rows = dict(zip(compared.steps, compared.values, strict=True)), []
    for entry in [one for one in entries if one == best or one in entries[-LAST_CHECKPOINTS:]]:
        known = screen.hashes.get(entry.step)
        measured, parameters = figures.decimal(scores.get(entry.step)), known.parameters if known else ""
        rows.append([shown(entry.path.name), str(entry.step), measured, parameters, "the best" * (entry == best)])
    columns = (
        Column("checkpoint", left=True, least=14),
        Column("step", 2),
        Column(score.title if score else "score", 1),
        Column("hash", 4),
        Column("note", 3, left=True, least=10),
    )
    return Table(columns, [Section(rows)], ruled=False).lines(width)


def _findings(folder: Path, width: int | None) -> list[Text]:
    """What the doctor found on rank 0's host when training started, without what is in order."""
    lines = []
    for record in read(folder / "doctor.json", Findings).findings[: details.MAX_ENTRIES]:
        if record.status == "ok":
            continue
        sentence = f"{record.status}: {record.text}{f'; {record.remedy}' if record.remedy else ''}"
        lines += _wrapped(sentence, width, "red" if record.status == "fail" else "yellow")
    return lines


def _files(screen: Shown) -> dict[str, object]:
    folder = screen.view.folder
    files: dict[str, object] = {
        "folder": str(folder),
        "id": screen.view.values["id"],
        "parent": screen.view.values["parent"],
    }
    if ranks := STACKS.ranks(folder):
        files[f"stacks of rank {format_ranks(ranks)}:"] = "heartbeats/stacks-rank-N.txt"
    return {name: value for name, value in files.items() if value}
