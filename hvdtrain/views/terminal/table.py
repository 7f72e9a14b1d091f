"""A table of lines that fit a terminal: columns become narrower, then the less important ones are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

GAP = 2
"""Blank columns between two columns of the table."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    heading: str
    cells: Sequence[Text]
    importance: int
    """The column of the lowest importance is left out first."""
    right: bool = False
    """Whether its cells are at its right side, as numbers are."""
    least: int = 0
    """How far it may be narrowed; 0 if it keeps its width."""
    cut_middle: bool = False
    """Whether cells are cut in the middle rather than at their end: names of runs differ at both ends."""

    @property
    def width(self) -> int:
        """The width that it needs."""
        return max([cell_len(self.heading), *(cell.cell_len for cell in self.cells)])

    @property
    def least_width(self) -> int:
        """The width that it has at least."""
        return min(self.width, max(self.least, cell_len(self.heading))) if self.least else self.width


def table_lines(columns: Sequence[Column], width: int | None, plain: bool = False) -> list[Text]:
    """A header and a line for each row.

    width: of the terminal; None where lines may have any length. plain: without characters beyond ASCII.
    """
    shown, widths = list(columns), [column.width for column in columns]
    if width is not None:
        shown = _those_that_fit(shown, width)
        widths = _widths(shown, width)
    header = [Text(column.heading, "bold") for column in shown]
    rows = zip(*(column.cells for column in shown), strict=True)
    return [_line(cells, shown, widths, plain) for cells in (header, *rows)]


def _those_that_fit(columns: list[Column], width: int) -> list[Column]:
    """The columns that are not empty, without the least important ones."""
    shown = [column for column in columns if any(cell.plain for cell in column.cells)] or columns[:1]
    while len(shown) > 1 and _total([column.least_width for column in shown]) > width:
        shown.remove(min(shown, key=lambda column: column.importance))
    return shown


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _widths(columns: list[Column], width: int) -> list[int]:
    """The widths of the columns: what is left after the least widths goes first to those that need little of it."""
    widths = [column.least_width for column in columns]
    left = width - _total(widths)
    for index in sorted(range(len(columns)), key=lambda one: columns[one].width):
        more = max(min(columns[index].width - widths[index], left), 0)
        widths[index] += more
        left -= more
    return [max(min(one, width), 1) for one in widths]


def _line(cells: Sequence[Text], columns: Sequence[Column], widths: Sequence[int], plain: bool) -> Text:
    line = Text()
    for index, (cell, column, width) in enumerate(zip(cells, columns, widths, strict=True)):
        fitted = cut(cell, width, plain, column.cut_middle)
        blank = " " * max(width - fitted.cell_len, 0)
        line.append(" " * GAP if index else "")
        line.append(blank if column.right else "").append_text(fitted)
        line.append("" if column.right or index == len(cells) - 1 else blank)
    return line


def cut(text: Text, width: int, plain: bool = False, middle: bool = False) -> Text:
    """The text, in at most that many columns of the terminal."""
    if text.cell_len <= width:
        return text
    mark = ".." if plain else "…"
    if width <= len(mark):
        return Text(set_cell_size(text.plain, width), text.style)
    if middle:
        room = width - len(mark)
        end = _last_cells(text.plain, room - room // 2)
        return Text(set_cell_size(text.plain, room // 2) + mark + end, text.style)
    found = text.copy()
    found.truncate(width - len(mark), overflow="crop")
    return found.append(mark)


def _last_cells(text: str, width: int) -> str:
    """The end of a text that takes at most that many columns."""
    begin = len(text)
    while begin > 0 and cell_len(text[begin - 1 :]) <= width:
        begin -= 1
    return text[begin:]
