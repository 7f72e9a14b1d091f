"""The progress bar, in terminals of any width."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

BAR_WIDTHS = (5, 40)
"""The least and the greatest width of the bar, in columns; without room for the least one there is none."""
TIME_WIDTH, PERCENT_WIDTH = len("0:00:00"), len("100%")
GAPS = 3
"""Blank columns between the four parts of the line."""


class _Bar(ProgressColumn):
    """A bar, or nothing where it has no width."""

    def __init__(self) -> None:
        super().__init__()
        self._bar = BarColumn()
        self.width = BAR_WIDTHS[0]

    def render(self, task: Task) -> RenderableType:
        self._bar.bar_width = self.width
        return self._bar.render(task) if self.width else Text("")


class ProgressBar:
    """Epoch, bar, percentage with figures, and the time that is left, on one line of standard error.

    console: where it is drawn, by default standard error.
    """

    def __init__(self, total_steps: int, done_steps: int, console: Console | None = None) -> None:
        self._bar = _Bar()
        self._progress = Progress(
            TextColumn("{task.fields[where]}"),
            self._bar,
            TextColumn("{task.percentage:3.0f}%{task.fields[text]}"),
            TimeRemainingColumn(),
            console=console or Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("", total=total_steps, completed=done_steps, where="starting", text="")
        self._progress.start()

    def update(self, step: int, where: str, figures: list[str]) -> None:
        """Draw that `step` steps are done; of the figures, the first ones that fit."""
        self._bar.width, text = layout(self._progress.console.width, where, figures)
        self._progress.update(self._task, completed=step, where=where, text=text)

    def print(self, text: str) -> None:
        """Print a line above the bar, as it is."""
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def stop(self) -> None:
        """Remove the bar."""
        self._progress.stop()


def layout(width: int, where: str, figures: list[str]) -> tuple[int, str]:
    """The width of the bar, and the figures, in a terminal of this width: the first ones that fit without the bar."""
    free = width - len(where) - PERCENT_WIDTH - TIME_WIDTH - GAPS
    text = ""
    for figure in figures:
        if len(text) + 2 + len(figure) > free:
            break
        text += f"  {figure}"
    least, greatest = BAR_WIDTHS
    bar = min(free - len(text), greatest)
    return bar if bar >= least else 0, text
