"""hvdtrain predict classifies image files with a checkpoint of any framework."""

import numpy as np
from PIL import Image
from support.jobs import FRAMEWORKS, run, train

from hvdtrain.datasets.registry import load_dataset


def test_predictions_are_the_same_in_all_frameworks(tmp_path):
    folder = train(tmp_path, "torch", "--strategy", "single", "--epochs", "5")
    digits = load_dataset("digits")
    images, labels = digits.test[np.arange(4)]
    for i in range(4):
        Image.fromarray(images[i, 0]).save(tmp_path / f"{i}.png")
    files = [f"{i}.png" for i in range(4)]
    outputs = {}
    for framework in FRAMEWORKS:
        command = ["python", "-m", "hvdtrain", "predict", str(folder), *files, "--framework", framework]
        status, output = run(command, tmp_path)
        assert status == 0, output
        outputs[framework] = [line.split("\t") for line in output.splitlines() if "\t" in line]
    assert outputs["torch"] == outputs["mxnet"] == outputs["tensorflow"]
    predicted = [line[1].split()[0] for line in outputs["torch"]]
    assert predicted == [digits.classes[label] for label in labels]
    (tmp_path / "bad.png").write_bytes(b"not an image")
    status, output = run(["python", "-m", "hvdtrain", "predict", str(folder), "bad.png"], tmp_path)
    assert status == 2
    assert "bad.png: cannot be read as an image" in output
