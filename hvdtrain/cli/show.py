"""python -m hvdtrain show [RUN]: all of one run on a page, also while it trains."""

from __future__ import annotations

from pathlib import Path

from hvdtrain.system.command import Parser, exit_status
from hvdtrain.views.run_view import RUNS, chosen_run, read_runs
from hvdtrain.views.table import Output
from hvdtrain.views.terminal.page import page_lines
from hvdtrain.views.terminal.screen import Shown


@exit_status()
def main(argv: list[str]) -> None:
    """Print the page; ends the process with a nonzero status if there is no such run."""
    options = parser().parse_args(argv)
    (view,) = read_runs([chosen_run(options.run)])
    output = Output()
    output.print(page_lines(Shown.read(view), output.width, options.all))


def parser() -> Parser:
    made = Parser(
        prog="python -m hvdtrain show",
        description="Show a run: state, options, results, ranks, attempts, checkpoints, curves, messages, findings.",
    )
    made.add_argument(
        "run", nargs="?", type=Path, default=RUNS, metavar="RUN",
        help="a run's folder, or a folder of runs, of which the newest is shown (default: runs)",
    )  # fmt: skip
    made.add_argument("--all", action="store_true", help="all options, not only those that are not defaults")
    return made
