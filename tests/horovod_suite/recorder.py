"""Plugin of pytest that writes what a rank does, line by line, so that a rank that aborts or hangs leaves its record.

HOROVOD_SUITE_RECORDS is the folder of the records; `done.json` there lists the tests to leave out. After
HOROVOD_SUITE_QUIET_S without another test, the stacks of a rank go to its log.
"""

from __future__ import annotations

import faulthandler
import json
import os
from pathlib import Path

import pytest


class Recorder:
    """Writes one JSON array a line: a test and its outcome so far, of all tests first."""

    def __init__(self, folder: Path, rank: str) -> None:
        self.done = folder / "done.json"
        self.file = (folder / f"rank-{rank}.jsonl").open("a", buffering=1)
        self.outcome = "passed"

    def write(self, test: str, outcome: str) -> None:
        self.file.write(json.dumps([test, outcome]) + "\n")
        faulthandler.dump_traceback_later(float(os.environ["HOROVOD_SUITE_QUIET_S"]))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        done = set(json.loads(self.done.read_text()))
        items[:] = [item for item in items if short(item.nodeid) not in done]
        for item in items:
            self.write(short(item.nodeid), "not run")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed and report.nodeid:
            self.write("(import)", report.outcome)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.outcome = "passed"
        self.write(short(nodeid), "started")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.outcome = "failed"
        elif report.skipped and self.outcome == "passed":
            self.outcome = "skipped"

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.write(short(nodeid), self.outcome)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # A launcher ends all ranks as soon as one has a non-zero status, which is left to ranks that abort.
        session.exitstatus = 0


def short(nodeid: str) -> str:
    """The name of a test without its file."""
    return nodeid.partition("::")[2] or nodeid


def pytest_configure(config: pytest.Config) -> None:
    rank = os.environ.get("HOROVOD_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or "0"
    config.pluginmanager.register(Recorder(Path(os.environ["HOROVOD_SUITE_RECORDS"]), rank), "horovod-suite")
