"""From runs to rows that are compared with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from hvdtrain.report.difference import References
from hvdtrain.report.rows import Row
from hvdtrain.report.runs import FinishedRun
from hvdtrain.report.scaling import scaling


def make_rows(runs: list[FinishedRun]) -> list[Row]:
    """The rows, in the order of the table, compared with each other."""
    groups: dict[tuple[Any, ...], list[FinishedRun]] = {}
    for run in sorted(runs, key=lambda run: str(run.folder)):
        groups.setdefault(run.identity, []).append(run)
    rows = [Row(group) for group in groups.values()]
    usual = {name: values.most_common(1)[0][0] for name, values in _count_settings(runs).items()}
    for row in rows:
        row.note = ", ".join(
            f"{name.replace('_', '-')} {value}" for name, value in row.run.settings.items() if value != usual.get(name)
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


def _count_settings(runs: Iterable[FinishedRun]) -> dict[str, Counter[str]]:
    """For each setting, how many runs have which value."""
    counts: dict[str, Counter[str]] = {}
    for run in runs:
        for name, value in run.settings.items():
            counts.setdefault(name, Counter())[value] += 1
    return counts
