"""A short part of the fault suite: disks that fail, and a rank that hangs. `make chaos` runs all faults.

Needs processes: a launcher that restarts ranks, or a rank that does not run. `make test` trains without a framework.
"""

import os
import sys

import pytest
from support.jobs import ROOT, run
from support.stack import FASTEST, INSTALLED

from faults.chaos import FAULTS
from faults.suite import SHARDS, Suite
from faults.watched_job import NUMPY, remaining_processes

PATHS = os.pathsep.join(filter(None, [str(ROOT / "tests"), os.environ.get("PYTHONPATH")]))


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """Its cases share the weights of undisturbed jobs."""
    suite = Suite(tmp_path_factory.mktemp("faults"), seed=0)
    with suite.cleanup:
        yield suite
    for process in remaining_processes(suite.folder):
        process.kill()


MATRIX = pytest.mark.matrix
DISK, BITS = pytest.mark.guarantee("full-disk"), pytest.mark.guarantee("same-bits")
SURVIVES = pytest.mark.guarantee("survive-lost-ranks")
HANG = [pytest.mark.guarantee("restart-after-hang"), pytest.mark.guarantee("hung-rank")]


@pytest.mark.parametrize(
    ("fault", "framework", "launcher"),
    [
        pytest.param("disk", NUMPY, "local", marks=DISK),
        pytest.param("sleep", NUMPY, "local", marks=HANG),
        *(pytest.param("full", framework, "local", marks=[DISK, MATRIX]) for framework in (FASTEST, "torch")),
        pytest.param("sleep", "mxnet", "mpirun", marks=[*HANG, MATRIX]),
        *(
            pytest.param("sleep", framework, "horovodrun", marks=[*HANG, MATRIX])
            for framework in ("torch", "tensorflow")
        ),
        *(
            pytest.param("ranks", framework, "local", marks=[BITS, MATRIX])
            for framework in (FASTEST, "torch", "tensorflow")
        ),
        pytest.param("survive", FASTEST, "local", marks=[SURVIVES, MATRIX]),
        *(pytest.param(fault, FASTEST, "local", marks=MATRIX) for fault in ("stall", "skew")),
        *(pytest.param(fault, "torch", "local", marks=MATRIX) for fault in ("slow", "gone")),
        pytest.param("suspend", "mxnet", "mpirun", marks=MATRIX),
        pytest.param("suspend", "torch", "horovodrun", marks=MATRIX),
        *(pytest.param(fault, "tensorflow", "local", marks=MATRIX) for fault in ("suspend", "interrupt")),
    ],
)
def test_fault(suite, fault, framework, launcher):
    """The job ends with a message, or restarts, and ends at the weights of an undisturbed job."""
    suite.shards = 0
    row = FAULTS[fault].inject(suite, launcher, framework)
    assert row.ran
    assert row.state.endswith("same hash" if fault in ("ranks", "survive") else "same weights")


@MATRIX
@pytest.mark.parametrize(("fault", "launcher"), [("kill", "mpirun"), ("ask", "local"), ("freeze", "local")])
@pytest.mark.parametrize("framework", INSTALLED)
def test_fault_with_shards(suite, fault, launcher, framework):
    """As above, with the hash of one process, also where other ranks continue."""
    suite.shards = SHARDS
    assert FAULTS[fault].inject(suite, launcher, framework).state.endswith("same weights")


@MATRIX
def test_command(tmp_path):
    """`make chaos`, with one case of one fault."""
    command = [sys.executable, "-m", "faults.chaos", "--minutes", "0.001", "--only", "nan", "--seed", "6"]
    status, output = run([*command, "--output", "table.md"], tmp_path, PYTHONPATH=PATHS)
    assert status == 0, output
    assert "1 faults, all handled as promised; no process left behind" in output
    assert "| NaN on a rank | " in (tmp_path / "table.md").read_text()
