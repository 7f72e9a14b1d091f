"""python -m hvdtrain report RUNS...: compare runs in a table (Markdown and CSV) and an HTML page with charts.

It only reads the folders that training writes: it imports no framework and changes no run.
"""

from __future__ import annotations

from pathlib import Path

from hvdtrain.cli.exit_status import exit_status
from hvdtrain.cli.parser import Parser
from hvdtrain.report.pages import Report
from hvdtrain.report.runs import collect
from hvdtrain.report.writing import write_pages


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
    report = Report(*collect(runs))
    pages = {"report.md": report.markdown(), "report.csv": report.csv(), "report.html": report.html()}
    write_pages(output, pages)
    print(f"{report.markdown_table()}\nwritten: {', '.join(str(output / name) for name in pages)}")
