"""The jobs of a benchmark of strategies, without measuring."""

import pytest
from support.errors import refused

from hvdtrain.config.sources import CommandLine
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
