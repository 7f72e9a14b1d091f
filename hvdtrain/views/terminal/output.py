"""Where lines are printed: a terminal, whose width and encoding they must fit, or a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text


class Output:
    """Standard output."""

    def __init__(self) -> None:
        self.console = Console(file=sys.stdout, markup=False, emoji=False, highlight=False)

    @property
    def is_terminal(self) -> bool:
        return self.console.is_terminal and sys.stdout.isatty()

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None for a file, whose lines may have any length."""
        return self.console.width if self.is_terminal else None

    @property
    def plain(self) -> bool:
        """Whether the encoding has no characters beyond ASCII, or it is not known that it has."""
        return not (self.console.encoding or "").lower().startswith("utf")

    def print(self, lines: Iterable[Text]) -> None:
        """Print lines as they are: they fit already."""
        for line in lines:
            line.rstrip()
            self.console.print(line, soft_wrap=True)
