"""What a user sees of a run: its lines on the console, its plot, its warnings, and predictions.

The console is that of a whole process, from its first line, which comes before the framework is imported.
"""

import dataclasses
import re

import numpy as np
import pytest
from PIL import Image
from support.in_process import command
from support.jobs import newest, succeed
from support.stack import FASTEST

from hvdtrain.runs import checkpoints
from hvdtrain.system.stacks import TITLES

NAME = "a$b$c_<x>|.npz"
"""Two dollar signs enclose math, and the rest is markup in some file."""
EPOCH = (
    r"epoch [12]/2( \(50% of it\))?: train loss \d\.\d{4}, test loss \d\.\d{4}, test accuracy [01]\.\d{4}, "
    r"lr 0\.0\d+, [\d,]+ images/s(, rank 0 waited for data \d+% of the time \(raise --workers, now 0\))?"
)
"""On a busy machine, reading can take a twentieth of an epoch of four steps."""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The folder and the console of a run that ends within its second epoch, on images that hold only 0 and 1."""
    folder = tmp_path_factory.mktemp("console")
    generator = np.random.default_rng(0)
    images, labels = generator.integers(0, 2, (128, 28, 28)).astype(np.uint8), np.arange(128) % 4 * 2
    np.savez(folder / NAME, x_train=images, y_train=labels, x_test=images[:32], y_test=labels[:32])
    options = ["--data", NAME, "--epochs", "2", "--batch-size", "32", "--max-steps", "6", "--log-every", "1"]
    program = ["python", "-m", f"hvdtrain.{FASTEST}_lenet", "--strategy", "single", "--name", "run", *options]
    output = succeed(program, folder, PYTHONUNBUFFERED="1")
    return folder, output.splitlines()


def test_lines(job):
    folder, lines = job
    assert lines[0] == f"starting rank 0 of 1: importing {TITLES[FASTEST]} ..."
    epochs = [line for line in lines if line.startswith("epoch")]
    assert [bool(re.fullmatch(EPOCH, line)) for line in epochs] == [True, True], epochs
    assert "(50% of it)" in epochs[1]
    assert not re.search(r"\bnan\b|\x1b", "\n".join(lines))
    assert (folder / "runs" / "run" / "metrics.png").stat().st_size > 10_000
    warnings = [line for line in lines if line.startswith("--data")]
    assert "no pixel of the train images exceeds 1" in warnings[0]
    assert "multiply them by 255, or store them as float32 in [0, 1]" in warnings[0]
    assert "the train labels have 4 of 7 classes" in warnings[1]


def test_names_of_classes_cannot_control_the_terminal(job):
    folder, _ = job
    run_folder = folder / "runs" / "run"
    odd = ("\x1b[31mred", *newest(run_folder).classes[1:])
    checkpoints.save(folder / "checkpoints", dataclasses.replace(newest(run_folder), classes=odd), keep=1)
    Image.new("L", (28, 28)).save(folder / "a.png")
    status, output = command(folder, "predict", str(next((folder / "checkpoints").iterdir())), "a.png", "--top", "10")
    assert status == 0 and "\x1b" not in output and r"\x1b[31mred" in output
