"""What a run says: rank 0 on the console, every rank in a log of its own."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from hvdtrain.errors import UserError

log = logging.getLogger("hvdtrain")


class RankLog(logging.FileHandler):
    """A log on a disk that may be full: what it does not take is lost, and training goes on."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


def open_log(folder: Path, rank: int, quiet: bool) -> None:
    """Log to `folder/logs/rank-<rank>.log`, and on rank 0 to the console as well.

    Raises UserError where there can be no log.
    """
    close_log()
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        file = RankLog(folder / "logs" / f"rank-{rank}.log")
    except OSError as error:
        raise UserError(
            f"{folder}: no log can be written ({error.strerror}); make room, or give another --runs"
        ) from None
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(file)
    if rank == 0 and not quiet:
        screen = logging.StreamHandler(sys.stderr)
        screen.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(screen)


def close_log() -> None:
    """Close what `open_log` opened."""
    for handler in list(log.handlers):
        log.removeHandler(handler)
        handler.close()


class Display:
    """Progress on rank 0: a bar on a terminal, a plain line now and then elsewhere, nothing on other ranks."""

    PLAIN_EVERY_S = 10.0

    def __init__(self, total_steps: int, done_steps: int, shown: bool) -> None:
        self._total = total_steps
        self._shown = shown
        self._started, self._start_step, self._last = time.monotonic(), done_steps, time.monotonic()
        self._bar: Progress | None = None
        self._task = TaskID(0)
        if shown and sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("epoch {task.fields[epoch]}"),
                BarColumn(),
                TextColumn("{task.percentage:3.0f}%  {task.fields[text]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=total_steps, completed=done_steps, epoch="-", text="starting")
            self._bar.start()

    def update(self, step: int, epoch: int, text: str) -> None:
        """Show that `step` steps are done."""
        if self._bar:
            self._bar.update(self._task, completed=step, epoch=epoch, text=text)
        elif self._shown and time.monotonic() - self._last >= self.PLAIN_EVERY_S:
            self._last = time.monotonic()
            left = (self._last - self._started) / max(step - self._start_step, 1) * (self._total - step)
            print(
                f"epoch {epoch}  step {step}/{self._total}  {text}  {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._bar:
            self._bar.console.print(text, highlight=False)
        elif self._shown:
            print(text, file=sys.stderr, flush=True)
        for handler in log.handlers:
            if isinstance(handler, logging.FileHandler):
                handler.handle(log.makeRecord(log.name, logging.INFO, "", 0, text, (), None))

    def close(self) -> None:
        if self._bar:
            self._bar.stop()
