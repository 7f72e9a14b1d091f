"""python -m hvdtrain report RUNS...: compare runs in a table (Markdown and CSV) and an HTML page with charts.

It only reads the folders that training writes: it imports no framework and changes no run.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from hvdtrain.cli.exit_status import exit_status
from hvdtrain.cli.parser import Parser
from hvdtrain.report.pages import Report
from hvdtrain.report.runs import collect
from hvdtrain.report.writing import FILES, check_pages, write_pages
from hvdtrain.system.text import printable

MOST_COLUMNS = 100
"""Width of the table in a wide terminal, or in a file."""


@exit_status()
def main(argv: list[str]) -> None:
    """Write the report and print its table; ends the process with a nonzero status if that fails."""
    parser = Parser(
        prog="python -m hvdtrain report",
        description="Compare runs: a table in Markdown and CSV, and one HTML page with charts.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="run folders, or folders that contain some")
    parser.add_argument("--output", type=Path, default=Path("report"), metavar="DIR", help="default: report")
    options = parser.parse_args(argv)
    show_report(options.runs, options.output)


def show_report(runs: list[Path], output: Path) -> None:
    """Write the report on these runs into the folder `output`, and print its table. Raises UserError."""
    finished, unfinished = collect(runs)
    check_pages(output)
    report = Report(finished, unfinished)
    pages = dict(zip(FILES, (report.markdown(), report.csv(), report.html()), strict=True))
    write_pages(output, pages)
    print(report.terminal_table(min(shutil.get_terminal_size((MOST_COLUMNS, 24)).columns, MOST_COLUMNS)))
    if unfinished:
        print(f"\nwithout {len(unfinished)} unfinished: {'; '.join(unfinished)}")
    print(f"\nwritten to {printable(str(output))}: {', '.join(pages)}")
