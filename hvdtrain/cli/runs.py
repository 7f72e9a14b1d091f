"""python -m hvdtrain runs [DIR]: a table of runs, also of those that train now."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.text import Text

from hvdtrain.runs.search import closed_folders, find_runs
from hvdtrain.system.command import Parser, exit_status, joined
from hvdtrain.system.text import printable
from hvdtrain.views.listing import COLUMNS, Filter, counted, metric_names, option_names, run_lines, sort_runs
from hvdtrain.views.run_view import read_runs
from hvdtrain.views.table import Output

LINES_AROUND = 4
"""Of the table: headings, the count, and the prompts before and after."""


@exit_status()
def main(argv: list[str]) -> None:
    """Print the table, or JSON; ends the process with a nonzero status if there is no such folder."""
    options = parser().parse_args(joined(argv, "--sort"))
    views = read_runs(find_runs(options.folder))
    if closed := closed_folders(options.folder):
        print(f"hvdtrain: left out, as you may not list them: {', '.join(closed)}", file=sys.stderr)
    names = metric_names(views), option_names(views)
    filters = [Filter.parse(condition, *names) for condition in options.filter]
    ordered = [view for view in sort_runs(views, options.sort) if all(one.accepts(view) for one in filters)]
    if options.json:
        print(json.dumps([view.values for view in ordered], indent=1, allow_nan=False))
        return
    output = Output()
    room = output.console.height - LINES_AROUND if output.is_terminal else len(ordered)
    shown = ordered[: max(room, 1)]
    if ordered:
        output.print(run_lines(shown, output.width))
    if output.is_terminal or not ordered:
        parts = [f"{len(ordered) - len(shown)} more in a pipe, as by | less"] * (len(ordered) > len(shown))
        parts += [f"{len(views) - len(ordered)} left out by --filter"] * (len(views) > len(ordered))
        rest = f" ({'; '.join(parts)})" if parts else ""
        output.print([Text(f"{counted(ordered)} in {printable(str(options.folder))}{rest}", "dim")])


def parser() -> Parser:
    made = Parser(
        prog="python -m hvdtrain runs",
        description="List runs with their states, also those that train now: the newest first.",
        epilog=f"Columns: {', '.join(COLUMNS)}; metrics; and options, such as lr, batch-size or arg.width.",
    )
    made.add_argument(
        "folder", nargs="?", type=Path, default=Path("runs"), metavar="DIR", help="folder of runs (default: runs)"
    )
    made.add_argument(
        "--sort", default="-started", metavar="COLUMN",
        help="least value first, or with - before its name the greatest; unknown values last; score: the best first "
             "(default: -started)",
    )  # fmt: skip
    made.add_argument(
        "--filter", action="append", default=[], metavar="CONDITION",
        help="only runs that meet it, as state=failed, strategy=horovod, 'accuracy>0.9', name~fashion; any number",
    )  # fmt: skip
    made.add_argument("--json", action="store_true", help="print a JSON list, in which null is what is not known")
    return made
