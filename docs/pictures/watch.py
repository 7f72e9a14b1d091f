"""Draw docs/watch.svg: `hvdtrain watch` of a real job of 4 ranks, one of which is slowed down: `make docs-pictures`."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from hvdtrain.runs.metrics import NAME, MetricsReader
from hvdtrain.system.files import read_json
from hvdtrain.views.run_view import RunFollower
from hvdtrain.views.terminal.screen import Shown, screen_lines

COMMAND = "python -m hvdtrain launch local -n 4 -- python -m hvdtrain.torch_lenet --strategy ring --name digits"
OPTIONS = ("--epochs", "500", "--batch-size", "256", "--log-every", "2")
PICTURE = Path(__file__).parents[1] / "watch.svg"
SIZE = 100, 34
"""Columns and lines of the terminal."""
SLOW_RANK = 2
TRAINED_S, SLOWED_S = 40.0, 12.0
"""How long the job trains before the rank is slowed down, and how long after that."""


def watch(job: subprocess.Popen[bytes], folder: Path) -> Shown:
    """The screen after the rank was stopped for half of the time for a while."""
    follower, curves = RunFollower(folder), MetricsReader(folder / NAME)
    while not curves.of_kind("test"):
        if job.poll() is not None:
            raise SystemExit(f"the job has ended with status {job.returncode}")
        time.sleep(0.5)
        curves.read()
    end = time.monotonic() + TRAINED_S
    while time.monotonic() < end:
        follower.look()
        time.sleep(0.5)
    pid = read_json(folder / "heartbeats" / f"rank-{SLOW_RANK}.json")["pid"]
    end = time.monotonic() + SLOWED_S
    for number in itertools.count():
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.1)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.1)
        view = follower.look() if number % 3 == 0 else None
        if view and time.monotonic() > end and view.state.rank == SLOW_RANK:
            return Shown.read(view, curves)
        if time.monotonic() > end + 30:
            raise SystemExit("the slow rank was not noticed")
    raise AssertionError


def draw(shown: Shown) -> None:
    """Write the picture: the command, then the screen."""
    width, height = SIZE
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=width, file=nowhere)
        console.print(Text.assemble(("$ ", "bold green"), ("hvdtrain watch", "bold")))
        for line in screen_lines(shown, width, height):
            console.print(line, soft_wrap=True)
        PICTURE.write_text(console.export_svg(title="hvdtrain", unique_id="hvdtrain-watch"))


def main() -> None:
    """Run the job, and end it after the picture."""
    with tempfile.TemporaryDirectory() as name:
        with open(Path(name, "log"), "w") as log:
            job = subprocess.Popen([*COMMAND.split(), *OPTIONS], cwd=name, stdout=log, stderr=log)
        try:
            draw(watch(job, Path(name, "runs", "digits")))
        finally:
            job.terminate()
            job.wait()


if __name__ == "__main__":
    main()
