"""Benchmarks without measuring: the jobs of strategies, and allreduces."""

import json

import pytest
from support.environment import script
from support.errors import refused

from hvdtrain.config.sources import CommandLine
from hvdtrain.errors import TrainingError
from hvdtrain.measure.bench import allreduce
from hvdtrain.measure.bench.allreduce import AllreduceBenchOptions, Library
from hvdtrain.measure.bench.strategies import (
    BenchRow,
    StrategyBenchOptions,
    command,
    plan,
    settings,
    with_shards,
)

ROWS = [
    BenchRow("mxnet", "single", "one", ""),
    BenchRow("mxnet", "horovod", "ranks", ""),
    BenchRow("mxnet", "horovod", "ranks", "", "mpi"),
    BenchRow("mxnet", "module", "ranks", ""),
    BenchRow("mxnet", "ring", "ranks", ""),
    BenchRow("mxnet", "module-kvstore-dist", "ranks", ""),
    BenchRow("mxnet", "kvstore-device", "devices", ""),
    BenchRow("torch", "ddp", "ranks", ""),
]


def test_all_jobs_train_in_shards_with_the_given_options(tmp_path):
    options = StrategyBenchOptions(
        shards=8, np="8,3", set=("model=resnet20", "lr=0.1", "nesterov=true", "momentum=0.9"), output=tmp_path
    )
    rows = with_shards([row._replace(sums_shards=row.over != "devices") for row in ROWS], options.shards)
    assert [row.name for row in rows if row.problem] == ["mxnet/kvstore-device"]
    assert not any(row.problem for row in with_shards(ROWS, 0))
    jobs = plan(rows, options)
    assert {job.replicas for job in jobs if job.row.over == "ranks"} == {3, 8}
    for job in jobs:
        line = CommandLine.read(command(job, options)[command(job, options).index("train") + 1 :], "train", None)
        config, runtime = line.options()
        assert (config.shards, config.model, config.lr, config.nesterov) == (8, "resnet20", 0.1, True)
        assert (config.strategy, config.init, runtime.name) == (job.row.strategy, "xavier", job.name)


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"shards": 2, "np": "1,3"}, "np"),
        ({"set": ("shards=3",)}, ""),
        ({"set": ("lr",)}, ""),
        ({"set": ("quiet=true",)}, ""),
        ({"set": ("lr=x",)}, "lr"),
    ],
)
def test_options_that_no_job_can_have(given, option):
    refused(lambda: StrategyBenchOptions(**given), option=option)


@pytest.mark.parametrize(("scaling", "batch"), [("strong", 32), ("weak", 96)])
def test_weak_scaling_multiplies_the_global_batch(scaling, batch):
    options = StrategyBenchOptions(np="3", batch_size=32, scaling=scaling)
    (job,) = (job for job in plan(ROWS[4:5], options) if job.repeat == 0 and job.row.strategy == "ring")
    assert settings(job, options)["batch_size"] == batch


def test_a_benchmark_that_fails_keeps_its_whole_repeats(tmp_path, monkeypatch):
    jobs = iter([{8: 1e-5}, {8: 2e-5}, {8: 3e-5}])

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
    text = (tmp_path / "allreduce.md").read_text()
    assert "median of 1 runs" in text
    assert "\n| 8 | ring | 20.0 | 20.0 to 20.0 | 0.000 | 0.000 |\n" in text
    assert "MPI" not in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_of_all_libraries_fit_the_terminal(tmp_path, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    jobs = [{8: 1e-5, 1 << 20: 7e-2}, {8: 1e-5, 1 << 20: 5e-3}]
    options = AllreduceBenchOptions(sizes=(8, 1 << 20), repeats=2, output=tmp_path)
    shown = allreduce.write(dict.fromkeys(allreduce.LIBRARIES, jobs), options)
    assert max(map(len, shown.splitlines())) <= width
    assert not any(line.startswith("|") for line in shown.splitlines())
    assert "37,500.0" in shown
    assert ("5,000.0 to 70,000.0" in shown) == (width >= 80)


def programs(path, *lines):
    """What starts the ranks of a library, as a script."""
    return Library("mpi", lambda _: [str(script(path, *lines))])


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
def test_a_job_that_does_not_measure_says_why(tmp_path, monkeypatch, lines, message):
    library = programs(tmp_path / "mpirun", *lines) if lines else Library("mpi", lambda _: [str(tmp_path / "mpirun")])
    monkeypatch.setitem(allreduce.LIBRARIES, "mpi", library)
    monkeypatch.setattr(allreduce, "JOB_TIMEOUT_S", 1)
    monkeypatch.setattr(allreduce.subprocesses, "GRACE_S", 0.1)
    with pytest.raises(TrainingError, match=message):
        allreduce.measure("mpi", AllreduceBenchOptions(sizes=(8,), output=tmp_path))
