"""python -m hvdtrain diff A B...: what differs between runs."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from hvdtrain.errors import UserError
from hvdtrain.system.command import Parser, exit_status
from hvdtrain.system.text import printable
from hvdtrain.views.details import difference_lines, differences
from hvdtrain.views.run_view import chosen_run, read_runs
from hvdtrain.views.table import Output


@exit_status()
def main(argv: list[str]) -> None:
    """Print the differences; ends the process with a nonzero status if there is no such run."""
    options = parser().parse_args(argv)
    if len(options.runs) < 2:
        raise UserError(
            f"{printable(str(options.runs[0]))}: one run, and nothing to compare it with", "give another run"
        )
    views = read_runs([chosen_run(path) for path in options.runs])
    names = [view.name for view in views]
    if len(set(names)) < len(names):
        names = [printable(str(view.folder)) for view in views]
    found, output = differences(views), Output()
    same = [Text(f"{', '.join(names)}: nothing differs")]
    output.print(difference_lines(names, found, output.width) if found else same)


def parser() -> Parser:
    made = Parser(
        prog="python -m hvdtrain diff",
        description="Compare runs: options, network, versions, host and results that differ, side by side. "
        "Percentages are differences from the first run.",
    )
    made.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="two or more runs' folders")
    return made
