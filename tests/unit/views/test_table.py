"""Tables as text, in terminals and in Markdown."""

import os
import pty
import re
import subprocess
import sys

import pytest
from rich.cells import cell_len

from hvdtrain.views.table import Column, Section, Table, text_column

COLUMNS = [text_column("name"), Column("images/s"), Column("extra long heading", priority=2), Column("x", priority=1)]
TABLE = Table(
    COLUMNS,
    [
        Section([["one | [bold]*two*", "1", "22", "333"], ["名" * 30, "4,444", "55", "6"]], "First", best=1),
        Section([["three", "7", "8", "9"]], "Second"),
    ],
    best_column=1,
    caption="What it shows.",
)


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 120])
def test_table_fits_and_leaves_out_the_last_columns(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = TABLE.terminal().splitlines()
    assert max(map(cell_len, lines)) <= width
    assert lines[0] == "What it shows."
    text = "\n".join(lines)
    assert "* 4,444" in text and "First" in text and "\n\nSecond" in text
    assert ("333" in text, "22" in text) == (width >= 40, width >= 60)
    assert "".join(re.findall("名", text)) == "名" * 30


def test_markdown_has_a_table_for_each_section():
    assert TABLE.markdown() == (
        "What it shows.\n\n### First\n\n"
        "| name | images/s | extra long heading | x |\n| --- | ---: | ---: | ---: |\n"
        "| one \\| \\[bold\\]\\*two\\* | 1 | 22 | 333 |\n"
        f"| {'名' * 30} | **4,444** | 55 | 6 |\n\n### Second\n\n"
        "| name | images/s | extra long heading | x |\n| --- | ---: | ---: | ---: |\n"
        "| three | 7 | 8 | 9 |\n"
    )


def test_the_cells_of_a_list_are_cut():
    columns = [
        (Column("name", left=True, least=8), ["first-run-of-all", "b"]),
        (Column("state", 1, left=True, least=6), ["training", "failed: no space"]),
        (Column("empty", 2), ["", ""]),
        (Column("step", 3), ["1", "20"]),
    ]
    table = Table.of_columns(columns)
    assert [line.plain for line in table.lines(24)] == [
        "name      state     step",
        "first-r…  training     1",
        "b         failed:…    20",
    ]
    assert table.lines(None)[0].plain.split() == ["name", "state", "empty", "step"]


SHOW = f"from {__name__} import TABLE; print(TABLE.terminal())"


def shown(environment):
    """What a terminal of 70 columns gets."""
    master, terminal = pty.openpty()
    own = {"COLUMNS": "70", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TERM": "xterm", **environment}
    subprocess.run([sys.executable, "-c", SHOW], stdout=terminal, env={**os.environ, **own}, check=True)
    os.close(terminal)
    with open(master, "rb", buffering=0) as file:
        return file.read(1 << 16).decode(errors="replace")


def test_what_a_terminal_can_show():
    """The best row is bold where there are colors; a terminal without Unicode gets question marks."""
    assert re.search(r"\x1b\[1m[^\n]*\* 4,444", shown({}))
    text = shown({"PYTHONIOENCODING": "ascii", "NO_COLOR": "1"})
    assert "?" * 60 in text and "\x1b" not in text
