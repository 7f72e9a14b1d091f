"""hvdtrain predict classifies image files with a checkpoint that any framework wrote, or continued."""

from pathlib import Path

import numpy as np
from PIL import Image
from support import mixed_networks
from support.jobs import newest, run, train
from support.stack import INSTALLED, REFERENCE

from hvdtrain.datasets.registry import load_dataset

FEW = ("--batch-size", "64", "--lr", "0.05", "--strategy", "single", "--schedule", "constant", "--init", "he")


def test_a_run_moves_through_all_frameworks_which_predict_the_same(tmp_path):
    """The description of the network is gone after the first steps: checkpoints have it."""
    description = tmp_path / "net.py"
    description.write_bytes(Path(mixed_networks.__file__).read_bytes())
    epochs = 10 - len(INSTALLED)
    folder = train(tmp_path, REFERENCE, "--model", "net.py:WITHOUT_DROPOUT", *FEW, "--epochs", str(epochs))
    description.unlink()
    resume = ("--resume", "runs/run", "--strategy", "single", "--epochs")
    for number, framework in enumerate(INSTALLED[1:] or INSTALLED, epochs + 1):
        train(tmp_path, framework, *resume, str(number))
        assert newest(folder).framework == framework and newest(folder).position.epoch == number
    digits = load_dataset("digits")
    images, labels = digits.test[np.arange(4)]
    for i in range(4):
        Image.fromarray(images[i, 0]).save(tmp_path / f"{i}.png")
    files = [f"{i}.png" for i in range(4)]
    outputs = {}
    for framework in INSTALLED:
        command = ["python", "-m", "hvdtrain", "predict", str(folder), *files, "--framework", framework]
        status, output = run(command, tmp_path)
        assert status == 0, output
        outputs[framework] = [line.split("\t") for line in output.splitlines() if "\t" in line]
    assert all(output == outputs[REFERENCE] for output in outputs.values())
    predicted = [line[1].split()[0] for line in outputs[REFERENCE]]
    assert predicted == [digits.classes[label] for label in labels]
