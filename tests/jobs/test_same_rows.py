"""Rows of streams, augmented rows and validation rows: the same on any number of ranks, and after a resume.

Two ranks are processes, of one job for all trainings; a run on one rank is in the process of the test.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support.environment import importing
from support.in_process import train_here
from support.jobs import distance, launcher, newest, result, succeed
from support.user_loop_runs import starter
from torch import nn

import hvdtrain

STREAMED = """
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
ARRAYS = """
import numpy as np

X = np.random.default_rng(0).normal(size=(220, 4)).astype(np.float32)
Y = (X[:, 0] > X[:, 1]).astype(np.int64)

class ThreeParts:
    def data(self):
        return (X[:128], Y[:128]), (X[128:160], Y[128:160]), (X[160:], Y[160:])

    def model(self):
        from torch import nn  # not in processes that read

        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

class Augmented(ThreeParts):
    def data(self):
        return (X[:128], Y[:128]), (X[128:], Y[128:])

    def augment(self, rows, generators):
        x, y = rows
        return x * np.array([one.uniform(0.5, 2, 4) for one in generators], np.float32), y
"""
OPTIONS = ("--device", "cpu", "--batch-size", "32", "--seed", "5", "--epochs", "3", "--log-every", "1")
TRAININGS = {
    "stream": ("--model", "streamed.py:Task"),
    "stream-shards": ("--model", "streamed.py:Task", "--shards", "4"),
    "augmented": ("--model", "arrays.py:Augmented"),
    "validated": ("--model", "arrays.py:ThreeParts", "--shards", "4", "--patience", "3"),
}
STEPS = {"stream": 15, "stream-shards": 15, "augmented": 12, "validated": 12}
"""The last batch of an epoch of a stream has 2 rows."""
RESUMED = [name for name in TRAININGS if name.startswith("stream")]
JOB = """
import json, sys
from test_same_rows import loop
from hvdtrain import start
from hvdtrain.config.sources import CommandLine
from hvdtrain.training.train import train

for words in json.loads(sys.argv[1]):
    train(*CommandLine.read(words, "job", "torch").options(), lambda: [])
with start(arguments=sys.argv[2:]) as run:
    loop(run)
"""
TESTS = importing(Path(__file__).parents[1], Path(__file__).parent)
LOOP = {"epochs": 9, "batch_size": 20, "patience": 1}


def rows(epoch):
    """Rows of the epoch, more than anyone asks for."""
    generator = np.random.default_rng(epoch)
    while True:
        x = generator.normal(size=4).astype(np.float32)
        yield {"x": x, "y": int(x[0] > 0)}


def loop(run):
    """A script's loop over a stream that a function of the epoch makes; it gets worse in each epoch."""
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    model = nn.Linear(4, 2)
    model, _ = run.setup(model, torch.optim.SGD(model.parameters(), lr=1.0, maximize=True))
    losses = nn.CrossEntropyLoss(reduction="none")
    parts = hvdtrain.Stream(rows, 120), hvdtrain.Stream(rows, 30)
    validation = x, (x[:, 0] > 0).astype(np.int64)
    for x, y in run.batches(*parts, lambda x, y: losses(model(x), y), validation=validation):
        run.step(losses(model(x), y))
    print("after the loop:", run.steps, run.epoch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the tasks."""
    folder = tmp_path_factory.mktemp("rows")
    (folder / "streamed.py").write_text(STREAMED)
    (folder / "arrays.py").write_text(ARRAYS)
    (folder / "job.py").write_text(JOB)
    return folder


@pytest.fixture(scope="module")
def job(folder):
    """The runs on two ranks, and the job's output. Streams are also resumed, in the middle of the second epoch."""
    trainings = [(*options, "--name", f"{name}-on-2") for name, options in TRAININGS.items()]
    for name in RESUMED:
        trainings.append((*TRAININGS[name], "--name", f"{name}-parts", "--max-steps", "7"))
        trainings.append((*TRAININGS[name], "--resume", f"runs/{name}-parts", "--max-steps", "0"))
    of_loop = [word for name, value in LOOP.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words = json.dumps([(*OPTIONS, *options) for options in trainings])
    command = ["python", "job.py", words, *of_loop, "--name", "loop-on-2", "--device", "cpu"]
    output = succeed([*launcher("local", 2), *command], folder, **TESTS)
    return folder / "runs", output


@pytest.mark.guarantee("augmented-rows")
@pytest.mark.parametrize("name", TRAININGS)
def test_two_ranks_train_on_the_rows_of_one(job, folder, name):
    runs, _ = job
    alone = train_here(folder, "torch", *OPTIONS, *TRAININGS[name], "--name", f"{name}-on-1")
    one, two = newest(alone), newest(runs / f"{name}-on-2")
    assert one.position == two.position and one.position.step == STEPS[name]
    assert distance(one.weights, two.weights) < (1e-30 if "--shards" in TRAININGS[name] else 1e-5)
    if name == "validated":
        names = ("metrics", "loss", "validation", "early_stop", "steps", "parameters", "best")
        results = [result(runs / f"{name}-on-{ranks}") for ranks in (1, 2)]
        assert [results[0][key] for key in names] == [results[1][key] for key in names]
        assert results[0]["validation"]["rows"] == 32


@pytest.mark.parametrize("name", RESUMED)
def test_a_stream_is_resumed_bit_for_bit(job, name):
    whole, resumed = (newest(job[0] / f"{name}-{part}") for part in ("on-2", "parts"))
    assert whole.position == resumed.position
    assert distance(whole.weights, resumed.weights) == 0
    assert distance(whole.optimizer.arrays, resumed.optimizer.arrays) == 0


@pytest.mark.guarantee("augmented-resume")
def test_a_run_resumes_in_the_middle_of_an_epoch_bit_for_bit_with_other_workers(folder):
    given = (*OPTIONS, *TRAININGS["augmented"], "--max-steps")
    whole = newest(train_here(folder, "torch", *given, "8", "--workers", "0", "--name", "workers"))
    parts = train_here(folder, "torch", *given, "6", "--workers", "1", "--name", "parts")
    train_here(folder, "torch", *given, "8", "--workers", "2", "--resume", str(parts))
    found = newest(parts)
    assert whole.position == found.position and whole.position.step == 8
    np.testing.assert_equal(whole.weights | whole.optimizer.arrays, found.weights | found.optimizer.arrays)
    assert "epoch 2, step 6" in (parts / "logs" / "rank-0.log").read_text()


def test_a_loop_trains_on_a_function_of_the_epoch_until_it_stops_early(job):
    """All ranks leave the loop in the same step."""
    runs, output = job
    with starter(runs)("loop-on-1", **LOOP) as alone:
        loop(alone)
    assert output.count("after the loop: 12 2") == 2 and alone.steps == 12
    one, two = newest(runs / "loop-on-1"), newest(runs / "loop-on-2")
    assert distance(one.weights, two.weights) < 1e-4
    assert one.position.step == two.position.step == 12 and one.position.best_epoch == two.position.best_epoch == 1
    assert one.position.best == pytest.approx(two.position.best, rel=1e-5)
    ended = result(runs / "loop-on-2")
    assert (ended["validation"]["rows"], ended["test_rows"]) == (40, 30)
    assert "no better validation loss" in ended["early_stop"]
