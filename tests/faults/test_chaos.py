"""A short part of the fault suite: disks that fail, and a rank that hangs. `make chaos` runs all faults.

Needs processes: a launcher that restarts ranks, or a rank that does not run. `make test` trains without a framework.
"""

import sys

import pytest
from support.jobs import succeed
from support.stack import FASTEST, INSTALLED

from faults.chaos import FAULTS
from faults.suite import SHARDS, Suite
from faults.survived_kills import PATHS
from faults.watched_job import NUMPY, remaining_processes


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """Its cases share the weights of undisturbed jobs."""
    suite = Suite(tmp_path_factory.mktemp("faults"), seed=0)
    with suite.cleanup:
        yield suite
    for process in remaining_processes(suite.folder):
        process.kill()


MATRIX = pytest.mark.matrix(minutes=0.6)
SHORT = {
    ("kill", NUMPY): ["restart-after-kill"],
    ("disk", NUMPY): ["full-disk"],
    ("sleep", NUMPY): ["restart-after-hang", "hung-rank"],
    ("file", NUMPY): ["stop-and-resume"],
    ("nan", FASTEST): ["not-finite"],
}
"""Faults and frameworks under `local`, and the guarantees that they prove."""
LONG = {
    ("full", "local"): ("mxnet", "torch"),
    ("kill", "local"): ("mxnet", "torch"),
    ("kill", "srun"): ("torch",),
    ("sleep", "mpirun"): ("mxnet",),
    ("sleep", "horovodrun"): ("torch", "tensorflow"),
    ("freeze", "mpirun"): ("tensorflow",),
    ("ranks", "local"): ("mxnet", "torch", "tensorflow"),
    ("survive", "local"): (FASTEST,),
    ("stall", "local"): (FASTEST,),
    ("skew", "local"): (FASTEST,),
    ("slow", "local"): ("torch",),
    ("gone", "local"): ("torch",),
    ("suspend", "local"): ("tensorflow",),
    ("suspend", "mpirun"): ("mxnet",),
    ("suspend", "horovodrun"): ("torch",),
    ("interrupt", "local"): (NUMPY, "tensorflow"),
    ("file", "horovodrun"): ("mxnet", "tensorflow"),
    ("nan", "local"): ("torch", "tensorflow"),
}
"""Faults and launchers of the matrix, and frameworks."""
PROVES = {"full": "full-disk", "ranks": "same-bits", "survive": "survive-lost-ranks"}


def fault_cases():
    for (fault, framework), names in SHORT.items():
        yield pytest.param(fault, framework, "local", marks=[pytest.mark.guarantee(name) for name in names])
    for (fault, launcher), frameworks in LONG.items():
        marks = [MATRIX, *(pytest.mark.guarantee(PROVES[name]) for name in {fault} & PROVES.keys())]
        yield from (pytest.param(fault, framework, launcher, marks=marks) for framework in frameworks)


@pytest.mark.parametrize(("fault", "framework", "launcher"), [*fault_cases()])
def test_fault(suite, fault, framework, launcher):
    """The job ends with a message, or restarts, and ends at the weights of an undisturbed job."""
    suite.shards = 0
    row = FAULTS[fault].inject(suite, launcher, framework)
    assert row.ran
    assert row.state.endswith({"ranks": "same hash", "survive": "same hash", "nan": "named"}.get(fault, "same weights"))


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
    output = succeed([*command, "--output", "table.md"], tmp_path, **PATHS)
    assert "1 faults, all handled as promised; no process left behind" in output
    assert "| NaN on a rank | " in (tmp_path / "table.md").read_text()
