"""Speedup, efficiency and serial fraction, against the right base; the largest difference from a single process."""

import pytest
from support.report import lines, make_run, number, save, table, write

from hvdtrain.config.options import Config


def test_strong_scaling(tmp_path):
    make_run(tmp_path / "one", images_per_s=1000.0, batch_size=64)
    make_run(tmp_path / "two", images_per_s=1600.0, batch_size=64, strategy="horovod", ranks=2)
    make_run(tmp_path / "four", images_per_s=2000.0, batch_size=64, strategy="horovod", ranks=2, devices=2)
    rows = lines(write(tmp_path, tmp_path))
    two, four = rows["torch", "horovod", "2", "1"], rows["torch", "horovod", "2", "2"]
    assert (two["scaling"], two["scaling_base"]) == ("strong", "torch single, 1 × 1")
    # S = 1.6: e = (1/1.6 - 1/2) / (1 - 1/2) = 0.25; S = 2: e = (1/2 - 1/4) / (1 - 1/4) = 1/3
    assert [number(two, name) for name in ("speedup", "efficiency", "karp_flatt")] == pytest.approx([1.6, 0.8, 0.25])
    assert [number(four, name) for name in ("speedup", "efficiency", "karp_flatt")] == pytest.approx([2, 0.5, 1 / 3])
    assert rows["torch", "single", "1", "1"]["karp_flatt"] == ""


def test_weak_scaling_base_has_the_batch_of_one_replica(tmp_path):
    make_run(tmp_path / "one", images_per_s=1000.0, batch_size=32)
    make_run(tmp_path / "large", images_per_s=3000.0, batch_size=96)
    make_run(
        tmp_path / "three", images_per_s=2400.0, batch_size=32, batch_scope="per-rank", strategy="horovod", ranks=3
    )
    row = next(row for row in table(write(tmp_path, tmp_path)) if row["strategy"] == "horovod")
    assert row["scaling"] == "weak"
    assert number(row, "efficiency") == pytest.approx(0.8)  # 2400 / (3 * 1000)
    assert row["karp_flatt"] == ""


def test_weak_scaling_with_global_batches(tmp_path):
    """`bench --scaling weak` multiplies the global batch itself, over ranks or over devices."""
    make_run(tmp_path / "one", images_per_s=1000.0, batch_size=32)
    make_run(tmp_path / "two", images_per_s=1800.0, batch_size=64, strategy="ring", ranks=2)
    make_run(tmp_path / "devices", images_per_s=1600.0, batch_size=64, strategy="manual", devices=2)
    rows = lines(write(tmp_path, tmp_path))
    for name, ranks, devices, efficiency in (("ring", "2", "1", 0.9), ("manual", "1", "2", 0.8)):
        row = rows["torch", name, ranks, devices]
        assert (row["scaling"], number(row, "efficiency")) == ("weak", pytest.approx(efficiency))


def test_one_replica_has_no_efficiency(tmp_path):
    make_run(tmp_path / "one", images_per_s=1000.0)
    make_run(tmp_path / "other", images_per_s=900.0, strategy="horovod")
    rows = lines(write(tmp_path, tmp_path))
    assert [rows["torch", name, "1", "1"]["scaling"] for name in ("single", "horovod")] == ["base", ""]


def test_without_strategy_single_the_base_is_the_strategy_with_one_replica(tmp_path):
    make_run(tmp_path / "one", images_per_s=500.0, strategy="horovod")
    make_run(tmp_path / "two", images_per_s=900.0, strategy="horovod", ranks=2)
    make_run(tmp_path / "other", images_per_s=900.0, strategy="ddp", ranks=2)
    make_run(tmp_path / "third", images_per_s=900.0, strategy="horovod", framework="mxnet", ranks=2)
    rows = lines(write(tmp_path, tmp_path))
    assert number(rows["torch", "horovod", "2", "1"], "efficiency") == pytest.approx(0.9)
    assert rows["torch", "ddp", "2", "1"]["efficiency"] == ""
    assert rows["mxnet", "horovod", "2", "1"]["efficiency"] == ""


@pytest.mark.parametrize(
    "other",
    [
        {"precision": "bf16"},
        {"batch_size": 96},
        {"data": "mnist"},
        {"host": {"processor": "Xeon"}},
        {"host": {"OMP_NUM_THREADS": "2"}},
    ],
)
def test_no_efficiency_without_a_comparable_base(tmp_path, other):
    make_run(tmp_path / "one", images_per_s=500.0)
    make_run(tmp_path / "two", strategy="horovod", ranks=2, **other)
    assert lines(write(tmp_path, tmp_path))["torch", "horovod", "2", "1"]["efficiency"] == ""


def test_difference_from_a_single_process(tmp_path):
    make_run(tmp_path / "a-one", moved=0.0)
    make_run(tmp_path / "b-one", moved=0.0, images_per_s=1.0)
    make_run(tmp_path / "two", moved=-0.5, strategy="horovod", ranks=2)
    make_run(tmp_path / "two-again", moved=0.25, strategy="horovod", ranks=2)
    make_run(tmp_path / "other", moved=0.125, framework="mxnet", strategy="horovod", ranks=2)
    make_run(tmp_path / "seed", moved=0.125, framework="mxnet", strategy="horovod", ranks=3, seed=1)
    make_run(tmp_path / "short", moved=0.125, strategy="horovod", ranks=4, steps=7)
    make_run(tmp_path / "no-checkpoint", strategy="horovod", ranks=5)
    # Two ranks with half the batch and half the learning rate each train as a single process does (linear scaling).
    per_rank = {"batch_scope": "per-rank", "batch_size": 32, "lr": 0.025}
    make_run(tmp_path / "per-rank", moved=0.75, strategy="ddp", ranks=2, **per_rank)
    folder = write(tmp_path, tmp_path)
    differences = {
        (row["framework"], row["strategy"], row["ranks"]): row["max_parameter_difference"]
        for row in lines(folder).values()
    }
    assert differences == {
        ("torch", "single", "1"): "0.0",
        ("torch", "horovod", "2"): "0.5",
        ("mxnet", "horovod", "2"): "0.125",
        ("mxnet", "horovod", "3"): "",
        ("torch", "horovod", "4"): "",
        ("torch", "horovod", "5"): "",
        ("torch", "ddp", "2"): "0.75",
    }
    text = (folder / "report.md").read_text()
    assert " 0.12 (from torch) |" in text
    assert " 0.5 |" in text


def test_damaged_older_and_non_finite_checkpoints_are_not_compared(tmp_path):
    make_run(tmp_path / "one", moved=0.0)
    old = make_run(tmp_path / "old", strategy="horovod", ranks=2)
    save(old, Config(), 1.0, step=4)
    damaged = make_run(tmp_path / "damaged", moved=1.0, strategy="horovod", ranks=3)
    next(damaged.rglob("weights.safetensors")).write_bytes(b"x")
    make_run(tmp_path / "blown up", moved=float("nan"), strategy="horovod", ranks=4)
    rows = lines(write(tmp_path, tmp_path))
    assert [rows["torch", "horovod", ranks, "1"]["max_parameter_difference"] for ranks in "234"] == ["", "", ""]
    assert "| reference |" in (tmp_path / "out" / "report.md").read_text()
