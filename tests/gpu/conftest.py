"""Tests that need a GPU.

Without a GPU they are skipped, before PyTorch is imported. GPU_REHEARSAL=1 runs them on the CPU: that proves nothing
about GPUs, but that the tests themselves work.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.gpu_jobs import REHEARSAL, Jobs

FOLDER = Path(__file__).parent


def pytest_report_header():
    return "a rehearsal on the CPU, which proves nothing about GPUs" if REHEARSAL else None


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
