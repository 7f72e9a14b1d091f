"""Augmented training: the same on any number of ranks and workers, and resumed bit for bit."""

from pathlib import Path

import numpy as np
import pytest
from support.jobs import distance, newest, run, several

TASK = """
import numpy as np

class Task:
    def data(self):
        x = np.random.default_rng(0).normal(size=(160, 4)).astype(np.float32)
        y = (x[:, 0] > x[:, 1]).astype(np.int64)
        return (x[:128], y[:128]), (x[128:], y[128:])

    def model(self):
        from torch import nn  # not in processes that read

        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def augment(self, rows, generators):
        x, y = rows
        return x * np.array([one.uniform(0.5, 2, 4) for one in generators], np.float32), y
"""
OPTIONS = ("--model", "task.py:Task", "--device", "cpu", "--batch-size", "32", "--seed", "5", "--epochs", "2")


def train_all(folder: Path, trainings: list[tuple[str, ...]], by: str = "alone", ranks: int = 1) -> Path:
    """Train with these options, one after the other in one job; the folder of the runs."""
    (folder / "task.py").write_text(TASK)
    status, output = run(several("torch", [(*OPTIONS, *one) for one in trainings], by, ranks), folder)
    assert status == 0, output[-6000:]
    return folder / "runs"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Runs of one process: whole, and in parts with a process that reads."""
    folder = tmp_path_factory.mktemp("runs")
    single, steps = ("--strategy", "single", "--workers"), "--max-steps"
    return train_all(
        folder,
        [
            (*single, "0", "--name", "whole"),
            (*single, "1", "--name", "parts", steps, "6"),
            (*single, "2", "--resume", str(folder / "runs" / "parts"), steps, "8"),
        ],
    )


@pytest.mark.guarantee("augmented-resume")
def test_a_run_resumes_in_the_middle_of_an_epoch_bit_for_bit_with_other_workers(runs: Path) -> None:
    whole, parts = newest(runs / "whole"), newest(runs / "parts")
    assert whole.position == parts.position and whole.position.step == 8
    for one, other in ((whole.weights, parts.weights), (whole.optimizer.arrays, parts.optimizer.arrays)):
        assert all(np.array_equal(one[name], other[name]) for name in one | other)
    logs = (runs / "parts" / "logs" / "rank-0.log").read_text()
    assert "epoch 2, step 6" in logs


@pytest.mark.guarantee("augmented-rows")
@pytest.mark.matrix
def test_two_ranks_train_on_the_rows_of_one(runs: Path, tmp_path: Path) -> None:
    two = newest(train_all(tmp_path, [("--strategy", "ring", "--name", "two")], "local", 2) / "two")
    assert two.position == newest(runs / "whole").position
    assert distance(two.weights, newest(runs / "whole").weights) < 1e-6
