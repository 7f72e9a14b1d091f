"""Prints which files of tests take longest, and how many processes their tests started, when all tests have run.

A job counts as one process: its launcher, which starts the ranks.
"""

from __future__ import annotations

import sys
from collections import Counter

import pytest

SHOWN = 10
STARTS = ("subprocess.Popen", "os.fork", "os.posix_spawn")
"""Python's audit events of a process that is started; a fork by subprocess counts as the first."""
PROCESSES = "processes"
BEFORE = pytest.StashKey[int]()
"""How many processes there were before a test."""

started = 0
seconds: Counter[str] = Counter()
processes: Counter[str] = Counter()


def _count(event: str, _: object) -> None:
    global started
    started += event in STARTS


sys.addaudithook(_count)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[BEFORE] = started


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Put the number into the report, which pytest-xdist sends to the process that prints."""
    report = yield
    report.user_properties = [*report.user_properties, (PROCESSES, started - item.stash.get(BEFORE, started))]
    return report


def pytest_runtest_logreport(report):
    file = report.nodeid.partition("::")[0]
    seconds[file] += report.duration
    if report.when == "teardown":
        processes[file] += dict(report.user_properties).get(PROCESSES, 0)


def pytest_terminal_summary(terminalreporter):
    if len(seconds) < SHOWN:  # a few files were asked for
        return
    terminalreporter.section("slowest files")
    for file, duration in seconds.most_common(SHOWN):
        terminalreporter.line(f"{duration:6.1f} s  {processes[file]:4d} processes  {file}")
    terminalreporter.section("folders, whose budgets are in CONTRIBUTING.md")
    folders = Counter()
    for file, duration in seconds.items():
        folders["/".join(file.split("/")[:2])] += duration
    for folder, duration in folders.most_common():
        terminalreporter.line(f"{duration:6.0f} s  {folder}")
    total = f"{sum(seconds.values()) / 60:.1f} minutes of tests, {sum(processes.values())} processes"
    terminalreporter.line(f"all {len(seconds)} files: {total}")
