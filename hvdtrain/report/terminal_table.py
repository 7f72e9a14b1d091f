"""The report's rows in a terminal: the columns that are compared most, in lines that fit."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

HEADINGS = ("framework, strategy", "ranks ×\ndevices", "images/s", "efficiency", "test\naccuracy", "max\ndifference")
"""Those of the report."""
LEAST_NAME = len(HEADINGS[0])
"""Width of the names at least, in columns of the terminal."""


def terminal_table(
    names: Sequence[str], figures: Sequence[Sequence[str]], width: int, headings: Sequence[str] = HEADINGS
) -> str:
    """A header and the rows, at most `width` columns wide: each row's name, wrapped if it is long, and its figures.

    headings: of the names and of each figure. In a narrow terminal the last figures are left out.
    """
    titles = [heading.split("\n") for heading in headings]
    widths = [max(map(len, column)) for column in zip(*figures, strict=True)]
    widths = [max(size, *map(len, title)) for size, title in zip(widths, titles[1:], strict=True)]
    while widths and sum(widths) + 2 * len(widths) > width - LEAST_NAME:
        widths.pop()
    room = width - sum(widths) - 2 * len(widths)
    wrapped = [textwrap.wrap(name, room, subsequent_indent="  ") for name in names]
    room = min(room, max(len(line) for lines in [*wrapped, titles[0]] for line in lines))
    height = max(map(len, titles))
    header = [_line([(title + [""] * height)[number] for title in titles], room, widths) for number in range(height)]
    rows = [
        _line([first, *values], room, widths) + "".join(f"\n{line}" for line in more)
        for (first, *more), values in zip(wrapped, figures, strict=True)
    ]
    return "\n".join([*header, "-" * (room + sum(widths) + 2 * len(widths)), *rows])


def _line(cells: Sequence[str], room: int, widths: Sequence[int]) -> str:
    figures = (f"  {cell:>{size}}" for cell, size in zip(cells[1:], widths, strict=False))
    return f"{cells[0]:{room}}{''.join(figures)}".rstrip()
