"""A short part of the fault suite; `make chaos` has the long one."""

import sys

import pytest
from conftest import ROOT, run


@pytest.mark.parametrize("fault", ["full", "flip"])
def test_a_fault(tmp_path, fault):
    words = [sys.executable, str(ROOT / "tests" / "chaos.py"), "--minutes", "0.001", "--only", fault, "--seed", "2"]
    status, output = run([*words, "--output", "table.md"], tmp_path)
    assert status == 0, output
    assert "1 faults, all as promised; no process left behind" in output
    assert "same weights" in (tmp_path / "table.md").read_text()
