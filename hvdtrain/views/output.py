"""Standard output: a terminal, whose width and encoding lines must fit, or a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Literal

from rich.console import Console
from rich.text import Text

UPPER, LOWER = 0x1B, 0xE4
"""The dots in the upper and in the lower half of a Braille character, as the lowest 8 bits of its number."""
ASCII = {0x2800 + dots: " '.:"[bool(dots & UPPER) + 2 * bool(dots & LOWER)] for dots in range(256)}
ASCII |= dict(zip(map(ord, "●━─…—"), "*#-.-", strict=True))
"""What is printed where the encoding has no characters beyond ASCII."""


class Output:
    """Standard output, as lines are printed to it."""

    def __init__(self) -> None:
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
        for line in self.encodable(lines):
            line.rstrip()
            self.console.print(line, soft_wrap=True)

    def encodable(self, lines: Iterable[Text]) -> list[Text]:
        """The lines, in ASCII where the encoding has no characters beyond, or it is not known that it has."""
        shown = [line.copy() for line in lines]
        if not (self.console.encoding or "").lower().startswith("utf"):
            for line in shown:
                line.plain = line.plain.translate(ASCII)
        return shown

    def text(self, lines: Iterable[Text]) -> str:
        """What `print` would print, without the end of the last line."""
        with self.console.capture() as capture:
            self.print(lines)
        return capture.get().rstrip("\n")
