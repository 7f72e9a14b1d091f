"""hvdtrain predict classifies image files, and computes the outputs of a task's model for rows.

In the process of the test: what the command does, prints and writes needs no other one.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import mixed_networks
from support.in_process import command, train_here
from support.jobs import ROOT, newest
from support.stack import FASTEST, FRAMEWORKS, INSTALLED, REFERENCE, cases

from hvdtrain.datasets.registry import load_dataset

FEW = ("--batch-size", "64", "--lr", "0.05", "--schedule", "constant", "--init", "he")
TASKS = ROOT / "tests" / "support" / "tasks"
SHORT = ("--batch-size", "32", "--epochs", "1", "--device", "cpu", "--lr", "0.02")


def test_a_run_moves_through_all_frameworks_which_predict_the_same(tmp_path):
    """The description of the network is gone after the first steps: checkpoints have it."""
    description = tmp_path / "net.py"
    description.write_bytes(Path(mixed_networks.__file__).read_bytes())
    epochs = 10 - len(INSTALLED)
    folder = train_here(tmp_path, REFERENCE, "--model", "net.py:WITHOUT_DROPOUT", *FEW, "--epochs", str(epochs))
    description.unlink()
    for number, framework in enumerate(INSTALLED[1:] or INSTALLED, epochs + 1):
        resume = ("--resume", "runs/run", "--strategy", "single", "--epochs", str(number))
        train_here(tmp_path, framework, *resume)
        assert newest(folder).framework == framework and newest(folder).position.epoch == number
    digits = load_dataset("digits")
    images, labels = digits.test[np.arange(4)]
    files = [f"{i}.png" for i in range(4)]
    for name, image in zip(files, images, strict=True):
        Image.fromarray(image[0]).save(tmp_path / name)
    outputs = {}
    for framework in INSTALLED:
        status, output = command(tmp_path, "predict", str(folder), *files, "--framework", framework)
        assert status == 0, output
        outputs[framework] = [line.split("\t") for line in output.splitlines() if "\t" in line]
    assert all(output == outputs[REFERENCE] for output in outputs.values())
    assert [line[1].split()[0] for line in outputs[REFERENCE]] == [digits.classes[label] for label in labels]


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, short={FASTEST}))
def test_a_tasks_outputs_are_those_of_its_evaluation(tmp_path, framework):
    """Of two inputs and outputs by name; its own test rows, and the same rows in a file."""
    task = f"{TASKS}/of_{framework}.py:Regression"
    folder = train_here(tmp_path, framework, "--model", task, *SHORT)
    status, output = command(tmp_path, "predict", "runs/run", "--test", "--model", task, "--output", "test.npz")
    assert status == 0 and "step" not in output, output
    namespace = {}
    exec((TASKS / "task_rows.py").read_text(), namespace)
    numbers, kinds, values = (namespace[name][128:] for name in ("NUMBERS", "KINDS", "VALUES"))
    value = np.load(tmp_path / "test.npz")["value"]
    metrics = json.loads((folder / "result.json").read_text())["metrics"]
    assert np.abs(value - values).mean() == pytest.approx(metrics["distance"], rel=1e-5)
    np.savez(tmp_path / "rows.npz", numbers, kinds, values)
    status, output = command(tmp_path, "predict", "runs/run", "rows.npz", "--model", task)
    assert status == 0, output
    lines = [line.split("\t") for line in output.splitlines() if line[:1].isdigit()]
    assert [int(row) for row, _ in lines] == list(range(32))
    assert np.array([number for _, number in lines], np.float32) == pytest.approx(value, rel=1e-5, abs=1e-6)


REFUSED = {
    (): "0 files of rows were given",
    ("rows.npy", "--test"): "1 files of rows were given; give one file, or --test",
    ("rows.npy", "--output", "x.txt"): "--output x.txt: no format has such a name",
    ("none.npy",): "none.npy: cannot be read",
    ("rows.png",): "rows.png: is no file of rows",
    ("empty.npz",): "empty.npz: has 0 array(s), and the model gets 1",
    ("wide.npy",): "fails on inputs (5, 3) float32",
    ("rows.npy", "--arg", "width=9"): "belongs to the task",
    ("rows.npy", "--invert"): "its rows are not images",
}


def test_a_task_that_classifies_says_the_class(tmp_path):
    """With the arguments of training; from a table and an array, into files."""
    task = f"{TASKS}/of_torch.py:Classifier"
    train_here(tmp_path, "torch", "--model", task, *SHORT, "--arg", "width=7")
    rows = np.random.default_rng(0).normal(size=(5, 4))
    np.save(tmp_path / "rows.npy", rows)
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", header="a,b,c,d", comments="")
    for source, written in (("rows.npy", "a.npz"), ("rows.csv", "b.csv"), ("rows.npy", "c.npy")):
        status, output = command(tmp_path, "predict", "runs/run", source, "--model", task, "--output", written)
        assert status == 0, output
    outputs, logits = np.load(tmp_path / "a.npz"), np.load(tmp_path / "c.npy")
    assert np.array_equal(outputs["class"], logits.argmax(1)) and logits.shape == (5, 5)
    header, *lines = (tmp_path / "b.csv").read_text().splitlines()
    assert header == "row,output.0,output.1,output.2,output.3,output.4,class"
    table = np.array([line.split(",") for line in lines], float)
    assert table[:, 1:6] == pytest.approx(logits, rel=1e-5, abs=1e-6) and np.array_equal(table[:, 6], outputs["class"])
    np.save(tmp_path / "wide.npy", rows[:, :3])
    np.savez(tmp_path / "empty.npz")
    for arguments, text in REFUSED.items():
        status, output = command(tmp_path, "predict", "runs/run", *arguments, "--model", task)
        assert status == 2 and text in output, (arguments, output)
    status, output = command(tmp_path, "predict", "runs/run", "rows.npy")
    assert status == 2 and f"give --model {task}" in output
