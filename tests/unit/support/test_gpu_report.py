"""The tests for GPUs, in a process of pytest, in a rehearsal on the CPU."""

from __future__ import annotations

import sys

import pytest
from support.jobs import ROOT, run


@pytest.mark.matrix
def test_the_tests_for_gpus_work_in_a_rehearsal_on_the_cpu(tmp_path):
    path = tmp_path / "report.md"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/gpu", "--gpu-report", str(path)]
    chosen = "single or report or second or doctor or not_finite_ends"
    status, output = run([*command, "-k", chosen], ROOT, timeout_s=900, GPU_REHEARSAL="1")
    assert status == 0, output[-6000:]
    text = path.read_text()
    assert "a rehearsal on the CPU, which proves nothing about GPUs" in text
    assert "| test | outcome | reason | seconds |" in text
