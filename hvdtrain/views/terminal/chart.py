"""A chart of curves in the terminal, drawn with the dots of Braille characters, or in ASCII where those are missing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from plotille import Canvas
from rich.text import Text

from hvdtrain.config.score import ACCURACY
from hvdtrain.runs.metrics import Curve
from hvdtrain.runs.plots import widened
from hvdtrain.views.table import cut
from hvdtrain.views.terminal.figures import decimal, short

LOG_FROM = 20.0
"""A loss whose greatest value is this multiple of its least one is drawn on a logarithmic axis."""
EMPTY = 0x2800
"""The Braille character without dots; the lowest 8 bits of the others are their dots."""
UPPER, LOWER = 0x1B, 0xE4
"""The dots in the upper and in the lower half of a character."""
MIN_HEIGHT = 5
"""Lines of the smallest chart, with title and axis."""


class Line(NamedTuple):
    """One curve of a chart."""

    name: str
    curve: Curve
    style: str


def chart(
    title: str, lines: Sequence[Line], width: int, height: int, plain: bool = False, marks: Sequence[float] = ()
) -> list[Text]:
    """A title with the newest values, the curves over epochs, and the axis: `height` lines.

    Empty if no curve has a point. plain: without characters beyond ASCII. marks: epochs that are marked on the axis.
    """
    known = [line for line in lines if line.curve]
    if not known or height < MIN_HEIGHT or width < 20:
        return []
    values = [value for line in known for value in line.curve.values]
    epochs = [epoch for line in known for epoch in line.curve.epochs]
    low, high = min(values), max(values)
    if title == ACCURACY:
        low, high = widened(low, high)
    logarithmic = title == "loss" and low > 0 and high / low > LOG_FROM
    labels = [decimal(high), decimal(low)]
    room = max(map(len, labels)) + 1
    size = width - room, height - 2
    drawn = _draw(known, (min(epochs), max(epochs)), (low, high), size, logarithmic)
    heading = Text.assemble((title, "bold"), " (logarithmic)" if logarithmic else "")
    for line in known:
        heading.append(f"  {line.name} {decimal(line.curve.values[-1])}", line.style)
    rows = [cut(heading, width, plain)]
    for number, row in enumerate(drawn):
        label = labels[0] if number == 0 else labels[1] if number == len(drawn) - 1 else ""
        text = Text.assemble((f"{label:>{room - 1}} ", "dim"))
        for dots, style in row:
            text.append(_ascii(dots) if plain or not dots else chr(EMPTY + dots), style)
        rows.append(text)
    places = [_place(mark, min(epochs), max(epochs)) for mark in marks if min(epochs) <= mark <= max(epochs)]
    axis = _axis(short(min(epochs)), short(max(epochs)), size[0], [int(place * size[0]) for place in places], plain)
    return [*rows, Text(" " * room).append_text(axis)]


def _axis(low: str, high: str, width: int, marks: Sequence[int], plain: bool) -> Text:
    """The least and the greatest epoch, and marks where they leave room."""
    first = f"epoch {low}"
    axis = Text(f"{first}{high:>{max(width - len(first), 0)}}"[:width], "dim")
    for place in set(marks):
        if axis.plain[place : place + 1] == " ":
            mark = Text("^" if plain else "▴", "yellow")
            axis = axis[:place].append_text(mark).append_text(axis[place + 1 :])
    return axis


Dots = list[list[tuple[int, str]]]
"""Rows of characters: the dots of each, and its style."""


def _draw(
    lines: Sequence[Line],
    epochs: tuple[float, float],
    values: tuple[float, float],
    size: tuple[int, int],
    logarithmic: bool,
) -> Dots:
    width, height = size
    dotted: Dots = [[(0, "")] * width for _ in range(height)]
    limits = (math.log(values[0]), math.log(values[1])) if logarithmic else values
    for line in lines:
        canvas, curve = Canvas(width, height), line.curve.thinned(4 * width)
        scaled = [math.log(value) for value in curve.values] if logarithmic else curve.values
        points = [(_place(x, *epochs), _place(y, *limits)) for x, y in zip(curve.epochs, scaled, strict=True)]
        for (x, y), (last_x, last_y) in zip(points, points[1:] or points, strict=False):
            canvas.line(x, y, last_x, last_y)
        for row, text in zip(dotted, canvas.plot().split("\n"), strict=False):
            for column, character in enumerate(text[:width]):
                dots = ord(character) - EMPTY if ord(character) >= EMPTY else 0
                if dots:
                    row[column] = row[column][0] | dots, line.style
    return dotted


def _place(value: float, low: float, high: float) -> float:
    """Where a value is between two others, from 0 to 1, on the canvas; halved as their difference may be infinite."""
    span = high / 2 - low / 2
    return min(max((value / 2 - low / 2) / span, 0.0), 0.9999) if span > 0 else 0.5


def _ascii(dots: int) -> str:
    return " '.:"[bool(dots & UPPER) + 2 * bool(dots & LOWER)]
