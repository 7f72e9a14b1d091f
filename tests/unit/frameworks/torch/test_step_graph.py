"""Steps as graphs: with operations recorded on the CPU in place of CUDA's graphs, they train as steps without."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.networks import shaped
from support.recorded_operations import RecordedOperations

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.frameworks.registry import build_learner, check_request
from hvdtrain.frameworks.torch import objective, step_graph
from hvdtrain.interfaces import Batch
from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import CLASSES, BatchNorm, Conv, Dense, Dropout, Flatten, Pool, Relu
from hvdtrain.tasks.target import NetworkTarget
from hvdtrain.tasks.user import make_task

LAYERS = Conv(4, 3), BatchNorm(), Relu(), Pool("average", 2), Flatten(), Dense(12), Dropout(0.4), Dense(CLASSES)
NETWORK = NetworkTarget(shaped(Network(LAYERS), (1, 8, 8)))
PIXELS = np.random.default_rng(0).integers(0, 256, (64, 1, 8, 8), np.uint8)
LABELS = np.random.default_rng(1).integers(0, 10, 64)
SIZES = (8, 8, 8, 5, 8, 8, 8, 5, 5, 8, 5, 5, 8, 3)
"""Rows of the steps: enough of two numbers for a graph, and one of a third."""


@pytest.fixture
def recorded(monkeypatch):
    """Graphs are recorded operations of the CPU; the class counts them."""
    monkeypatch.setitem(step_graph.CAPTURES, "cpu", RecordedOperations)
    monkeypatch.setattr(RecordedOperations, "captures", 0)
    monkeypatch.setattr(RecordedOperations, "replays", 0)
    return RecordedOperations


def batches(kept=False):
    """Steps with other rows, row weights and learning rates each; one row has no weight."""
    random = np.random.default_rng(2)
    for step, size in enumerate(SIZES):
        rows = random.permutation(len(PIXELS))[:size]
        weights = random.random(size, np.float32) / size
        weights[0] = 0
        lr = float(np.float32(0.3 / (step + 1)))  # a graph has it as float32
        yield Batch(() if kept else (PIXELS[rows], LABELS[rows]), weights, lr, step, rows)


def learner(graph, target=NETWORK, **options):
    config = Config(**{"strategy": "single", **options})
    weights = target.initial_weights(config)
    return build_learner(config, target, weights, RuntimeOptions(device="auto", cuda_graph=graph, quiet=True))


def trained(graphed, steps):
    """Losses, weights and optimizer state after these steps; losses are read at the end."""
    losses = [graphed.train_step(batch) for batch in steps]
    weights = graphed.weights() | {f"ema/{name}": array for name, array in graphed.averages().items()}
    return [float(loss) for loss in losses], weights, graphed.optimizer_state()


def assert_same(actual, expected):
    assert actual[0] == expected[0]
    for ours, theirs in ((actual[1], expected[1]), (actual[2].arrays, expected[2].arrays)):
        assert ours.keys() == theirs.keys()
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    assert actual[2].updates == expected[2].updates


WHOLE = {
    "sgd": {},
    "nesterov": {"nesterov": True, "weight_decay": 0.01},
    "plain sgd": {"momentum": 0.0},
    "adam": {"optimizer": "adam", "weight_decay": 0.01},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.5, "no_decay": ("conv*",)},
    "ema": {"ema": 0.5},
    "bf16": {"precision": "bf16"},
    "accumulate": {"accumulate": 3},
    "clip": {"clip_norm": 0.05, "accumulate": 2},
    "adam, bf16, clip": {"optimizer": "adam", "precision": "bf16", "clip_norm": 0.05},
}
PARTS = {
    "skip": {"on_nan": "skip", "ema": 0.5},
    "fp16": {"precision": "fp16"},
    "fp16, adam, accumulate": {"precision": "fp16", "optimizer": "adam", "accumulate": 2},
    "ring": {"strategy": "ring"},
    "ring, adam": {"strategy": "ring", "optimizer": "adam"},
    "ddp": {"strategy": "ddp"},
}


@pytest.mark.parametrize("kept", [False, True], ids=["copied", "kept"])
@pytest.mark.parametrize("name", [*WHOLE, *PARTS])
def test_a_graph_trains_bit_for_bit_as_the_step_without_one(recorded, monkeypatch, name, kept):
    options = {**WHOLE, **PARTS}[name]
    graphed = learner(True, **options)
    if kept:
        monkeypatch.setattr(objective, "_fits", lambda size, device: True)
        assert graphed.keep_rows((PIXELS, LABELS))
    actual = trained(graphed, batches(kept))
    assert_same(actual, trained(learner(False, **options), batches()))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    assert graphed._graphed.whole == (name in WHOLE)
    assert recorded.captures == 2
    assert recorded.replays == len(SIZES) - 2 * step_graph.WARM_UP - 1


@pytest.mark.parametrize("options", [{}, {"optimizer": "adam"}, {"precision": "fp16"}], ids=["sgd", "adam", "fp16"])
def test_weights_and_optimizer_state_are_loaded_into_a_captured_step(recorded, options):
    """Into the learner that has graphs, and into a new one, as in a resumed run."""
    steps = list(batches())
    graphed = learner(True, **options)
    trained(graphed, steps[:6])
    middle = graphed.weights(), graphed.optimizer_state()
    expected = trained(graphed, steps[6:])
    for other in (graphed, learner(True, **options), learner(False, **options)):
        other.load(middle[0])
        other.load_optimizer_state(middle[1])
        assert_same(trained(other, steps[6:]), expected)


class Task:
    """Two losses of one parameter, one parameter without a gradient, and random numbers."""

    def model(self):
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 10))
        model.unused = torch.nn.Parameter(torch.ones(3))
        model.first, model.second = (torch.nn.Parameter(torch.zeros(8)) for _ in range(2))
        return model

    def data(self):
        rows = PIXELS.astype(np.float32), LABELS
        return rows, rows


class WaitingTask(Task):
    """The model's loss waits for the device."""

    def losses(self, outputs, labels):
        assert outputs.max().item() < np.inf
        return torch.nn.functional.cross_entropy(outputs, labels, reduction="none")


class AliasingTask(Task):
    """Two parameters get the same tensor as their gradients."""

    def model(self):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = (torch.nn.Parameter(torch.zeros(10)) for _ in range(2))

            def forward(self, x):
                return x.flatten(1)[:, :10] * (self.first + self.second)

        return Model()


@pytest.mark.parametrize("task", [Task, AliasingTask])
def test_tasks_with_random_numbers_and_unusual_gradients(recorded, task):
    task = make_task("task.py:Task", task)
    options = {"clip_norm": 0.1, "accumulate": 2, "model": "task.py:Task"}
    steps = [batch._replace(arrays=(batch.arrays[0].astype(np.float32), batch.arrays[1])) for batch in batches()]
    actual = trained(learner(True, task, **options), steps)
    assert_same(actual, trained(learner(False, task, **options), steps))
    assert recorded.captures == 2


def test_a_step_that_waits_for_the_device_is_an_error(recorded):
    graphed = learner(True, make_task("task.py:Task", WaitingTask), model="task.py:Task")
    steps = [batch._replace(arrays=(batch.arrays[0].astype(np.float32), batch.arrays[1])) for batch in batches()]
    with pytest.raises(UserError, match=r"^--cuda-graph: the step cannot be captured \(.*operation not permitted"):
        trained(graphed, steps)


@pytest.mark.parametrize(
    ("options", "runtime", "text"),
    [
        ({"strategy": "manual"}, {}, "--strategy manual has no step to capture in torch"),
        ({"batch_norm": "sync"}, {}, "with --batch-norm sync, ranks exchange values"),
        ({}, {"device": "cpu"}, "--device cpu has no GPU"),
        ({"strategy": "horovod", "op": "adasum"}, {}, "--op adasum combines"),
    ],
)
def test_what_cannot_be_captured_is_an_error_before_training(options, runtime, text):
    if "op" in options:
        pytest.importorskip("horovod.torch")
    with pytest.raises(UserError, match=f"^--cuda-graph: {text}"):
        check_request(Config(**{"strategy": "single", **options}), NETWORK, RuntimeOptions(cuda_graph=True, **runtime))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_graph_is_an_error():
    with pytest.raises(UserError, match=r"^--cuda-graph: this rank trains on cpu"):
        learner(True)
    assert not learner(False).keep_rows((PIXELS, LABELS)), "the CPU has the rows in memory already"
