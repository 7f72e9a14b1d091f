"""A comparison of methods of --compression as a table, and its files: Markdown and JSON."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.measure.scale.comparison import Compared, ranks_text
from hvdtrain.measure.scale.prediction import Job
from hvdtrain.system.files import write_outputs
from hvdtrain.system.text import to_json
from hvdtrain.views.table import Column, Section, Table, text_column

FILES = ("scale.md", "scale.json")
COLUMNS = (
    Column("--compression", left=True),
    Column("--sync-every"),
    Column("kB sent a step", priority=1),
    Column("step, ms"),
    Column("packing, ms", priority=3),
    Column("times as fast"),
    text_column("changes", priority=2),
)


def table(compared: Sequence[Compared]) -> Table:
    """One section for each number of ranks."""
    sections = []
    for ranks, group in itertools.groupby(compared, key=lambda one: one.ranks):
        sections.append(Section([_row(one) for one in group], ranks_text(ranks)))
    return Table(COLUMNS, sections)


def _row(one: Compared) -> list[str]:
    return [
        str(one.combining.method),
        f"{one.combining.sync_every:,}",
        f"{one.sent_bytes / 1e3:,.1f}",
        f"{one.step.seconds * 1e3:,.2f}",
        f"{one.step.packing * 1e3:,.2f}",
        f"{one.factor:,.1f}",
        one.combining.changes,
    ]


def write(folder: Path, job: Job, compared: Sequence[Compared], sentences: list[str], notes: list[str]) -> None:
    """Write FILES. Raises UserError if the folder is not writable."""
    text = "\n".join([table(compared).markdown(), *sentences, *(f"Assumed: {note}." for note in notes)])
    values = {
        "kind": "scale --compare-compression",
        "workload": dataclasses.asdict(job.model.workload),
        "communication": dataclasses.asdict(job.model.communication),
        "overlap": job.model.overlap,
        "compared": [_as_dict(one) for one in compared],
        "findings": sentences,
        "assumed": notes,
    }
    write_outputs(folder, "--output", dict(zip(FILES, (f"{text}\n", f"{to_json(values, indent=1)}\n"), strict=True)))


def _as_dict(one: Compared) -> dict[str, object]:
    method, every = one.combining
    return {
        "ranks": one.ranks,
        "compression": str(method),
        "sync_every": every,
        "changes": one.combining.changes,
        "sent_bytes": one.sent_bytes,
        "step": one.step._asdict(),
        "seconds": one.step.seconds,
        "factor": one.factor,
    }
