"""The examples train, as their first lines say."""

import json

import pytest
from support.jobs import ROOT, run


@pytest.mark.parametrize(
    ("task", "options", "metric", "better"),
    [
        ("two_moons.py:TwoMoons", ("--set", "width=32", "--lr", "0.5"), "accuracy", lambda x: x > 0.8),
        ("linear_regression.py:Regression", ("--strategy", "ddp"), "absolute error", lambda x: x < 0.5),
    ],
)
def test_tasks_train_on_two_ranks(task, options, metric, better, tmp_path):
    program = ["python", "-m", "hvdtrain", "train", f"{ROOT}/examples/{task}", "--name", "a", "--epochs", "6", *options]
    status, output = run(["python", "-m", "hvdtrain", "launch", "local", "-n", "2", "--", *program], tmp_path)
    assert status == 0, output
    metrics = json.loads((tmp_path / "runs/a/result.json").read_text())["metrics"]
    assert better(metrics[metric]), metrics
