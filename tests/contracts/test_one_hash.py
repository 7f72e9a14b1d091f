"""The table of docs/same-bits.md: each row has one hash, whatever the ranks and what connects them."""

import json
import runpy
import sys

import pytest
from support.jobs import ROOT, succeed
from support.stack import FRAMEWORKS

PROGRAM = ROOT / "benchmarks" / "same_bits.py"
TABLE = runpy.run_path(str(PROGRAM))
Row, Run, Outcome = (TABLE[name] for name in ("Row", "Run", "Outcome"))
MINUTES = {"torch": 1.5, "mxnet": 1.5, "tensorflow": 4}
"""In the matrix."""


@pytest.mark.guarantee("same-bits")
@pytest.mark.parametrize("ranks", TABLE["RANKS"][1:])
@pytest.mark.parametrize(
    "framework", [pytest.param(name, marks=pytest.mark.matrix(minutes=MINUTES[name])) for name in FRAMEWORKS]
)
def test_each_row_has_one_hash(tmp_path, framework, ranks):
    """That of one process. Divided by ranks, as all rows share the processes of a number of ranks.

    More than three ranks train with one optimizer: they differ from fewer in how gradients are summed. TensorFlow takes
    10 s in each rank to build its graphs, and then trains over two transports, which combine arrays of any framework.
    """
    command = [sys.executable, str(PROGRAM), "--frameworks", framework, "--ranks", "1", str(ranks)]
    command += ["--optimizers", "adam"] if ranks > 3 else []
    command += ["--transports", "ring", "horovod-mpi"] if ranks > 3 and framework == "tensorflow" else []
    succeed([*command, "--output", "table.md"], tmp_path, timeout_s=3600)
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert len(rows) == (3 if ranks > 3 else 7)
    for row in rows:
        assert row["problems"] == []
        assert len({outcome["weights"] for outcome in row["runs"].values()}) == 1
        assert len({outcome["metrics"] for outcome in row["runs"].values()}) == 1


ROW = Row("torch", "lenet", "sgd")
SAME = {Run(ROW, "single", 1): Outcome("a", "m"), Run(ROW, "ring", 2): Outcome("a", "m")}


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (Outcome("a", "m"), ""),
        (Outcome("b", "m"), "other weights: mpi x 3 (b)"),
        (Outcome("a", "n"), "other metrics: mpi x 3 (n)"),
        (None, "failed: mpi x 3"),
    ],
)
def test_a_row_has_one_hash(outcome, problem):
    of_row = {**SAME, Run(ROW, "mpi", 3): outcome}
    assert TABLE["problems"](of_row) == ([problem] if problem else [])
    assert problem in TABLE["table"]({ROW: of_row}, {}, 8)


def test_runs_that_share_processes():
    options = TABLE["argparse"].Namespace(
        frameworks=["torch", "mxnet"],
        networks=["lstm", "default"],
        optimizers=["sgd", "adam"],
        ranks=[1, 5],
        transports=list(TABLE["TRANSPORTS"]),
    )
    runs = list(TABLE["chosen"](options))
    assert [run.title for run in runs if run.row == Row("mxnet", "lstm", "adam")] == [
        *("single", "horovod-gloo x 5", "ring x 5", "horovod-mpi x 5", "mpi x 5")
    ]
    assert [run.title for run in runs if run.row.network == "default"] == ["single"] * 2
    assert {run.job for run in runs if run.ranks == 5 and run.row.framework == "torch"} == {
        *(("torch", 5, "local"), ("torch", 5, "mpirun"))
    }
    assert len({run.folder for run in runs}) == len(runs)


def test_the_program_starts_without_the_paths_of_tests(tmp_path):
    """As docs/same-bits.md says. It needs a process, as this one finds tests/."""
    assert "--transports" in succeed(["python", str(PROGRAM), "--help"], tmp_path)
