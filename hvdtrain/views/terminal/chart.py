"""A chart of curves in the terminal, drawn with the dots of Braille characters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from rich.text import Text

from hvdtrain.config.score import ACCURACY
from hvdtrain.runs.metrics import Curve
from hvdtrain.runs.plots import widened
from hvdtrain.views.terminal.figures import decimal, short

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
    labels = {0: decimal(high), height - 3: decimal(low)}
    room = max(map(len, labels.values())) + 1
    columns = width - room
    heading = Text.assemble((title, "bold"), " (logarithmic)" if logarithmic else "")
    rows = [Text.assemble((f"{labels.get(number, ''):>{room - 1}} ", "dim")) for number in range(height - 2)]
    dots, styles = np.zeros((height - 2, columns), int), np.zeros((height - 2, columns), int)
    for number, line in enumerate(known):
        heading.append(f"  {line.name} {decimal(line.curve.values[-1])}", line.style)
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
    ends = f"epoch {short(first)}", short(last)
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
