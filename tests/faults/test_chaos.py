"""A short part of the fault suite: disks that fail, and a rank that hangs. `make chaos` runs all faults."""

import os
import sys

import pytest
from support.jobs import ROOT, run
from support.stack import FASTEST, INSTALLED

from faults.chaos import FAULTS
from faults.suite import SHARDS, Suite
from faults.watched_job import remaining_processes

PATHS = os.pathsep.join(filter(None, [str(ROOT / "tests"), os.environ.get("PYTHONPATH")]))


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """Its cases share the weights of undisturbed jobs."""
    suite = Suite(tmp_path_factory.mktemp("faults"), seed=0)
    with suite.cleanup:
        yield suite
    for process in remaining_processes(suite.folder):
        process.kill()


@pytest.mark.parametrize(
    ("fault", "framework"),
    [
        pytest.param("full", FASTEST, marks=[pytest.mark.guarantee("full-disk"), pytest.mark.matrix]),
        pytest.param("disk", FASTEST, marks=pytest.mark.guarantee("full-disk")),
        pytest.param(
            "sleep", FASTEST, marks=[pytest.mark.guarantee("restart-after-hang"), pytest.mark.guarantee("hung-rank")]
        ),
        pytest.param("ranks", FASTEST, marks=[pytest.mark.guarantee("same-bits"), pytest.mark.matrix]),
        pytest.param("ranks", "torch", marks=pytest.mark.matrix),
        pytest.param("ranks", "tensorflow", marks=pytest.mark.matrix),
        pytest.param("survive", FASTEST, marks=[pytest.mark.guarantee("survive-lost-ranks"), pytest.mark.matrix]),
        pytest.param("stall", FASTEST, marks=pytest.mark.matrix),
        pytest.param("slow", "torch", marks=pytest.mark.matrix),
        pytest.param("suspend", "torch", marks=pytest.mark.matrix),
        pytest.param("skew", FASTEST, marks=pytest.mark.matrix),
        pytest.param("interrupt", "tensorflow", marks=pytest.mark.matrix),
        pytest.param("full", "torch", marks=pytest.mark.matrix),
        pytest.param("gone", "torch", marks=pytest.mark.matrix),
    ],
)
def test_fault(suite, fault, framework):
    """The job ends with a message, or restarts, and ends at the weights of an undisturbed job."""
    suite.shards = 0
    row = FAULTS[fault].inject(suite, "local", framework)
    assert row.ran
    assert row.state.endswith("same hash" if fault in ("ranks", "survive") else "same weights")


@pytest.mark.matrix
@pytest.mark.parametrize(("fault", "launcher"), [("kill", "mpirun"), ("ask", "local"), ("freeze", "local")])
@pytest.mark.parametrize("framework", INSTALLED)
def test_fault_with_shards(suite, fault, launcher, framework):
    """As above, with the hash of one process, also where other ranks continue."""
    suite.shards = SHARDS
    assert FAULTS[fault].inject(suite, launcher, framework).state.endswith("same weights")


@pytest.mark.matrix
def test_command(tmp_path):
    """`make chaos`, with one case of one fault."""
    command = [sys.executable, "-m", "faults.chaos", "--minutes", "0.001", "--only", "nan", "--seed", "6"]
    status, output = run([*command, "--output", "table.md"], tmp_path, PYTHONPATH=PATHS)
    assert status == 0, output
    assert "1 faults, all handled as promised; no process left behind" in output
    assert "| NaN on a rank | " in (tmp_path / "table.md").read_text()
