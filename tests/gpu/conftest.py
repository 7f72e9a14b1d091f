"""Tests that need a GPU, and the report of what they found.

Without a GPU they are skipped, before PyTorch is imported. GPU_REHEARSAL=1 runs them on the CPU: that proves nothing
about GPUs, but that the tests themselves work.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest
from support import gpu_report
from support.gpu_jobs import REHEARSAL, Jobs

FOLDER = Path(__file__).parent
RECORDS = pytest.StashKey[list[gpu_report.Outcome]]()


def pytest_addoption(parser):
    with contextlib.suppress(ValueError):  # added already
        parser.addoption("--gpu-report", default=gpu_report.PATH, help="file for the report of the tests on a GPU")


def pytest_configure(config):
    config.stash[RECORDS] = []


def no_gpu() -> str:
    """Why these tests cannot run; empty if they can."""
    if REHEARSAL:
        return ""
    if not (list(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()):
        return "needs a GPU, and this machine has none (/dev/nvidia0)"
    try:
        import torch
    except ImportError as error:
        return f"needs PyTorch ({error})"
    return "" if torch.cuda.is_available() else "needs a GPU, and PyTorch sees none (torch.cuda.is_available())"


def pytest_collection_modifyitems(config, items):
    own = [item for item in items if FOLDER in item.path.parents]
    why = no_gpu() if own else ""
    for item in own:
        item.add_marker(pytest.mark.gpu)
        if why:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    found = (yield).get_result()
    if found.when == "call" or (found.when == "setup" and not found.passed):
        why = found.longrepr[2] if found.skipped and isinstance(found.longrepr, tuple) else ""
        if found.failed:
            why = (str(call.excinfo.value).strip().splitlines() or [""])[0][:300] if call.excinfo else ""
        outcome = gpu_report.Outcome(item.name, found.outcome, why.removeprefix("Skipped: "), found.duration)
        item.config.stash.setdefault(RECORDS, []).append(outcome)


def pytest_sessionfinish(session):
    config = session.config
    ran = [one for one in config.stash.get(RECORDS, []) if one.outcome != "skipped"]
    if not ran or hasattr(config, "workerinput"):
        return
    path = Path(config.getoption("--gpu-report", default=gpu_report.PATH))
    command = "make test-gpu" + (" (a rehearsal on the CPU, which proves nothing about GPUs)" if REHEARSAL else "")
    path.write_text(gpu_report.report(command, time.strftime("%Y-%m-%d"), gpu_report.machine(), config.stash[RECORDS]))
    print(f"\nthe report is in {path}")


@pytest.fixture(scope="session")
def gpus() -> int:
    """How many GPUs there are."""
    if REHEARSAL:
        return 2
    import torch

    return torch.cuda.device_count()


@pytest.fixture
def jobs(tmp_path) -> Jobs:
    """Starts trainings in a folder of the test's own."""
    return Jobs(tmp_path)


@pytest.fixture(scope="session")
def on_cpu(tmp_path_factory):
    """The training that those on GPUs are compared with: the newest checkpoint, by options."""
    found = {}

    def train(*options: str):
        if options not in found:
            folder = tmp_path_factory.mktemp("cpu")
            found[options] = Jobs(folder).train(*options, device="cpu", name=f"cpu-{os.getpid()}")
        return found[options]

    return train
