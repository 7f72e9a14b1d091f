"""Validation data and early stopping: by the same rows on any number of ranks, and resumed as if never interrupted."""

import json

import numpy as np
import pytest
from support.jobs import distance, launcher, newest, run, several
from support.stack import FASTEST, FRAMEWORKS, cases

from hvdtrain.runs.metrics import read
from hvdtrain.runs.run import Run
from hvdtrain.system.run_end import RunEnd

DIVERGING = ("--epochs", "6", "--lr", "0.3", "--validation", "0.2", "--patience", "2", "--device", "cpu")
"""Its first epoch is the best one, at step 18."""
TASK = """
import numpy as np

class Task:
    def data(self):
        x = np.random.default_rng(0).normal(size=(220, 4)).astype(np.float32)
        y = (x[:, 0] > x[:, 1]).astype(np.int64)
        return (x[:128], y[:128]), (x[128:160], y[128:160]), (x[160:], y[160:])

    def model(self):
        from torch import nn

        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
"""
SCRIPT = """
import numpy as np
import torch
from torch import nn
import hvdtrain

x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
y = (x[:, 0] > 0).astype(np.int64)
parts = [(x[rows], y[rows]) for rows in (slice(0, 120), slice(120, 160), slice(160, 200))]
with hvdtrain.start() as run:
    model = nn.Linear(4, 2)
    model, optimizer = run.setup(model, torch.optim.SGD(model.parameters(), lr=1.0, maximize=True))
    losses = nn.CrossEntropyLoss(reduction="none")
    for x, y in run.batches(parts[0], parts[2], lambda x, y: losses(model(x), y), validation=parts[1]):
        run.step(losses(model(x), y))
    print("after the loop:", run.steps, run.epoch)
"""


def result(folder):
    return json.loads((folder / "result.json").read_text())


def assert_same_end(one, other, *also):
    """The same weights, position, scores and reason. also: names of further results."""
    assert newest(one).position == newest(other).position
    assert distance(newest(one).weights, newest(other).weights) == 0
    names = ("metrics", "loss", "validation", "early_stop", "steps", "parameters", *also)
    assert [result(one)[name] for name in names] == [result(other)[name] for name in names]


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, short={FASTEST}))
def test_a_run_stops_early_by_validation_data_also_after_a_resume(framework, tmp_path):
    trainings = [
        (*DIVERGING, "--name", "whole"),
        (*DIVERGING, "--name", "part", "--max-steps", "25"),  # in the middle of an epoch without a better score
        ("--resume", "runs/part", "--max-steps", "0"),
        ("--resume", "runs/part"),
    ]
    status, output = run(several(framework, trainings, "local", 2), tmp_path)
    assert status == 0, output
    folder = tmp_path / "runs" / "whole"
    assert_same_end(folder, tmp_path / "runs" / "part")  # whose checkpoint in the middle of an epoch may be the best
    ended = result(folder)
    assert ended["steps"] == 54 and RunEnd.read(folder).status == "finished"
    reason = "stopped early, after epoch 3 of 6: no better validation accuracy than that of epoch 1 (--patience 2)"
    assert ended["early_stop"] == reason and reason in output
    assert "to train further, raise --patience" in output
    kinds = [record["kind"] for record in read(folder / "metrics.jsonl") if record["kind"] in ("validation", "test")]
    assert kinds == ["validation"] * 3 + ["test"]
    assert ended["best"]["checkpoint"] == ended["best_checkpoint"] == "step-00000018"
    assert ended["best"]["validation"]["metrics"]["accuracy"] > ended["validation"]["metrics"]["accuracy"]
    assert ended["best"]["validation"]["rows"] == pytest.approx(0.2 * 1437, abs=5)
    records = [record for record in read(folder / "metrics.jsonl") if record["kind"] == "validation"]
    assert ended["best"]["validation"]["loss"] == pytest.approx(records[0]["loss"])
    assert Run(folder).score.title == "validation accuracy"
    assert Run(folder).score.value == ended["best"]["validation"]["metrics"]["accuracy"]
    status, output = run(["python", "-m", "hvdtrain", "runs", "runs"], tmp_path, COLUMNS="200")
    assert status == 0 and "evaluated" in output and "validation" in output


def test_the_best_checkpoint_is_tested_with_its_own_averages(tmp_path):
    options = (
        "--epochs",
        "3",
        "--lr",
        "0.5",
        "--validation",
        "0.2",
        "--ema",
        "0.5",
        "--device",
        "cpu",
        "--name",
        "one",
    )
    status, output = run(several("torch", [options], "alone", 1), tmp_path)
    assert status == 0, output
    folder = tmp_path / "runs" / "one"
    losses = {
        record["step"]: record["loss"] for record in read(folder / "metrics.jsonl") if record["kind"] == "validation"
    }
    best = result(folder)["best"]
    assert best["step"] < max(losses) and best["validation"]["loss"] == pytest.approx(losses[best["step"]])


def test_another_share_cannot_be_resumed(tmp_path):
    short = ("--epochs", "1", "--max-steps", "2", "--strategy", "single", "--device", "cpu")
    trainings = [(*short, "--validation", "0.2", "--name", "one"), ("--resume", "runs/one", "--validation", "0.3")]
    status, output = run(several("torch", trainings, "alone", 1), tmp_path)
    assert status != 0 and "the fingerprint of --data" in output


@pytest.mark.parametrize("framework", ["torch"])
def test_a_task_of_three_parts_has_the_same_bits_on_any_number_of_ranks(framework, tmp_path):
    (tmp_path / "task.py").write_text(TASK)
    options = ("--model", "task.py:Task", "--device", "cpu", "--batch-size", "32", "--epochs", "3", "--shards", "4")
    for ranks in (1, 2):
        training = (*options, "--patience", "3", "--name", f"on-{ranks}")
        status, output = run(several(framework, [training], "local", ranks), tmp_path)
        assert status == 0, output
    assert_same_end(tmp_path / "runs" / "on-1", tmp_path / "runs" / "on-2", "best")
    assert result(tmp_path / "runs" / "on-1")["validation"]["rows"] == 32


def test_a_loop_of_a_script_just_ends(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    options = ("--epochs", "9", "--batch-size", "20", "--device", "cpu", "--patience", "1", "--name", "loop")
    status, output = run([*launcher("local", 2), "python", "script.py", *options], tmp_path)
    assert status == 0, output
    ended = result(tmp_path / "runs" / "loop")
    assert ended["steps"] == 12 and output.count("after the loop: 12 2") == 2
    assert ended["validation"]["rows"] == 40 == ended["test_rows"]
    assert "no better validation loss" in ended["early_stop"]
    saved = newest(tmp_path / "runs" / "loop")
    assert np.isfinite(saved.position.best) and saved.position.best_epoch == 1


def test_patience_without_an_evaluation_is_one_line(tmp_path):
    before, _, after = SCRIPT.partition("parts[2], lambda x, y: losses(model(x), y), validation=parts[1]")
    (tmp_path / "script.py").write_text(before.removesuffix(", ") + after)
    command = ["python", "script.py", "--patience", "1", "--strategy", "single", "--device", "cpu"]
    status, output = run(command, tmp_path)
    assert status == 2 and "--patience 1: the script evaluates nothing, so it has no score" in output


def test_sweeps_go_by_validation_data_and_say_what_the_test_gives(tmp_path):
    training = ["train", "--framework", FASTEST, "--strategy", "single", "--device", "cpu"]
    short = ["--epochs", "2", "--validation", "0.2", "--patience", "1"]
    sweep = ["python", "-m", "hvdtrain", "sweep", "--set", "lr=0.05,0.3", "--output", "swept", "--"]
    status, output = run([*sweep, *training, *short], tmp_path, COLUMNS="160")
    assert status == 0, output
    page = (tmp_path / "swept" / "sweep.md").read_text()
    assert "highest validation accuracy first" in page
    assert page.index("validation accuracy") < page.index("test accuracy") < page.index("validation loss")
    results = [result(folder.parent) for folder in sorted((tmp_path / "swept").glob("*/result.json"))]
    best = max(results, key=lambda ended: ended["best"]["validation"]["metrics"]["accuracy"])
    row = next(line for line in page.splitlines() if line.startswith("| 0.05 ") or "| 0.05 |" in line)
    assert f"{best['best']['test']['metrics']['accuracy']:.4f}" in row


def test_an_epoch_after_which_a_run_is_stopped_counts(tmp_path):
    asks = 'if "stop" in sys.argv and run.ends_epoch: (run.folder / "STOP").touch()'
    stopping = SCRIPT.replace("        run.step(", f"        {asks}\n        run.step(")
    (tmp_path / "script.py").write_text(
        f"import sys\n{stopping}".replace("hvdtrain.start()", "hvdtrain.start(arguments=sys.argv[2:])")
    )
    options = ("--epochs", "9", "--batch-size", "20", "--device", "cpu", "--strategy", "single", "--patience", "2")
    command = ["python", "script.py", "go", *options, "--auto-resume", "--name"]
    assert run([*command, "whole"], tmp_path)[0] == 0
    status, output = run(["python", "script.py", "stop", *command[3:], "part"], tmp_path)
    assert status != 0 and "was asked to stop" in output, output
    assert run([*command, "part"], tmp_path)[0] == 0
    assert_same_end(tmp_path / "runs" / "whole", tmp_path / "runs" / "part", "best")
    assert result(tmp_path / "runs" / "part")["early_stop"].startswith("stopped early, after epoch 3 of 9")
