"""Follows a run until it ends: a screen that is drawn twice a second, or lines for a file."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.live import Live
from rich.text import Text

from hvdtrain.errors import UserError
from hvdtrain.runs.history import HistoryReader
from hvdtrain.runs.metrics import NAME
from hvdtrain.system.run_end import RunEnd
from hvdtrain.system.text import printable
from hvdtrain.views.run_view import RunFollower, RunView
from hvdtrain.views.table import Output
from hvdtrain.views.terminal import figures
from hvdtrain.views.terminal.screen import Shown, screen_lines

LOOK_S, PAUSE_S = 0.5, 0.05
"""A look at the heartbeats; meanwhile, a look at whether the user wants to leave."""
CURVES_S = 2.0
"""A look at curves and messages, which change less often."""
LINE_S = 10.0
"""In a file, a line this often, and one for each change of the state."""
RESTART_S = 8.0
"""A failure that the launcher answers by a restart is recorded as one after at most this time."""
DOUBT_S = 2.0
"""Whether ranks run is seen by changes of their heartbeats, as clocks differ: so long until a run is called lost."""
LINES_AFTER = 3
"""Left free below what stays on the screen after the end, for the prompt of a shell."""


def follow(folder: Path, output: Output) -> int:
    """Show the run in a folder until it ends; the exit status of its job. Ctrl-C and SIGTERM raise SystemExit.

    An exception at any place of the drawing could leave the terminal in disorder, so that only a second signal raises
    one at once.
    """
    asked: list[int] = []

    def ask(number: int, _: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        views = _views(RunFollower(folder), asked)
        return job_status(_on_screen(views, output) if output.is_terminal else _in_lines(views, output))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(asked: list[int]) -> None:
    """The time between two looks. asked: gets the signal by which the user wants to leave."""
    end = time.monotonic() + LOOK_S
    while time.monotonic() < end:
        time.sleep(PAUSE_S)
        if asked:
            sys.exit(0 if asked[0] == signal.SIGINT else 128 + asked[0])


def job_status(view: RunView) -> int:
    if view.state.name == "finished":
        return 0
    end = RunEnd.read(view.folder)
    return end.exit_status if end and 0 < end.exit_status < 256 else 1


def _views(follower: RunFollower, asked: list[int]) -> Iterator[RunView]:
    """The run again and again; the last one is that of its end."""
    failed_at: float | None = None
    view, began = follower.look(), time.monotonic()
    while view.state.name == "failed" and not RunEnd.read(follower.folder) and time.monotonic() - began < DOUBT_S:
        _wait(asked)
        view = follower.look()
    was_over = view.state.is_over  # before anybody looked
    while True:
        if not os.path.isdir(view.folder):
            raise UserError(f"{printable(str(view.folder))}: the run's folder was removed", "watch another run")
        if not view.state.is_over:
            was_over, failed_at = False, None
        elif was_over or view.state.name in ("finished", "stopped", "pruned"):
            break
        elif failed_at is None:
            failed_at = time.monotonic()
        elif time.monotonic() - failed_at > RESTART_S:
            break
        yield view
        _wait(asked)
        view = follower.look()
    yield view


def _on_screen(views: Iterator[RunView], output: Output) -> RunView:
    """Draw until the end; then the last screen stays in the terminal. Nothing stays if the user leaves."""
    first = next(views)
    metrics = HistoryReader(first.folder / NAME)
    console, shown = output.console, Shown.read(first, metrics)
    read_at, view = time.monotonic(), first

    def drawn() -> Text:
        return Text("\n").join(screen_lines(shown, console.width, console.height))

    with Live(get_renderable=drawn, console=console, screen=True, auto_refresh=False, redirect_stderr=False) as live:
        for view in views:
            if time.monotonic() - read_at >= CURVES_S or view.state.name != shown.view.state.name:
                shown, read_at = Shown.read(view, metrics), time.monotonic()
            else:
                shown = shown._replace(view=view)
            live.refresh()
    output.print(screen_lines(Shown.read(view, metrics), console.width, console.height - LINES_AFTER))
    return view


def _in_lines(views: Iterator[RunView], output: Output) -> RunView:
    printed_at = float("-inf")
    state: tuple[str, int | None] = "", None
    for view in views:
        now = view.state.name, view.state.rank
        if now != state or time.monotonic() - printed_at >= LINE_S:
            printed_at, state = time.monotonic(), now
            output.print([Text(summary(view))])
    return view


def summary(view: RunView) -> str:
    """A run in one line: its state, how far it is, and what is wrong."""
    newest = [f"{name} {text}" for name, text in figures.newest(view).items()]
    progress = [f"step {figures.steps(view)}", *newest, figures.total_speed(view), figures.left(view)]
    return "  ".join(filter(None, [view.state.name, *progress, view.state.reason]))
