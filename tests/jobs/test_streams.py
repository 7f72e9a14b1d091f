"""Training on iterable data sets: the same global batches on any number of ranks, also after a resume."""

import pytest
from support.jobs import distance, launcher, newest, run, several

TASK = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import IterableDataset

X = np.random.default_rng(0).normal(size=(130, 4)).astype(np.float32)

class Rows(IterableDataset):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(X)

    def __iter__(self):
        for row in np.random.default_rng(self.epoch).permutation(len(X)):
            x = torch.from_numpy(X[row]) * (1 + 0.1 * torch.rand(4))
            yield x, int(x[0] > x[1])

class Task:
    def data(self):
        return Rows(), Rows()

    def model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
"""
OPTIONS = ("--model", "task.py:Task", "--device", "cpu", "--batch-size", "32", "--epochs", "3", "--log-every", "1")
SCRIPT = """
import numpy as np
import torch
from torch import nn
import hvdtrain

def rows(epoch):
    generator = np.random.default_rng(epoch)
    while True:
        x = generator.normal(size=4).astype(np.float32)
        yield {"x": x, "y": int(x[0] > 0)}

with hvdtrain.start() as run:
    model = nn.Linear(4, 2)
    model, optimizer = run.setup(model, torch.optim.Adam(model.parameters(), lr=0.01))
    losses = nn.CrossEntropyLoss(reduction="none")
    for x, y in run.batches(hvdtrain.Stream(rows, 100), hvdtrain.Stream(rows, 30), lambda x, y: losses(model(x), y)):
        run.step(losses(model(x), y))
"""


def train(folder, ranks, *trainings):
    (folder / "task.py").write_text(TASK)
    status, output = run(several("torch", [(*OPTIONS, *one) for one in trainings], "local", ranks), folder)
    assert status == 0, output[-4000:]


@pytest.mark.parametrize("shards", ["0", "4"])
def test_a_stream_is_the_same_on_any_number_of_ranks_and_resumed_bit_for_bit(shards, tmp_path):
    """The last batch of an epoch has 2 rows; the resume is in the middle of the second epoch."""
    sharded = ("--shards", shards) if shards != "0" else ()
    train(tmp_path, 1, (*sharded, "--name", "one"))
    parts = (*sharded, "--name", "parts", "--max-steps", "7"), (*sharded, "--resume", "runs/parts", "--max-steps", "0")
    train(tmp_path, 2, (*sharded, "--name", "two"), *parts)
    one, two, resumed = (newest(tmp_path / "runs" / name) for name in ("one", "two", "parts"))
    assert one.position.step == two.position.step == resumed.position.step == 15
    assert distance(two.weights, resumed.weights) == 0
    assert distance(two.optimizer.arrays, resumed.optimizer.arrays) == 0
    assert distance(one.weights, two.weights) < (1e-5 if shards == "0" else 1e-30)


def test_a_loop_trains_on_a_function_of_the_epoch(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    for ranks in (1, 2):
        options = ("--epochs", "2", "--batch-size", "20", "--device", "cpu", "--name", f"on-{ranks}")
        status, output = run([*launcher("local", ranks), "python", "script.py", *options], tmp_path)
        assert status == 0, output
    one, two = (newest(tmp_path / "runs" / f"on-{ranks}") for ranks in (1, 2))
    assert one.position.step == 10 and distance(one.weights, two.weights) < 1e-5


def test_ranks_with_other_streams_do_not_train(tmp_path):
    other = TASK.replace("default_rng(0)", "default_rng(int(os.environ['HOROVOD_RANK']))")
    (tmp_path / "task.py").write_text(f"import os\n{other}")
    status, output = run([*launcher("local", 2), "python", "-m", "hvdtrain.torch_lenet", *OPTIONS], tmp_path)
    assert other != TASK and status == 2
    assert "rank 1 has data" in output and "give every rank the same rows in the same order" in output
