"""Prints which files and folders of tests take longest, when all tests have run."""

from __future__ import annotations

from collections import Counter

SHOWN = 10
seconds: Counter[str] = Counter()


def pytest_runtest_logreport(report):
    file = report.nodeid.partition("::")[0]
    seconds[file] += report.duration


def pytest_terminal_summary(terminalreporter):
    if len(seconds) < SHOWN:  # a few files were asked for
        return
    terminalreporter.section("slowest files")
    for file, duration in seconds.most_common(SHOWN):
        terminalreporter.line(f"{duration:6.1f} s  {file}")
    terminalreporter.section("folders, whose budgets are in CONTRIBUTING.md")
    folders = Counter()
    for file, duration in seconds.items():
        folders["/".join(file.split("/")[:2])] += duration
    for folder, duration in folders.most_common():
        terminalreporter.line(f"{duration:6.0f} s  {folder}")
    terminalreporter.line(f"all {len(seconds)} files: {sum(seconds.values()) / 60:.1f} minutes of tests")
