"""Tables of the commands that measure: rendered in a terminal by rich, in columns that fit it, and in Markdown."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from rich.box import Box

FILE_WIDTH = 120
"""Width of a table where standard output is not a terminal."""
WIDEST_TEXT = 120
"""Of sentences in a terminal."""
LEAST_TEXT = 19
"""Width to which a column of text is wrapped at least, in columns of the terminal."""
GAP = 2
"""Blank columns between two columns."""
INDENT = 2
"""Of names below the title of their section."""
BEST = "*"
"""Before the best figure of a section."""


class Column(NamedTuple):
    """A column of figures, or of text, which is on the left and may be wrapped."""

    heading: str
    text: bool = False
    priority: int = 0
    """In a narrow terminal the columns of the highest number are left out first; never those of 0."""


class Section(NamedTuple):
    """Rows that belong together."""

    rows: Sequence[Sequence[str]]
    title: str = ""
    best: int | None = None
    """The row whose best figure is marked."""


@dataclass(frozen=True)
class TextTable:
    """Columns, and rows in sections."""

    columns: Sequence[Column]
    sections: Sequence[Section]
    best_column: int | None = None
    """The column of the figures by which a row is the best."""
    caption: str = ""
    """What the table shows; it may have marks of Markdown."""

    def markdown(self) -> str:
        """The caption, and the tables of all sections, each with its title as a heading."""
        return "\n".join([*([f"{self.caption}\n"] if self.caption else []), *map(self._markdown, self.sections)])

    def _markdown(self, section: Section) -> str:
        rows = [list(map(escape, row)) for row in section.rows]
        if section.best is not None and self.best_column is not None:
            rows[section.best][self.best_column] = f"**{rows[section.best][self.best_column]}**"
        rules = ["---" if column.text else "---:" for column in self.columns]
        lines = [[escape(column.heading) for column in self.columns], rules, *rows]
        title = f"### {escape(section.title)}\n\n" if section.title else ""
        return title + "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def terminal(self, width: int | None = None) -> str:
        """The table for a terminal, at most `width` columns wide, by default those of standard output.

        There, the best figure of a section has a mark; in a terminal with colors, its row is bold.
        """
        from rich.console import Console  # importing it takes a tenth of a second
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        width = terminal_width() if width is None else width
        shown = self._columns_that_fit(width)
        table = Table(box=_rule(), show_edge=False, padding=(0, GAP - 1, 0, 0), header_style="bold")
        for number, least in shown.items():
            column = self.columns[number]
            heading = Text(column.heading if column.text else "\n".join(_heading_lines(column.heading, least)))
            justify: Literal["left", "right"] = "left" if column.text else "right"
            table.add_column(heading, justify=justify, no_wrap=not column.text, overflow="fold", vertical="top")
        for section in self.sections:
            if section.title:
                table.add_row(Text("\n" * (section is not self.sections[0]) + section.title), style="bold")
            for number, row in enumerate(self._marked(section)):
                name, *figures = (Text(row[place]) for place in shown)
                indented = Padding(name, (0, 0, 0, INDENT if section.title else 0))
                table.add_row(indented, *figures, style="bold" if number == section.best else "")
        file, colors = io.StringIO(), sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        console = Console(file=file, width=width, force_terminal=colors, color_system="standard" if colors else None)
        console.print(table)
        lines = "\n".join(line.rstrip() for line in file.getvalue().splitlines())
        return f"{paragraph(self.caption)}\n\n{lines}" if self.caption else lines

    def _marked(self, section: Section) -> list[list[str]]:
        """The cells of a section's rows."""
        rows = [list(row) for row in section.rows]
        if section.best is not None and self.best_column is not None:
            rows[section.best][self.best_column] = f"{BEST} {rows[section.best][self.best_column]}"
        return rows

    def _columns_that_fit(self, width: int) -> dict[int, int]:
        """The columns that are shown, by number, and the least width of each."""
        from rich.cells import cell_len

        rows = [row for section in self.sections for row in self._marked(section)]
        widths = {}
        for number, column in enumerate(self.columns):
            indent = INDENT * (number == 0 and any(section.title for section in self.sections))
            cells = max((cell_len(row[number]) for row in rows), default=0) + indent
            widths[number] = min(cells, LEAST_TEXT) if column.text else cells
            widths[number] = max(widths[number], *(cell_len(word) for word in column.heading.split()))
        for number in sorted(widths, key=lambda number: -self.columns[number].priority):
            if sum(widths.values()) + GAP * (len(widths) - 1) > width and self.columns[number].priority:
                del widths[number]
        return widths


def _heading_lines(heading: str, width: int) -> list[str]:
    return textwrap.wrap(heading, width, break_long_words=False)


def _rule() -> Box:
    """A line below the headings, and no other lines."""
    from rich.box import Box

    line = "-" if "utf" not in (sys.stdout.encoding or "").lower() else "─"
    return Box("\n".join(["    ", "    ", f" {line * 2} ", *["    "] * 5]) + "\n")


def terminal_width() -> int:
    """Columns of standard output."""
    return shutil.get_terminal_size((FILE_WIDTH, 24)).columns


def paragraph(text: str) -> str:
    """Text in lines that fit the terminal; in a file, one line."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return text
    return textwrap.fill(text, min(terminal_width(), WIDEST_TEXT), break_long_words=False, break_on_hyphens=False)


def escape(text: str) -> str:
    """Text without special characters of Markdown tables, HTML, emphasis and math."""
    text = re.sub(r"([\\`*~\[\]|$#]|(?<!\w)_|_(?!\w))", r"\\\1", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
