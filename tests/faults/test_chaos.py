"""A short part of the fault suite: disks that fail. `make chaos` runs all faults."""

import os
import sys

import pytest
from support.jobs import ROOT, run

PATHS = os.pathsep.join(filter(None, [str(ROOT / "tests"), os.environ.get("PYTHONPATH")]))


@pytest.mark.parametrize(
    ("fault", "seed", "row"),
    [
        ("full", "2", "KB | local | torch |"),
        ("disk", "1", "| disk error: "),
        ("stall", "10", "| the run's folder does not respond | local | mxnet |"),
        ("gone", "2", "| the run's folder is gone | local | torch |"),
    ],
)
def test_disk_fault(tmp_path, fault, seed, row):
    """The seeds draw launchers and frameworks that start quickly."""
    command = [sys.executable, "-m", "faults.chaos", "--minutes", "0.001", "--only", fault, "--seed", seed]
    status, output = run([*command, "--output", "table.md"], tmp_path, PYTHONPATH=PATHS)
    assert status == 0, output
    if "skipped: " in output:
        pytest.skip(output.partition("skipped: ")[2].splitlines()[0].rstrip(" |"))
    assert "1 faults, all handled as promised; no process left behind" in output
    assert row in (tmp_path / "table.md").read_text()
