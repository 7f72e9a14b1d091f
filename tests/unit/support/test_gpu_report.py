"""The tests for GPUs, in a process of pytest on a machine without a GPU, and the report of recorded outcomes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.gpu_report import Outcome, report
from support.jobs import ROOT, run

MACHINE = {"GPU": "NVIDIA H100", "driver": "580.159", "PyTorch": "2.15.0+cu130"}
OUTCOMES = [
    Outcome("test_trains[graph]", "passed", "", 4.26),
    Outcome("test_nccl", "skipped", "needs 2 GPUs, and there is 1", 0.0),
    Outcome("test_speed", "failed", "assert 1 | 2\nmore", 9.0),
]


def test_the_report_has_machine_measurements_and_each_outcome():
    text = report("make test-gpu", "2026-11-23", MACHINE, OUTCOMES, {"images/s": "1,000 (goal 0.9: met)"})
    assert text.startswith(
        "## Tried on NVIDIA H100, 2026-11-23\n\nBy `make test-gpu`: \n1 passed, 1 failed, 1 skipped.\n"
    )
    rows = [
        *("| driver | 580.159 |", "| PyTorch | 2.15.0+cu130 |", "| images/s | 1,000 (goal 0.9: met) |"),
        *("| test_trains[graph] | passed |  | 4.3 |", "| test_nccl | skipped | needs 2 GPUs, and there is 1 | 0.0 |"),
        "| test_speed | **failed** | assert 1   2 more | 9.0 |",
    ]
    assert [line for line in text.splitlines() if line in rows] == rows


@pytest.mark.skipif(bool(list(Path("/dev").glob("nvidia[0-9]*"))), reason="there is a GPU")
def test_without_a_gpu_all_are_skipped_with_the_reason_and_nothing_is_written(tmp_path):
    path = str(tmp_path / "report.md")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/gpu", "--gpu-report", path]
    status, output = run(command, ROOT)
    assert status == 0, output
    assert "needs a GPU, and this machine has none (/dev/nvidia0)" in output
    assert " passed" not in output
    assert not os.path.exists(path)


@pytest.mark.matrix
def test_the_tests_for_gpus_work_in_a_rehearsal_on_the_cpu(tmp_path):
    path = tmp_path / "report.md"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/gpu", "--gpu-report", str(path)]
    chosen = "single or report or speed or second or doctor or not_finite_ends"
    status, output = run([*command, "-k", chosen], ROOT, timeout_s=900, GPU_REHEARSAL="1")
    assert status == 0, output[-6000:]
    text = path.read_text()
    assert "a rehearsal on the CPU, which proves nothing about GPUs" in text
    assert "hvdtrain / eager PyTorch" in text
