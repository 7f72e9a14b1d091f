"""A short part of the fault suite; `make chaos` has the long one."""

import sys

import pytest
from conftest import ROOT, run


@pytest.mark.parametrize(
    ("fault", "row"),
    [
        ("full", "KB is full"),
        ("disk", "| a disk says: "),
        ("stall", "| the run's folder does not answer |"),
        ("gone", "| the run's folder is gone |"),
    ],
)
def test_a_bad_disk(tmp_path, fault, row):
    words = [sys.executable, str(ROOT / "tests" / "chaos.py"), "--minutes", "0.001", "--only", fault, "--seed", "2"]
    status, output = run([*words, "--output", "table.md"], tmp_path)
    assert status == 0, output
    if "left out: " in output:
        pytest.skip(output.partition("left out: ")[2].splitlines()[0].rstrip(" |"))
    assert "1 faults, all as promised; no process left behind" in output
    assert row in (tmp_path / "table.md").read_text()
