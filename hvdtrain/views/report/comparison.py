"""From runs to rows that are compared with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from hvdtrain.views.report.difference import References
from hvdtrain.views.report.rows import Row
from hvdtrain.views.report.runs import LAYERS, FinishedRun
from hvdtrain.views.report.scaling import scaling


def make_rows(runs: list[FinishedRun]) -> list[Row]:
    """The rows, in the order of the table, compared with each other."""
    groups: dict[tuple[Any, ...], list[FinishedRun]] = {}
    for run in sorted(runs, key=lambda run: str(run.folder)):
        groups.setdefault(run.identity, []).append(run)
    rows = [Row(group) for group in groups.values()]
    usual = _usual(runs)
    for row in rows:
        row.note = ", ".join(
            f"{name.replace('_', '-')} {value}"
            for name, value in row.run.settings.items()
            if value != usual[_compared_among(row.run, name)]
        )
    rows.sort(key=_order)
    references = References(runs)
    for row in rows:
        row.scaling = scaling(row, rows)
        row.difference = references.difference(row)
    return rows


def _order(row: Row) -> tuple[Any, ...]:
    run = row.run
    return (row.framework, row.note, run.options["strategy"] != "single", row.strategy, run.replicas, run.ranks)


def _usual(runs: Iterable[FinishedRun]) -> dict[tuple[str, ...], str]:
    """The value of each setting that most runs have."""
    counts: dict[tuple[str, ...], Counter[str]] = {}
    for run in runs:
        for name, value in run.settings.items():
            counts.setdefault(_compared_among(run, name), Counter())[value] += 1
    return {name: values.most_common(1)[0][0] for name, values in counts.items()}


def _compared_among(run: FinishedRun, name: str) -> tuple[str, ...]:
    """The setting, and of which runs it is compared: layers among those of one --model, as others have other ones."""
    return (name, run.settings["model"]) if name == LAYERS else (name,)
