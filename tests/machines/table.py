"""The tables of machines and commands, as they are printed and stand in docs/install.md between BEGIN and END."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from machines.machine import Machine

BEGIN, END = "<!-- machines: written by make test-machines ARGS=--write -->\n", "<!-- end -->"
NOT_RUN = "not run"
Cells = Mapping[tuple[str, str], str]
"""Results by the names of a machine and a command."""


def tables(groups: Sequence[Sequence[Machine]], cells: Cells) -> str:
    """One for each group, whose machines have the same commands."""
    return "\n".join(_table(group, cells) for group in groups)


def _table(group: Sequence[Machine], cells: Cells) -> str:
    commands = group[0].commands
    titles = [command.title or f"`{command.line}`" for command in commands.values()]
    lines = [["machine", "", *titles], ["---"] * (2 + len(titles))]
    for machine in group:
        shown = (cells.get((machine.name, command), NOT_RUN) for command in commands)
        lines.append([f"`{machine.name}`", machine.about, *shown])
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)


def read(page: str, groups: Sequence[Sequence[Machine]]) -> dict[tuple[str, str], str]:
    """The results that the page has."""
    rows = re.findall(r"^\| `([\w.-]+)` \| [^|]* \| (.*) \|$", _between(page)[1], re.M)
    shown = {name: cells.split(" | ") for name, cells in rows}
    return {
        (machine.name, command): cell
        for group in groups
        for machine in group
        for command, cell in zip(machine.commands, shown.get(machine.name, []), strict=False)
    }


def written(page: str, groups: Sequence[Sequence[Machine]], cells: Cells) -> str:
    """The page with these results; others stay as they are."""
    before, _, after = _between(page)
    return before + tables(groups, {**read(page, groups), **cells}) + after


def _between(page: str) -> tuple[str, str, str]:
    begin = page.index(BEGIN) + len(BEGIN)
    end = page.index(END, begin)
    return page[:begin], page[begin:end], page[end:]
