"""Pairwise covering arrays: few rows in which each pair of values of two factors occurs in one of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]


def pairs(row: Row) -> set[Pair]:
    """All pairs of values in a row."""
    return set(itertools.combinations(sorted(row.items()), 2))


def covering_array(factors: Mapping[str, Sequence[Any]], allowed: Callable[[Row], bool]) -> tuple[list[Row], list[Row]]:
    """Rows that cover all pairs that are allowed, and one row of each pair that is not; the same in every call.

    factors: the values of each factor, hashable; the first is its default. allowed: whether a row, of which some
    factors may be missing and have their default, can be used.
    """
    left, refused = [], []
    for (a, values), (b, others) in itertools.combinations(sorted(factors.items()), 2):
        for one, other in itertools.product(values, others):
            row = {a: one, b: other}
            (left if allowed(row) else refused).append(row)
    uncovered = {pair for row in left for pair in pairs(row)}
    rows = []
    for first in left:
        if pairs(first) & uncovered:
            rows.append(_complete(first, factors, allowed, uncovered))
            uncovered -= pairs(rows[-1])
    return rows, refused


def _complete(
    first: Row, factors: Mapping[str, Sequence[Any]], allowed: Callable[[Row], bool], uncovered: set[Pair]
) -> Row:
    """The row, and of each other factor the allowed value that covers most pairs, the default if none does."""
    row = dict(first)
    for name, values in factors.items():
        if name not in row:
            candidates = [value for value in values if allowed({**row, name: value})]
            row[name] = max(candidates, key=lambda value: len(pairs({**row, name: value}) & uncovered))
    return row
