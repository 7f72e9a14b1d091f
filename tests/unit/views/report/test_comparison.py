"""Speedup and efficiency against the right base, differences from one process, and runs that must have equal bits."""

import pytest
from support.report import lines, make_run, report_of, rows, save

from hvdtrain.config.options import Config
from hvdtrain.runs.run import RecordedRun
from hvdtrain.views.report.comparison import bit_sentences
from hvdtrain.views.report.pages import markdown_page

PER_RANK = {"batch_size": 32, "batch_scope": "per-rank"}
TWO = {"strategy": "horovod", "ranks": 2}
SCALING = {
    "strong": {
        "one": ({"images_per_s": 1000.0, "batch_size": 64}, ("base", 1)),
        "two": ({"images_per_s": 1600.0, "batch_size": 64, **TWO}, ("strong", 0.8)),
        "four": ({"images_per_s": 2000.0, "batch_size": 64, **TWO, "devices": 2}, ("strong", 0.5)),
    },
    # The base has the batch of one replica: 2400 / (3 * 1000).
    "weak": {
        "one": ({"images_per_s": 1000.0, "batch_size": 32}, ("base", 1)),
        "large": ({"images_per_s": 3000.0, "batch_size": 96}, ("base", 1)),
        "three": ({"images_per_s": 2400.0, **PER_RANK, "strategy": "horovod", "ranks": 3}, ("weak", 0.8)),
    },
    # `bench --scaling weak` multiplies the global batch itself, over ranks or over devices.
    "weak with global batches": {
        "one": ({"images_per_s": 1000.0, "batch_size": 32}, ("base", 1)),
        "two": ({"images_per_s": 1800.0, "batch_size": 64, "strategy": "ring", "ranks": 2}, ("weak", 0.9)),
        "devices": ({"images_per_s": 1600.0, "batch_size": 64, "strategy": "manual", "devices": 2}, ("weak", 0.8)),
    },
    "one replica": {
        "one": ({"images_per_s": 1000.0}, ("base", 1)),
        "other": ({"images_per_s": 900.0, "strategy": "horovod"}, ("", "")),
    },
    "without strategy single": {
        "one": ({"images_per_s": 500.0, "strategy": "horovod"}, ("base", 1)),
        "two": ({"images_per_s": 900.0, **TWO}, ("strong", 0.9)),
        "ddp": ({"images_per_s": 900.0, "strategy": "ddp", "ranks": 2}, ("", "")),
        "mxnet": ({"images_per_s": 900.0, "framework": "mxnet", **TWO}, ("", "")),
    },
    **{
        f"no comparable base: {other}": {
            "one": ({"images_per_s": 500.0}, ("base", 1)), "two": ({**TWO, **other}, ("", "")),
        }
        for other in (
            {"precision": "bf16"}, {"batch_size": 96}, {"data": "mnist"}, {"host": {"processor": "Xeon"}},
            {"host": {"OMP_NUM_THREADS": "2"}},
        )
    },
}  # fmt: skip
"""By runs: what they are given, and scaling and efficiency that the report must show."""


@pytest.mark.parametrize("runs", SCALING.values(), ids=SCALING)
def test_scaling(tmp_path, runs):
    for name, (given, _) in runs.items():
        make_run(tmp_path / name, **given)
    made = zip(report_of(tmp_path).rows, rows(tmp_path), strict=True)
    found = {row.run.name: [values[name] for name in ("scaling", "efficiency")] for row, values in made}
    for name, (_, (scaling, efficiency)) in runs.items():
        assert found[name][0] == scaling, name
        assert found[name][1] == "" if efficiency == "" else float(found[name][1]) == pytest.approx(efficiency)


def test_difference_from_a_single_process(tmp_path):
    make_run(tmp_path / "a-one", moved=0.0)
    make_run(tmp_path / "b-one", moved=0.0, images_per_s=1.0)
    make_run(tmp_path / "two", moved=-0.5, **TWO)
    make_run(tmp_path / "two-again", moved=0.25, **TWO)
    make_run(tmp_path / "other", moved=0.125, framework="mxnet", **TWO)
    make_run(tmp_path / "seed", moved=0.125, framework="mxnet", strategy="horovod", ranks=3, seed=1)
    make_run(tmp_path / "short", moved=0.125, strategy="horovod", ranks=4, steps=7)
    make_run(tmp_path / "no-checkpoint", strategy="horovod", ranks=5)
    # Two ranks with half the batch and half the learning rate each train as a single process does (linear scaling).
    make_run(tmp_path / "per-rank", moved=0.75, strategy="ddp", ranks=2, lr=0.025, **PER_RANK)
    assert {key[:3]: row["max_parameter_difference"] for key, row in lines(tmp_path).items()} == {
        ("torch", "single", "1"): "0.0", ("torch", "horovod", "2"): "0.5", ("mxnet", "horovod", "2"): "0.125",
        ("mxnet", "horovod", "3"): "", ("torch", "horovod", "4"): "", ("torch", "horovod", "5"): "",
        ("torch", "ddp", "2"): "0.75",
    }  # fmt: skip
    text = markdown_page(report_of(tmp_path))
    assert " 0.12 (from torch) |" in text and " 0.5 |" in text


def test_damaged_older_and_non_finite_checkpoints_are_not_compared(tmp_path):
    make_run(tmp_path / "one", moved=0.0)
    save(make_run(tmp_path / "old", **TWO), Config(), 1.0, step=4)
    damaged = make_run(tmp_path / "damaged", moved=1.0, strategy="horovod", ranks=3)
    next(damaged.rglob("weights.safetensors")).write_bytes(b"x")
    make_run(tmp_path / "blown up", moved=float("nan"), strategy="horovod", ranks=4)
    found = lines(tmp_path)
    assert [found["torch", "horovod", ranks, "1"]["max_parameter_difference"] for ranks in "234"] == ["", "", ""]
    assert not any(row.difference for row in report_of(tmp_path).rows)


A, B = "a" * 16, "b" * 16


def sentences_on_bits(tmp_path, **given):
    """What a report says of runs with --shards. given: by name, the values of each that are not the default."""
    common = {"shards": 8, "parameters": A, "strategy": "ring"}
    runs = [make_run(tmp_path / name, **{**common, **values}) for name, values in given.items()]
    return bit_sentences(map(RecordedRun, runs))


def test_only_the_distribution_of_work_may_differ(tmp_path):
    given = {"one": {"ranks": 1, "strategy": "single"}, "two": {"ranks": 2}, "limited": {"max_steps": 8}}
    (sentence,) = sentences_on_bits(tmp_path, **given)
    assert sentence == f"Weights: the same bits in all 3 runs with --shards 8 (hash {A})."


@pytest.mark.parametrize(
    "other",
    [{"shards": 4}, {"shards": 0}, {"seed": 1}, {"lr": 0.3}, {"framework": "mxnet"}, {"steps": 9}, {"threads": 2},
     {"isa": "avx2"}, {"parameters": ""}],
    ids=str,
)  # fmt: skip
def test_runs_that_may_differ_are_not_compared(tmp_path, other):
    assert sentences_on_bits(tmp_path, one={}, other={"parameters": B, **other}) == []


def test_a_run_that_is_alone_is_named_with_what_else_differs(tmp_path):
    alone = {"ranks": 3, "parameters": B, "host": {"processor": "Z80"}, "numpy": "9"}
    (sentence,) = sentences_on_bits(tmp_path, np1={}, np2={"ranks": 2}, np3=alone)
    assert f": {A} in np1, np2; {B} in np3; they differ in numpy, processor." in sentence


def test_trainings_that_are_equal_are_counted_and_others_named(tmp_path):
    given = {f"{lr}-{ranks}": {"lr": lr, "ranks": ranks} for lr in (0.1, 0.2, 0.3) for ranks in (1, 2)}
    given["0.3-2"]["parameters"] = B
    first, second = sentences_on_bits(tmp_path, **given)
    assert "0.3-1" in first and "0.3-2" in first
    assert " 2 trainings " in second and "(4 runs)" in second
