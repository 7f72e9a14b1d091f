"""The largest difference of parameters from a single process."""

from support.report import lines, make_run, save, write

from hvdtrain.config.options import Config


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
