"""What a run prints: rank 0 on the console, with a progress bar on terminals; every rank in a log file."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from hvdtrain.system.files import creating
from hvdtrain.system.text import fitted, printable

log = logging.getLogger("hvdtrain")
"""The package's logger."""


class RankLog(logging.FileHandler):
    """A log file in a run's folder. It loses what a full disk does not accept, so that training continues."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank
        super().__init__(folder / "logs" / f"rank-{rank}.log", encoding="utf-8", errors="backslashreplace")

    def handleError(self, record: logging.LogRecord) -> None:
        pass


class TerminalFormatter(logging.Formatter):
    """Breaks lines between words where standard error is a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return fitted(text, shutil.get_terminal_size().columns) if sys.stderr.isatty() else text


def open_log(folder: Path, rank: int, on_console: bool) -> None:
    """Log to `folder/logs/rank-<rank>.log`, and to the console as well if `on_console`.

    Raises UserError if the file cannot be created.
    """
    close_log()
    log.setLevel(logging.INFO)
    log.propagate = False
    with creating(f"{folder}: the log cannot be written", folder):
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        file = RankLog(folder, rank)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(file)
    if on_console:
        screen = logging.StreamHandler(sys.stderr)
        screen.setFormatter(TerminalFormatter("%(message)s"))
        log.addHandler(screen)


def close_log() -> None:
    for handler in list(log.handlers):
        log.removeHandler(handler)
        handler.close()


def open_folder() -> Path | None:
    return next((handler.folder for handler in log.handlers if isinstance(handler, RankLog)), None)


def open_rank() -> int | None:
    return next((handler.rank for handler in log.handlers if isinstance(handler, RankLog)), None)


def log_to_file(level: int, text: str) -> None:
    for handler in log.handlers:
        if isinstance(handler, logging.FileHandler):
            handler.handle(log.makeRecord(log.name, level, "", 0, text, (), None))


class Display:
    """Progress on the console: a bar on a terminal, a plain line every 10 s elsewhere, nothing if not `shown`.

    total_steps, epochs: of the whole run. done_steps: steps done before this process, by a run that is resumed.
    """

    PLAIN_EVERY_S = 10.0

    def __init__(self, total_steps: int, epochs: int, done_steps: int, shown: bool) -> None:
        self._total, self._epochs = total_steps, epochs
        self._shown = shown
        self._started, self._start_step, self._last = time.monotonic(), done_steps, time.monotonic()
        self._bar: ProgressBar | None = None
        if shown and sys.stderr.isatty():
            self._bar = ProgressBar(total_steps, done_steps)

    def update(self, step: int, epoch: int, figures: list[str]) -> None:
        """Show that `step` steps are done, with figures in the order of their importance."""
        where = f"epoch {epoch}/{self._epochs}"
        if self._bar:
            self._bar.update(step, where, figures)
        elif self._shown and time.monotonic() - self._last >= self.PLAIN_EVERY_S:
            self._last = time.monotonic()
            left_s = (self._last - self._started) / max(step - self._start_step, 1) * (self._total - step)
            text = "  ".join([where, f"step {step}/{self._total}", *figures, f"{left_s:.0f} s left"])
            print(text, file=sys.stderr, flush=True)

    def show(self, text: str) -> None:
        """Print a line that stays, above the bar, and write it to this rank's log."""
        text = printable(text)
        if self._bar:
            self._bar.print(text)
        elif self._shown:
            print(text, file=sys.stderr, flush=True)
        log_to_file(logging.INFO, text)

    def close(self) -> None:
        if self._bar:
            self._bar.stop()


class ProgressBar:
    """Epoch, bar, percentage with figures, and the time that is left, on one line of standard error.

    console: where it is drawn, by default standard error.
    """

    def __init__(self, total_steps: int, done_steps: int, console: Console | None = None) -> None:
        whole = Column(no_wrap=True)
        self._progress = Progress(
            TextColumn("{task.fields[where]}", table_column=whole),
            BarColumn(None, table_column=Column(ratio=1)),
            TextColumn("{task.percentage:3.0f}%", table_column=whole),
            TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=3)),
            TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=len("0:00:00"))),
            console=console or Console(stderr=True),
            transient=True,
            expand=True,
        )
        self._task = self._progress.add_task("", total=total_steps, completed=done_steps, where="starting", text="")
        self._progress.start()

    def update(self, step: int, where: str, figures: list[str]) -> None:
        """Draw that `step` steps are done, and as much of the figures as fits."""
        self._progress.update(self._task, completed=step, where=where, text="  ".join(figures))

    def print(self, text: str) -> None:
        """Print a line above the bar, in lines of the terminal that break between words."""
        lines = fitted(text, self._progress.console.width)
        self._progress.console.print(lines, highlight=False, markup=False, soft_wrap=True)

    def stop(self) -> None:
        self._progress.stop()
