"""The benchmark of allreduces, without measuring."""

import json

import pytest

from hvdtrain.bench import allreduce
from hvdtrain.bench.allreduce import AllreduceBenchOptions, Library, Measured
from hvdtrain.errors import TrainingError


def test_a_benchmark_that_fails_keeps_its_whole_repeats(tmp_path, monkeypatch):
    jobs = iter([Measured({8: 1e-5}, []), Measured({8: 2e-5}, [], [3e-7]), Measured({8: 3e-5}, [])])

    def measure(name, options):
        for job in jobs:
            return job
        raise TrainingError(f"the allreduce by {name} failed")

    monkeypatch.setattr(allreduce, "measure", measure)
    options = AllreduceBenchOptions(("ring", "gloo"), sizes=(8,), repeats=3, output=tmp_path)
    with pytest.raises(TrainingError, match="ring failed"):
        allreduce.run(options)
    written = json.loads((tmp_path / "allreduce.json").read_text())
    assert {row["library"]: row["runs"] for row in written["rows"]} == {"gloo": [1e-5], "ring": [2e-5]}
    assert {row["library"]: row["runs"] for row in written["cores"]} == {"gloo": [[]], "ring": [[3e-7]]}
    assert "median of 1 runs" in (tmp_path / "allreduce.md").read_text()


def test_a_launcher_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(allreduce.LIBRARIES, "mpi", Library("mpi", lambda _: [str(tmp_path / "mpirun")]))
    with pytest.raises(TrainingError, match=r"mpirun does not start \(No such file or directory\); install it, or"):
        allreduce.measure("mpi", AllreduceBenchOptions(sizes=(8,), output=tmp_path))
