"""hvdtrain predict classifies image files.

In the process of the test: what the command does, prints and writes needs no other one.
"""

from pathlib import Path

import numpy as np
from PIL import Image
from support import mixed_networks
from support.in_process import command, train_here
from support.jobs import newest
from support.stack import INSTALLED, REFERENCE

from hvdtrain.datasets.registry import load_dataset

FEW = ("--batch-size", "64", "--lr", "0.05", "--schedule", "constant", "--init", "he")


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
    images, labels = digits.test[np.arange(12)]
    files = [f"{i}.png" for i in range(12)]
    for name, image in zip(files, images, strict=True):
        Image.fromarray(image[0]).save(tmp_path / name)
    outputs = {}
    for framework in INSTALLED:
        status, output = command(tmp_path, "predict", str(folder), *files, "--framework", framework)
        assert status == 0, output
        outputs[framework] = [line.split("\t") for line in output.splitlines() if "\t" in line]
    assert all(output == outputs[REFERENCE] for output in outputs.values())
    predicted = [line[1].split()[0] for line in outputs[REFERENCE]]
    # Which of them it has learned depends on the rounding of the processor.
    assert sum(name == digits.classes[label] for name, label in zip(predicted, labels, strict=True)) > 6
    (tmp_path / "notes.txt").write_text("no image")
    given = [files[0], "none.png", files[1], "notes.txt", files[0]]
    status, output = command(tmp_path, "predict", str(folder), *given, "--framework", REFERENCE)
    lines = output.splitlines()
    assert status == 2 and [line.split("\t") for line in lines[:3]] == [outputs[REFERENCE][i] for i in (0, 1, 0)]
    assert lines[3].startswith("skipped: none.png: cannot be read as an image ([Errno 2]")
    assert lines[4].startswith("skipped: notes.txt: cannot be read as an image (its content")
    assert lines[5:] == ["hvdtrain: 2 of 5 file(s) cannot be read; correct them, or leave them out"]
    status, output = command(tmp_path, "predict", str(folder), "none.png")
    assert status == 2 and output.splitlines()[-1].startswith("hvdtrain: 1 of 1 file(s) cannot be read")
