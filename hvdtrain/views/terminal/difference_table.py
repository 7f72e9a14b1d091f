"""The differences of runs side by side, for `diff`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from hvdtrain.views.monitor.differences import Section
from hvdtrain.views.terminal.table import Column, table_lines


def wrapped_table(names: Sequence[str], sections: Sequence[Section], plain: bool) -> Table:
    """For a terminal: long values are wrapped within their columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("", overflow="fold")
    for name in names:
        table.add_column(Text(name), overflow="fold")
    for number, section in enumerate(sections):
        if number:
            table.add_row()
        table.add_row(Text(section.name, "bold underline"))
        for row in section.rows:
            texts = [_dashed(text, plain) for text in row.texts()]
            table.add_row(Text(row.name), *(_styled(text, texts[0]) for text in texts))
    return table


def file_lines(names: Sequence[str], sections: Sequence[Section], plain: bool) -> list[Text]:
    """For a file: a line for each row, which is not cut."""
    rows = [(section.name, row.name, [_dashed(text, plain) for text in row.texts()]) for section in sections
            for row in section.rows]  # fmt: skip
    columns = [Column("kind", [Text(row[0]) for row in rows], 0), Column("value", [Text(row[1]) for row in rows], 0)]
    columns += [Column(name, [Text(row[2][run]) for row in rows], 0) for run, name in enumerate(names)]
    return table_lines(columns, None)


def _dashed(text: str, plain: bool) -> str:
    return "-" if text == "—" and plain else text


def _styled(text: str, first: str) -> Text:
    """A value; where it differs from that of the first run, in another color."""
    return Text(text, "" if text == first else "cyan")


def headings(names: Sequence[str], folders: Sequence[str]) -> list[str]:
    """The names of the runs; their folders where two have the same name, shortened by what all have in common."""
    found = list(names) if len(set(names)) == len(names) else list(folders)
    return [name if cell_len(name) else "run" for name in found]
