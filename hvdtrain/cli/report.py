"""python -m hvdtrain report RUNS...: compare runs in a table (Markdown and CSV) and an HTML page with charts."""

from __future__ import annotations

import sys
from pathlib import Path

from hvdtrain.errors import MissingPackage
from hvdtrain.runs.run import RecordedRun
from hvdtrain.runs.search import finished_runs
from hvdtrain.system.command import Parser, exit_status
from hvdtrain.system.files import write_outputs
from hvdtrain.system.text import printable
from hvdtrain.views.report.content import RunsReport
from hvdtrain.views.report.pages import check_pages, csv_page, html_page, markdown_page
from hvdtrain.views.table import paragraph


@exit_status()
def main(argv: list[str]) -> None:
    """Write the report and print its table; ends the process with a nonzero status if that fails."""
    options = parser().parse_args(argv)
    show_report(*finished_runs(options.runs), options.output)


def show_report(runs: list[RecordedRun], unfinished: list[str], output: Path, by_score: bool = False) -> None:
    """Write the report on these runs into the folder `output`; print what came out and its table. Raises UserError."""
    check_pages(output)
    report = RunsReport(runs, unfinished, by_score)
    pages, missing = {"report.md": markdown_page(report), "report.csv": csv_page(report)}, ""
    try:
        pages["report.html"] = html_page(report)
    except MissingPackage as error:
        missing = str(error)
    write_outputs(output, "--output", pages)
    print(*map(paragraph, report.findings), sep="\n")
    print(f"\n{report.table(report.main).terminal()}")
    if any(group.fastest for group in report.groups):
        print(f"\n{report.legend}")
    if unfinished:
        print(f"\nwithout {len(unfinished)} unfinished: {'; '.join(unfinished)}")
    print(f"\nwritten to {printable(str(output))}: {', '.join(pages)}")
    if missing:
        print(missing, file=sys.stderr)


def parser() -> Parser:
    made = Parser(
        prog="python -m hvdtrain report",
        description="Compare runs: a table in Markdown and CSV, and one HTML page with charts.",
    )
    made.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="run folders, or folders that contain some")
    made.add_argument("--output", type=Path, default=Path("report"), metavar="DIR", help="default: report")
    return made
