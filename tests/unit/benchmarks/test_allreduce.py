"""benchmarks/allreduce.py without measuring."""

import importlib
import json

import pytest
from support.environment import script
from support.jobs import ROOT

from hvdtrain.errors import TrainingError


@pytest.fixture
def allreduce(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("allreduce")


def test_a_benchmark_that_fails_keeps_its_whole_repeats(tmp_path, monkeypatch, allreduce):
    jobs = iter([{8: 1e-5}, {8: 2e-5}, {8: 3e-5}])

    def measure(name, options):
        for job in jobs:
            return job
        raise TrainingError(f"the allreduce by {name} failed")

    monkeypatch.setattr(allreduce, "measure", measure)
    options = allreduce.AllreduceBenchOptions(("ring", "gloo"), sizes=(8,), repeats=3, output=tmp_path)
    with pytest.raises(TrainingError, match="ring failed"):
        allreduce.run(options)
    written = json.loads((tmp_path / "allreduce.json").read_text())
    assert {row["library"]: row["runs"] for row in written["rows"]} == {"gloo": [1e-5], "ring": [2e-5]}
    text = (tmp_path / "allreduce.md").read_text()
    assert "median of 1 runs" in text
    assert "\n| 8 | ring | 20.0 | 20.0 to 20.0 | 0.000 | 0.000 |\n" in text
    assert "MPI" not in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_of_all_libraries_fit_the_terminal(tmp_path, monkeypatch, allreduce, width):
    monkeypatch.setenv("COLUMNS", str(width))
    jobs = [{8: 1e-5, 1 << 20: 7e-2}, {8: 1e-5, 1 << 20: 5e-3}]
    options = allreduce.AllreduceBenchOptions(sizes=(8, 1 << 20), repeats=2, output=tmp_path)
    shown = allreduce.write(dict.fromkeys(allreduce.LIBRARIES, jobs), options)
    assert max(map(len, shown.splitlines())) <= width
    assert not any(line.startswith("|") for line in shown.splitlines())
    assert "37,500.0" in shown
    assert ("5,000.0 to 70,000.0" in shown) == (width >= 80)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (None, r"cannot be started: .*; install it, or"),
        (["echo '{\"seconds\": {}}'", "sleep 60 & sleep 60"], "no end within 1 s"),
        (["echo up >&2", "trap '' TERM", "while :; do sleep 0.1; done"], "no end within 1 s: up"),
        (["echo no such host >&2", "exit 3"], "exit status 3: no such host"),
        (["kill -KILL $$"], "killed by SIGKILL"),
        (["echo fine"], "failed: "),
    ],
)
def test_a_job_that_does_not_measure_says_why(tmp_path, monkeypatch, allreduce, lines, message):
    program = tmp_path / "mpirun"
    if lines:
        script(program, *lines)
    library = allreduce.Library("mpi", lambda _: [str(program)])
    monkeypatch.setitem(allreduce.LIBRARIES, "mpi", library)
    monkeypatch.setattr(allreduce, "JOB_TIMEOUT_S", 1)
    monkeypatch.setattr(allreduce.subprocesses, "GRACE_S", 0.1)
    with pytest.raises(TrainingError, match=message):
        allreduce.measure("mpi", allreduce.AllreduceBenchOptions(sizes=(8,), output=tmp_path))
