"""Plugin of pytest that writes what a rank does, line by line, so that a rank that aborts or hangs leaves its record.

HOROVOD_SUITE_RECORDS is the folder of the records; `done.json` there lists the tests to leave out.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
from pathlib import Path

import pytest


class Recorder:
    """Writes one JSON object a line: `items`, then `start` and `outcome` of each test, then `end`."""

    def __init__(self, folder: Path, rank: str) -> None:
        self.done = folder / "done.json"
        self.file = (folder / f"rank-{rank}.jsonl").open("a", buffering=1)
        self.outcome, self.reason = "passed", ""
        # The log of a rank that hangs then tells where.
        faulthandler.register(signal.SIGUSR1, all_threads=True)

    def write(self, **what: object) -> None:
        self.file.write(json.dumps(what) + "\n")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        done = set(json.loads(self.done.read_text()))
        items[:] = [item for item in items if short(item.nodeid) not in done]
        self.write(items=[short(item.nodeid) for item in items], pid=os.getpid())

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed and report.nodeid:
            self.write(start="(import)")
            self.write(test="(import)", outcome=report.outcome, reason=last_line(str(report.longrepr)))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.outcome, self.reason = "passed", ""
        self.write(start=short(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.outcome, self.reason = "failed", last_line(report.longreprtext)
        elif report.skipped and self.outcome == "passed":
            self.outcome, self.reason = "skipped", str(report.longrepr and report.longrepr[2])

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.write(test=short(nodeid), outcome=self.outcome, reason=self.reason)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.write(end=int(session.exitstatus))
        # A launcher ends all ranks as soon as one has a non-zero status, which is left to ranks that abort.
        session.exitstatus = 0


def short(nodeid: str) -> str:
    """The name of a test without its file."""
    return nodeid.partition("::")[2] or nodeid


def last_line(text: str) -> str:
    """The last line that tells the error; pytest's last line is its place."""
    lines = [line.removeprefix("E").strip() for line in text.splitlines() if line.startswith("E ")]
    return (lines or text.strip().splitlines() or [""])[0][:300]


def pytest_configure(config: pytest.Config) -> None:
    rank = os.environ.get("HOROVOD_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or "0"
    config.pluginmanager.register(Recorder(Path(os.environ["HOROVOD_SUITE_RECORDS"]), rank), "horovod-suite")
