"""Tables: in lines that fit a terminal, in Markdown and in CSV."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

FILE_WIDTH = 120
"""Width of a table where standard output is not a terminal."""
MAX_PARAGRAPH = 120
"""Width of sentences in a terminal."""
MIN_TEXT = 19
"""Width to which a column of text is wrapped at least, in columns of the terminal."""
GAP = 2
"""Blank columns between two columns."""
INDENT = 2
"""Of names below the title of their section."""
BEST = "*"
"""Before the best figure of a section."""
FORMULA = ("=", "+", "-", "@")
"""What a spreadsheet takes for the beginning of a formula."""

Cell = str | Text


class Column(NamedTuple):
    """A column of a table: by default of figures, which are on the right and never cut."""

    heading: str
    priority: int = 0
    """In a narrow terminal the columns of the highest number are left out first; never those of 0."""
    left: bool = False
    """Whether its cells are on the left."""
    least: int = 0
    """How far it may be narrowed; 0 if it keeps its width."""
    overflow: Literal["end", "middle", "wrap"] = "end"
    """What becomes of longer cells: they are cut, at the end or (names of runs differ at both ends) in the middle, or
    wrapped."""


def text_column(heading: str, priority: int = 0) -> Column:
    """A column of text, which is wrapped in a narrow terminal."""
    return Column(heading, priority, left=True, least=MIN_TEXT, overflow="wrap")


class Section(NamedTuple):
    """Rows that belong together."""

    rows: Sequence[Sequence[Cell]]
    title: str = ""
    best: int | None = None
    """The row whose best figure is marked."""


CellsOf = tuple[Column, Sequence[Cell]]
"""A column, and its cells."""


@dataclass(frozen=True)
class Table:
    """Columns, and rows in sections."""

    columns: Sequence[Column]
    sections: Sequence[Section]
    best_column: int | None = None
    """The column of the figures by which a row is the best."""
    caption: str = ""
    """What the table shows; it may have marks of Markdown."""
    ruled: bool = True
    """Whether a line is below the headings, which may then take several lines."""

    @classmethod
    def of_columns(cls, columns: Iterable[CellsOf]) -> Table:
        """A list, which has no rule, by columns."""
        headings, cells = zip(*columns, strict=True)
        return cls(headings, [Section(list(zip(*cells, strict=True)))], ruled=False)

    def markdown(self) -> str:
        """The caption, and the tables of all sections, each with its title as a heading."""
        return "\n".join([*([f"{self.caption}\n"] if self.caption else []), *map(self._markdown, self.sections)])

    def _markdown(self, section: Section) -> str:
        rows = [[escape(str(cell)) for cell in row] for row in section.rows]
        if section.best is not None and self.best_column is not None:
            rows[section.best][self.best_column] = f"**{rows[section.best][self.best_column]}**"
        rules = ["---" if column.left else "---:" for column in self.columns]
        lines = [[escape(column.heading) for column in self.columns], rules, *rows]
        title = f"### {escape(section.title)}\n\n" if section.title else ""
        return title + "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def terminal(self, width: int | None = None) -> str:
        """The caption and the lines for standard output, at most `width` columns wide, by default those it has."""
        colors: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
        console = Console(highlight=False, force_terminal=sys.stdout.isatty(), color_system=colors)
        plain = "utf" not in (sys.stdout.encoding or "").lower()
        with console.capture() as capture:
            for line in self.lines(terminal_width() if width is None else width, plain):
                line.rstrip()
                console.print(line, soft_wrap=True)
        text = capture.get().rstrip("\n")
        return f"{paragraph(self.caption)}\n\n{text}" if self.caption else text

    def lines(self, width: int | None, plain: bool = False) -> list[Text]:
        """The headings and all rows. The best row of a section is bold, and its best figure has a mark.

        width: of the terminal; None where lines may have any length. plain: without characters beyond ASCII.
        """
        sections = [self._marked(section) for section in self.sections]
        shown, widths = self._fitted([row for rows in sections for row in rows], width)
        columns = [self.columns[number] for number in shown]
        headings = [Text(column.heading, "bold") for column in columns]
        lines = _lines(headings, columns, widths, plain, bottom=True, wrap=self.ruled)
        total = _total(widths)
        lines += [Text(("-" if plain else "─") * total)] * self.ruled
        for section, rows in zip(self.sections, sections, strict=True):
            indent = INDENT if section.title else 0
            if section.title:
                title = Text(section.title, "bold" if self.ruled else "bold underline")
                lines += [*[Text()] * (section is not self.sections[0]), *_wrapped(title, max(total, MIN_TEXT))]
            for number, row in enumerate(rows):
                cells = [row[place] for place in shown]
                for line in _lines(cells, columns, [widths[0] - indent, *widths[1:]], plain):
                    style = "bold" if number == section.best else ""
                    lines.append(Text(" " * indent, style).append_text(line))
        return lines

    def _marked(self, section: Section) -> list[list[Text]]:
        """The cells of a section's rows, with the mark of the best."""
        rows = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in section.rows]
        if section.best is not None and self.best_column is not None:
            figure = rows[section.best][self.best_column]
            rows[section.best][self.best_column] = Text(f"{BEST} ").append_text(figure)
        return rows

    def _fitted(self, rows: Sequence[Sequence[Text]], width: int | None) -> tuple[list[int], list[int]]:
        """The columns that are shown, by number, and the width of each."""
        limits = [self._limits(number, [row[number] for row in rows]) for number in range(len(self.columns))]
        numbers = range(len(self.columns))
        if width is None:
            return list(numbers), [need for _, need in limits]
        shown = [number for number in numbers if any(row[number].plain for row in rows)] or [0]
        for number in sorted(shown, key=lambda number: -self.columns[number].priority):
            if self.columns[number].priority and _total([limits[other][0] for other in shown]) > width:
                shown.remove(number)
        wrapped = [place for place, number in enumerate(shown) if self.columns[number].overflow == "wrap"]
        return shown, _widths([limits[number] for number in shown], wrapped, width)

    def _limits(self, number: int, cells: Sequence[Text]) -> tuple[int, int]:
        """The least width of a column, and the width that it needs."""
        column = self.columns[number]
        longest = max([cell.cell_len for cell in cells], default=0)
        longest += INDENT * (number == 0 and any(section.title for section in self.sections))
        heading = cell_len(column.heading)
        if column.overflow == "wrap":
            need = max(longest, heading)
            return min(need, column.least), need
        if self.ruled:
            heading = max(map(cell_len, column.heading.split()), default=0)
        need = max(longest, heading)
        return min(need, max(column.least, heading)) if column.least else need, need


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _widths(limits: Sequence[tuple[int, int]], wrapped: Sequence[int], width: int) -> list[int]:
    """The widths of columns: what is left after the least widths goes first to those that need little of it.

    Where the least widths are too much already, columns that are `wrapped` become narrower.
    """
    widths = [least for least, _ in limits]
    for _ in range(_total(widths) - width if wrapped else 0):
        widths[max(wrapped, key=lambda place: widths[place])] -= 1
    left = width - _total(widths)
    for index in sorted(range(len(limits)), key=lambda index: limits[index][1]):
        more = max(min(limits[index][1] - widths[index], left), 0)
        widths[index] += more
        left -= more
    return [max(min(fitted, width), INDENT + 1) for fitted in widths]


def _lines(
    cells: Sequence[Text],
    columns: Sequence[Column],
    widths: Sequence[int],
    plain: bool,
    bottom: bool = False,
    wrap: bool = False,
) -> list[Text]:
    """The lines of a row. bottom: cells of few lines are in the last ones. wrap: all cells are wrapped."""
    blocks = [
        _wrapped(cell, width)
        if wrap or column.overflow == "wrap"
        else [cut(cell, width, plain, column.overflow == "middle")]
        for cell, column, width in zip(cells, columns, widths, strict=True)
    ]
    height = max(map(len, blocks))
    lines = []
    for number in range(height):
        line = Text()
        for index, (block, column, width) in enumerate(zip(blocks, columns, widths, strict=True)):
            place = number - (height - len(block)) * bottom
            part = block[place] if 0 <= place < len(block) else Text()
            blank = " " * max(width - part.cell_len, 0)
            line.append(" " * GAP if index else "")
            line.append("" if column.left else blank).append_text(part)
            line.append(blank if column.left and index < len(blocks) - 1 else "")
        lines.append(line)
    return lines


def _wrapped(text: Text, width: int) -> list[Text]:
    """The text in lines; a word that is longer than a line is broken."""
    if text.cell_len <= width:
        return [text]
    lines = list(text.wrap(Console(width=width), width, overflow="fold"))
    for line in lines:
        line.rstrip()
    return lines


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
    shortened = text.copy()
    shortened.truncate(width - len(mark), overflow="crop")
    return shortened.append(mark)


def _last_cells(text: str, width: int) -> str:
    """The end of a text that takes at most that many columns."""
    begin = len(text)
    while begin > 0 and cell_len(text[begin - 1 :]) <= width:
        begin -= 1
    return text[begin:]


def to_csv(records: Sequence[dict[str, Any]]) -> str:
    """A header and one line per record, which all have the same names; None is an empty cell."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _csv_cell(value) for name, value in record.items()} for record in records)
    return file.getvalue()


def _csv_cell(value: Any) -> Any:
    """The value; text that a spreadsheet would run as a formula has an apostrophe before it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def spread(values: Collection[float], form: str) -> str:
    """The median, and in parentheses minimum and maximum; form: a format such as `.2f`. values: at least one."""
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def terminal_width() -> int:
    """Columns of standard output."""
    return shutil.get_terminal_size((FILE_WIDTH, 24)).columns


def paragraph(text: str) -> str:
    """Text in lines that fit the terminal; in a file, one line."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return text
    return textwrap.fill(text, min(terminal_width(), MAX_PARAGRAPH), break_long_words=False, break_on_hyphens=False)


def escape(text: str) -> str:
    """Text without special characters of Markdown tables, HTML, emphasis and math."""
    text = re.sub(r"([\\`*~\[\]|$#]|(?<!\w)_|_(?!\w))", r"\\\1", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
