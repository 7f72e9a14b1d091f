"""Horovod against the fastest other strategy over ranks."""

import json

import pytest

from hvdtrain.config.sources import CommandLine
from hvdtrain.errors import UserError
from hvdtrain.measure.bench.strategies import (
    BenchRow,
    StrategyBenchOptions,
    command,
    plan,
    ratio_table,
    read_ratios,
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
SPEEDS = {
    "mxnet/single": (5000, 5000, 5000), "mxnet/horovod": (90, 400, 88), "mxnet/horovod/mpi": (99, 98, 110),
    "mxnet/module": (500, 500, 500), "mxnet/ring": (99, 500, 90), "mxnet/module-kvstore-dist": (100,) * 3,
    "mxnet/kvstore-device": (900, 900, 900), "torch/ddp": (900, 900, 900),
}  # fmt: skip


def test_ratios_pair_jobs_of_a_repeat_with_the_fastest_of_the_framework(tmp_path):
    jobs = plan(ROWS, StrategyBenchOptions(repeats=3))
    for job in jobs:
        if (job.row.name, job.repeat) == ("mxnet/horovod", 1):
            continue  # this job failed
        (tmp_path / job.name).mkdir()
        content = json.dumps({"images_per_s": SPEEDS[job.row.name][job.repeat]})
        (tmp_path / job.name / "result.json").write_text(content)
    over_gloo, over_mpi = found = read_ratios(jobs, tmp_path)
    fastest = "mxnet/module-kvstore-dist"
    assert over_gloo[:3] == ("mxnet/horovod", fastest, 2)
    assert over_gloo.ratios == pytest.approx([0.9, 0.88])
    assert over_mpi[:3] == ("mxnet/horovod/mpi", fastest, 2)
    assert over_mpi.ratios == pytest.approx([0.99, 0.98, 1.1])
    assert f"| mxnet/horovod/mpi | {fastest} | 2 | 0.99 | 0.98 to 1.10, 3 |\n" in ratio_table(found).markdown()
    assert max(map(len, ratio_table(found).terminal(60).splitlines())) <= 60


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
    with pytest.raises(UserError) as failed:
        StrategyBenchOptions(**given)
    assert failed.value.option == option and failed.value.remedy


@pytest.mark.parametrize(("scaling", "batch"), [("strong", 32), ("weak", 96)])
def test_weak_scaling_multiplies_the_global_batch(scaling, batch):
    options = StrategyBenchOptions(np="3", batch_size=32, scaling=scaling)
    (job,) = (job for job in plan(ROWS[4:5], options) if job.repeat == 0 and job.row.strategy == "ring")
    assert settings(job, options)["batch_size"] == batch
