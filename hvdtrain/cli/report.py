"""python -m hvdtrain report RUNS...: what runs measured, as one table in Markdown, CSV and an HTML page with charts.

A pure reader of the folders that training leaves: it imports no framework and changes no run.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from hvdtrain.errors import HvdtrainError, UserError
from hvdtrain.report.pages import Report
from hvdtrain.report.runs import clean, collect


def main(argv: list[str]) -> None:
    """Write the report and print its table; ends the process with a status where that fails."""
    parser = argparse.ArgumentParser(
        prog="python -m hvdtrain report",
        description="Compare runs: a table in Markdown, CSV and one HTML page with charts.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="run folders, or folders that hold some")
    parser.add_argument("--output", type=Path, default=Path("report"), metavar="DIR", help="default: report")
    options = parser.parse_args(argv)
    try:
        runs, unfinished = collect(options.runs)
        report = Report(runs, unfinished)
        pages = {"report.md": report.markdown(), "report.csv": report.csv(), "report.html": report.html()}
        write(options.output, pages)
    except HvdtrainError as error:
        print(f"hvdtrain: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    _print(f"{report.markdown_table()}\nwritten: {', '.join(str(options.output / name) for name in pages)}")


def _print(text: str) -> None:
    """Print also where the terminal's encoding lacks a character."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


def write(folder: Path, pages: dict[str, str]) -> None:
    """Write all files or none, each first under another name. Raises UserError where the folder does not take them."""
    unfinished = {folder / name: folder / f".{name}.{os.getpid()}" for name in pages}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for (path, draft), text in zip(unfinished.items(), pages.values(), strict=True):
                if path.is_dir():
                    raise IsADirectoryError(0, f"{path.name} is a folder there")
                draft.write_text(text, encoding="utf-8", newline="")
            for path, draft in unfinished.items():
                draft.replace(path)
        finally:
            for draft in unfinished.values():
                draft.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or error
        place = clean(str(folder))
        raise UserError(f"{place}: the report cannot be written there ({reason}); give another --output") from None
