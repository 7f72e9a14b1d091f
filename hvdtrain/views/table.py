"""Tables, in lines that fit a terminal, in Markdown and in CSV; and standard output."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, NamedTuple

from rich import table as rich_table
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.text import Text

FILE_WIDTH = 120
"""Width of a table where standard output is not a terminal, and of sentences in a terminal at most."""
MIN_TEXT = 19
"""Width to which a column of text is wrapped at least, in columns of the terminal."""
GAP = 2
"""Blank columns between two columns."""
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
    wraps: bool = False
    """Whether longer cells are wrapped; else their end is cut."""


def text_column(heading: str) -> Column:
    return Column(heading, left=True, least=MIN_TEXT, wraps=True)


class Section(NamedTuple):
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    best: int | None = None
    """The row whose best figure is marked."""
    badge: str = ""
    """What that row is called, on a page that has room for it."""


CellsOf = tuple[Column, Sequence[Cell]]
"""A column, and its cells."""


@dataclass(frozen=True)
class Table:
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

    def terminal(self) -> str:
        """The caption and the lines for standard output, in its width."""
        text = Output().text(self.lines(terminal_width()))
        return f"{paragraph(self.caption)}\n\n{text}" if self.caption else text

    def lines(self, width: int | None) -> list[Text]:
        """The headings and all rows. The best row of a section is bold, and its best figure has a mark.

        width: of the terminal; None where lines may have any length.
        """
        sections = [self._marked(section) for section in self.sections]
        widths = self._fitted([row for rows in sections for row in rows], width)
        heads = self._grid(widths, "bottom")
        heads.add_row(*(Text(self.columns[number].heading, "bold") for number in widths))
        parts: list[RenderableType] = [heads, *([Text("─" * _total(widths))] if self.ruled else [])]
        for section, rows in zip(self.sections, sections, strict=True):
            if section.title:
                parts += [Text()] * (section is not self.sections[0])
                parts.append(Text(section.title, "bold" if self.ruled else "bold underline"))
            grid = self._grid(widths, "top")
            for number, row in enumerate(rows):
                grid.add_row(*(row[place] for place in widths), style="bold" if number == section.best else None)
            parts.append(grid)
        return rendered(Group(*parts), max(_total(widths), MIN_TEXT) if width is None else width)

    def _grid(self, widths: Mapping[int, int], vertical: Literal["top", "bottom"]) -> rich_table.Table:
        grid = rich_table.Table.grid(padding=(0, GAP, 0, 0))
        for number, width in widths.items():
            column = self.columns[number]
            grid.add_column(
                width=width,
                justify="left" if column.left else "right",
                vertical=vertical,
                no_wrap=not self.ruled and not column.wraps,
                overflow="fold" if column.wraps else "ellipsis",
            )
        return grid

    def _marked(self, section: Section) -> list[list[Text]]:
        rows = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in section.rows]
        if section.best is not None and self.best_column is not None:
            figure = rows[section.best][self.best_column]
            rows[section.best][self.best_column] = Text(f"{BEST} ").append_text(figure)
        return rows

    def _fitted(self, rows: Sequence[Sequence[Text]], width: int | None) -> dict[int, int]:
        """The columns that are shown, by number, and the width of each.

        Columns are left out until the least widths of the others fit; then the widest ones become narrower.
        """
        limits = [self._limits(column, [row[at].cell_len for row in rows]) for at, column in enumerate(self.columns)]
        if width is None:
            return {number: need for number, (_, need) in enumerate(limits)}
        shown = [number for number in range(len(limits)) if any(row[number].plain for row in rows)] or [0]
        for number in sorted(shown, key=lambda number: -self.columns[number].priority):
            if self.columns[number].priority and _total({one: limits[one][0] for one in shown}) > width:
                shown.remove(number)
        widths = {number: min(limits[number][1], width) for number in shown}
        while _total(widths) > width:
            narrowed = [number for number in shown if widths[number] > limits[number][0]]
            narrowed = narrowed or [number for number in shown if self.columns[number].wraps and widths[number] > 1]
            if not narrowed:
                break
            widths[max(narrowed, key=widths.__getitem__)] -= 1
        return widths

    def _limits(self, column: Column, lengths: Sequence[int]) -> tuple[int, int]:
        """The least width of a column, and the width that it needs. lengths: of its cells."""
        words = column.heading.split() if self.ruled and not column.wraps else [column.heading]
        heading = max(map(cell_len, words), default=0)
        need = max([*lengths, heading])
        return min(need, max(column.least, 0 if column.wraps else heading)) if column.least else need, need


def _total(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def rendered(part: RenderableType, width: int) -> list[Text]:
    """The lines that rich makes of a part of a page in so many columns."""
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    parts = console.render_lines(part, pad=False)
    lines = [Text.assemble(*((segment.text, segment.style or "") for segment in line)) for line in parts]
    for line in lines:
        line.rstrip()
    return lines


def to_csv(records: Sequence[dict[str, Any]]) -> str:
    """A header and one line per record, which all have the same names; None is an empty cell."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(records[0]), lineterminator="\n")
    writer.writeheader()
    for record in records:
        formulas = {
            name: f"'{cell}" for name, cell in record.items() if isinstance(cell, str) and cell.startswith(FORMULA)
        }
        writer.writerow({**record, **formulas})  # which a spreadsheet would run, without an apostrophe before them
    return file.getvalue()


def spread(values: Collection[float], form: str) -> str:
    """The median, and in parentheses minimum and maximum; form: a format such as `.2f`. values: at least one."""
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def terminal_width() -> int:
    return shutil.get_terminal_size((FILE_WIDTH, 24)).columns


def paragraph(text: str) -> str:
    """Text in lines that fit the terminal; in a file, one line."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return text
    return textwrap.fill(text, min(terminal_width(), FILE_WIDTH), break_long_words=False, break_on_hyphens=False)


def escape(text: str) -> str:
    """Text without special characters of Markdown tables, HTML, emphasis and math."""
    text = re.sub(r"([\\`*~\[\]|$#]|(?<!\w)_|_(?!\w))", r"\\\1", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Output:
    """Standard output, as lines are printed to it."""

    def __init__(self) -> None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # of an encoding without the characters of charts
        colors: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
        self.console = Console(file=sys.stdout, markup=False, emoji=False, highlight=False, color_system=colors)

    @property
    def is_terminal(self) -> bool:
        return self.console.is_terminal and sys.stdout.isatty()

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None for a file, whose lines may have any length."""
        return self.console.width if self.is_terminal else None

    def print(self, lines: Iterable[Text]) -> None:
        """Print lines as they are: they fit already."""
        for line in lines:
            line.rstrip()
            self.console.print(line, soft_wrap=True)

    def text(self, lines: Iterable[Text]) -> str:
        with self.console.capture() as capture:
            self.print(lines)
        return capture.get().rstrip("\n")
