"""A short part of the fault suite; `make chaos` has the long one."""

import sys

import pytest
from support.jobs import run


@pytest.mark.parametrize(
    ("fault", "seed", "row"),
    [
        ("full", "2", "KB is full | local | torch |"),
        ("disk", "1", "| a disk says: "),
        ("stall", "10", "| the run's folder does not answer | local | mxnet |"),
        ("gone", "2", "| the run's folder is gone | local | torch |"),
    ],
)
def test_a_bad_disk(tmp_path, fault, seed, row):
    """The seeds draw launchers and frameworks that start soon."""
    words = [sys.executable, "-m", "faults.chaos", "--minutes", "0.001", "--only", fault, "--seed", seed]
    status, output = run([*words, "--output", "table.md"], tmp_path)
    assert status == 0, output
    if "left out: " in output:
        pytest.skip(output.partition("left out: ")[2].splitlines()[0].rstrip(" |"))
    assert "1 faults, all as promised; no process left behind" in output
    assert row in (tmp_path / "table.md").read_text()
