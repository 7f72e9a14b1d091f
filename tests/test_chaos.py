"""A short part of the fault suite; `make chaos` has the long one."""

import sys

import pytest
from conftest import ROOT, run


def test_a_full_disk(tmp_path):
    words = [sys.executable, str(ROOT / "tests" / "chaos.py"), "--minutes", "0.001", "--only", "full", "--seed", "2"]
    status, output = run([*words, "--output", "table.md"], tmp_path)
    assert status == 0, output
    if "left out: " in output:
        pytest.skip(output.partition("left out: ")[2].splitlines()[0].rstrip(" |"))
    assert "1 faults, all as promised; no process left behind" in output
    assert "KB is full" in (tmp_path / "table.md").read_text()
