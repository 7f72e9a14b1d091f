"""The differences of runs side by side, for `diff`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from hvdtrain.views.monitor.differences import Section as Differences
from hvdtrain.views.table import GAP, INDENT, Cell, Column, Section, Table

MIN_WIDTH = 6
"""Of the values of a run in a narrow terminal."""


def difference_lines(
    names: Sequence[str], sections: Sequence[Differences], width: int | None, plain: bool
) -> list[Text]:
    """The table. width: of the terminal, in which long values are wrapped; None for a file: a line for each row."""
    if width is None:
        values = [Column("kind", left=True), Column("value", left=True)]
        rows: list[list[Cell]] = [
            [part.name, row.name, *_texts(row.texts(), plain)] for part in sections for row in part.rows
        ]
        table = Table([*values, *(Column(name, left=True) for name in names)], [Section(rows)], ruled=False)
        return table.lines(None, plain)
    longest = INDENT + max((cell_len(row.name) for part in sections for row in part.rows), default=0)
    first = min(longest, width // (len(names) + 1))
    least = max((width - first) // len(names) - GAP, MIN_WIDTH)
    columns = [Column("", left=True, least=first, overflow="wrap")]
    columns += [Column(name, left=True, least=least, overflow="wrap") for name in names]
    rows_of = [Section([[row.name, *_texts(row.texts(), plain)] for row in part.rows], part.name) for part in sections]
    return Table(columns, rows_of, ruled=False).lines(width, plain)


def _texts(values: Sequence[str], plain: bool) -> list[Text]:
    """The values of a row; those that differ from the first run's have another color."""
    shown = ["-" if value == "—" and plain else value for value in values]
    return [Text(value, "" if value == shown[0] else "cyan") for value in shown]


def headings(names: Sequence[str], folders: Sequence[str]) -> list[str]:
    """The names of the runs; their folders where two have the same name, shortened by what all have in common."""
    distinct = list(names) if len(set(names)) == len(names) else list(folders)
    return [name if cell_len(name) else "run" for name in distinct]
