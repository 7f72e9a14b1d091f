"""What a user's code keeps outside of its model is an error before the first step; it asks `hvdtrain.progress()`."""

import ast
import contextlib
import importlib
import itertools

import numpy as np
import pytest
from support.drawn_models import task_class
from support.fits import as_plain, trained
from support.in_process import inside, train_here
from support.jobs import result
from support.model_steps import assert_close, of_pieces
from support.stack import FRAMEWORKS
from support.user_loop_runs import starter

import hvdtrain
from hvdtrain.errors import UserError
from hvdtrain.training.replay import choose, replay

for name in ("torch", "tensorflow", "mxnet"):  # before a test, as they set variables of the environment
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
STATE, LEAF, LEFT = "is another one after a step", "that is kept from step to step, and is no parameter", "leaves out"
ASKING = [
    *(("torch", *case) for case in (("asking", "plain"), ("linear", "asked"))),
    *(("mxnet", *case) for case in (("asking", "plain"), ("asking, in a graph", "plain"), ("dense", "asked"))),
    ("tensorflow", "dense", "asked"),
]


def kept(*where):
    """(framework, piece, losses) that keep something, which tasks only or all show."""
    cases = []
    for framework in FRAMEWORKS:
        with contextlib.suppress(ImportError):
            kinds = importlib.import_module(f"support.drawn.of_{framework}")
            first = next(iter(kinds.PIECES))
            cases += [(framework, name, "plain") for name, piece in kinds.PIECES.items() if piece.outside in where]
            cases += [(framework, first, name) for name, piece in kinds.LOSSES.items() if piece.outside in where]
    return cases


@pytest.mark.parametrize(("framework", "piece", "losses"), kept("tasks", "all"))
def test_a_task_that_keeps_what_no_checkpoint_has_is_an_error(framework, piece, losses, tmp_path):
    drawn = of_pieces(framework, piece, losses=losses)
    with pytest.raises(UserError) as caught:
        trained(tmp_path, task_class(drawn)(), framework, **as_plain(drawn))
    assert any(text in caught.value.reason for text in (STATE, LEAF, LEFT)) and not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("framework", "piece", "losses"), [case for case in kept("all") if case[0] != "tensorflow"])
def test_a_script_that_trains_what_no_checkpoint_has_is_an_error_before_its_first_step(
    framework, piece, losses, tmp_path
):
    drawn = of_pieces(framework, piece, losses=losses, odds=())
    with pytest.raises(UserError) as caught, starter(tmp_path, framework)() as run:
        drawn.kinds.script(drawn, run)
    assert any(text in caught.value.reason for text in (LEAF, LEFT))
    assert not [*tmp_path.rglob("checkpoints/*")]


@pytest.mark.parametrize(("framework", "piece", "losses"), ASKING)
def test_what_asks_for_progress_trains_as_in_the_frameworks_own_loop(framework, piece, losses, tmp_path):
    pytest.importorskip(framework)
    drawn = of_pieces(framework, piece, losses=losses)
    saved = trained(tmp_path, task_class(drawn)(), framework, **as_plain(drawn))
    weights = saved.weights
    if framework == "tensorflow":  # as a plain loop has no names that last
        weights = {name.partition(".")[0]: array for name, array in weights.items()}
    assert_close(weights, drawn.kinds.plain(drawn, True))


def scaled(outputs, labels):
    tf = importlib.import_module("tensorflow")
    factor = 10.0 if hvdtrain.progress().training else 1.0
    return factor * tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)


@pytest.mark.parametrize("rows", [4, 12])
def test_a_function_that_tensorflow_compiles_once_may_not_ask_for_progress(rows, tmp_path):
    """It would keep `training`; branches and loops within a graph of hvdtrain's do not."""
    tf = pytest.importorskip("tensorflow")
    compiled, numbers = tf.function(scaled), np.arange(60, dtype=np.float32).reshape(12, 5)

    class Task:
        def data(self):
            return (numbers, np.arange(12) % 2), (numbers, np.arange(12) % 2)

        def model(self):
            return tf.keras.Sequential([tf.keras.layers.Dense(2)])

        def losses(self, outputs, labels):
            return compiled(outputs, labels)

    class Branching(Task):
        def losses(self, outputs, labels):
            return tf.cond(tf.size(labels) > 0, lambda: scaled(outputs, labels), lambda: scaled(outputs, labels))

    with pytest.raises(UserError, match=r"a tf.function of the task asks for hvdtrain.progress\(\)"):
        trained(tmp_path, Task(), "tensorflow", batch_size=rows)
    assert trained(tmp_path, Branching(), "tensorflow", batch_size=rows)


TASK = """
import pathlib

import numpy as np
import torch
from torch import nn

import hvdtrain

SEEN = pathlib.Path(__file__).with_name("seen.txt")

class Task:
    def data(self):
        x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
        y = (x[:, 0] > 0).astype(np.int64)
        return (x[:48], y[:48]), (x[48:], y[48:])

    def model(self):
        return nn.Linear(4, 2)

    def losses(self, outputs, labels):
        now = hvdtrain.progress()
        with SEEN.open("a") as file:
            file.write(f"{tuple(now)}\\n")
        smoothing = 0.1 if now.training else 0.0
        losses = nn.functional.cross_entropy(outputs, labels, reduction="none", label_smoothing=smoothing)
        return losses + min(1.0, now.step / 5) * outputs.square().sum(1)
"""
OPTIONS = ("--epochs", "2", "--batch-size", "16", "--max-steps", "5", "--lr", "0.1", "--checkpoint-every", "1")


@pytest.fixture
def here(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "task.py").write_text(TASK)
    return tmp_path


def train(folder, *options):
    """The progress that the losses have seen after the trial, each once in a row."""
    (folder / "seen.txt").unlink(missing_ok=True)
    train_here(folder, "torch", "--model", "task.py:Task", *OPTIONS, *options)
    seen = [ast.literal_eval(line) for line, _ in itertools.groupby((folder / "seen.txt").read_text().splitlines())]
    return seen[len(seen) - seen[::-1].index((0, 0, False)) :]


@pytest.mark.parametrize("shards", [(), ("--shards", "3")])
def test_progress_is_that_of_the_records_also_after_a_resume_and_in_a_replay(shards, here):
    steps = [(0, 0, True), (1, 0, True), (2, 0, True), (3, 1, False), (3, 1, True), (4, 1, True), (5, 1, False)]
    assert train(here, *shards) == steps
    with inside(here):
        whole = hvdtrain.load("runs/run")
    assert hvdtrain.progress() == (5, 1, False)
    train(here, *shards, "--name", "part", "--max-steps", "2")
    assert train(here, "--resume", "runs/part", "--max-steps", "5")[-5:] == steps[2:]
    with inside(here):
        resumed = hvdtrain.load("runs/part")
    assert_close(*({name: array.numpy() for name, array in m.state_dict().items()} for m in (whole, resumed)), 0)
    with inside(here):
        assert replay(choose(here / "runs" / "run", 3)).compared == 3


PERMUTED = """
import numpy as np
import torch

rows = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)


class Permuted(torch.nn.Linear):
    def __init__(self):
        super().__init__(6, 2)
        self.order = torch.randperm(6)

    def forward(self, x):
        return super().forward(x[:, self.order])


class Task:
    def data(self):
        return (rows, (rows[:, 0] > 0).astype(np.int64)), (rows, (rows[:, 0] > 0).astype(np.int64))

    def model(self):
        return Permuted()
"""


def test_a_model_is_loaded_with_the_seed_of_its_run(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "task.py").write_text(PERMUTED)
    run = train_here(tmp_path, "torch", "--model", "task.py:Task", "--epochs", "1", "--batch-size", "8", "--seed", "5")
    with inside(tmp_path):
        model = hvdtrain.load("runs/run", task="task.py:Task")
        rows = importlib.import_module("torch").from_numpy(np.random.default_rng(0).normal(size=(40, 6)).astype("f4"))
    labels = (rows[:, 0] > 0).long()
    loss = importlib.import_module("torch").nn.functional.cross_entropy(model(rows), labels)
    assert float(loss) == pytest.approx(result(run)["loss"], rel=1e-4)
