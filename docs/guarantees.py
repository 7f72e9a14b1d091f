"""Write the tests of each guarantee into the table of guarantees.md: those that have the mark `guarantee`.

    python docs/guarantees.py            write the page (make docs-guarantees)
    python docs/guarantees.py --check    only say whether the page is up to date

A row without a test in `make test`, or a mark without a row, is an error, with exit status 1.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "guarantees.md"
ROW = re.compile(r"^\| `([a-z0-9-]+)` \| (.*) \| .*\|$", re.M)
"""A row of the table: its name, and what is guaranteed. The tests are its last cell."""


class Collected:
    """A plugin of pytest that keeps the tests which it collects."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


def collect() -> list[pytest.Item]:
    """All tests of the files that have such marks, in the order of the files."""
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.guarantee(" in path.read_text()]
    collected, output = Collected(), io.StringIO()
    with contextlib.redirect_stdout(output):
        options = ["--collect-only", "--assert=plain", "-q", f"--rootdir={ROOT}"]
        status = pytest.main([*options, *map(str, files)], plugins=[collected])
    if status:
        sys.exit(output.getvalue())
    return collected.items


def tests_of_guarantees(items: list[pytest.Item]) -> dict[str, dict[str, bool]]:
    """For each mark, the links to its tests, each with whether `make test` runs a case of it."""
    tests: dict[str, dict[str, bool]] = {}
    for item in items:
        name = getattr(item, "originalname", item.name)
        link = f"[{name}](../{item.path.relative_to(ROOT)})"
        for mark in item.iter_markers("guarantee"):
            of_mark = tests.setdefault(mark.args[0], {})
            of_mark[link] = of_mark.get(link, False) or not item.get_closest_marker("matrix")
    return tests


def errors(rows: list[str], tests: dict[str, dict[str, bool]]) -> list[str]:
    """Rows that no test of `make test` proves, and marks that name no row."""
    unproven = [f"{row}: no test of `make test` has this mark" for row in rows if not any(tests.get(row, {}).values())]
    return unproven + [f"{mark}: {PAGE.name} has no row of this name" for mark in tests if mark not in rows]


def with_tests(text: str, tests: dict[str, dict[str, bool]]) -> str:
    """The page, with the tests as the last cell of each row."""

    def row(match: re.Match[str]) -> str:
        cells = [link + ("" if short else " (`make test-all`)") for link, short in tests[match[1]].items()]
        return f"| `{match[1]}` | {match[2]} | {', '.join(cells)} |"

    return ROW.sub(row, text)


def main(arguments: list[str]) -> None:
    text = PAGE.read_text()
    rows = [match[1] for match in ROW.finditer(text)]
    tests = tests_of_guarantees(collect())
    if lines := errors(rows, tests):
        sys.exit("\n".join(lines))
    generated = with_tests(text, tests)
    if "--check" not in arguments:
        PAGE.write_text(generated)
    elif generated != text:
        sys.exit(f"{PAGE.name} does not name the tests that have its marks; run: make docs-guarantees")


if __name__ == "__main__":
    main(sys.argv[1:])
