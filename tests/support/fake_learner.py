"""Training without a framework: a learner that computes nothing and records its rows."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.datasets.rows import ArraySource
from hvdtrain.interfaces.learner import Evaluated, Learner, OptimizerState
from hvdtrain.interfaces.reading import Batch, Dataset
from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import CLASSES, Dense, Flatten
from hvdtrain.networks.random_numbers import initial_weights
from hvdtrain.runs import plots
from hvdtrain.tasks.target import NetworkTarget
from hvdtrain.training import train as training
from support.networks import shaped

NAMES = tuple("0123456789")
MAX_CALLS = 1000
NETWORK = shaped(Network((Flatten(), Dense(CLASSES))), (1, 1, 1))
WEIGHTS = initial_weights(NETWORK, "xavier", 0)


class FakeLearner(Learner):
    """A learner whose weights never change."""

    device = "cpu"

    def __init__(self) -> None:
        self.group = SingleProcess()
        self.taken: Counter[int] = Counter()
        """How often each row was taken."""
        self._calls = itertools.count()

    def _limit_calls(self) -> None:
        assert next(self._calls) < MAX_CALLS, "training does not end"

    def train_step(self, batch: Batch):
        self._limit_calls()
        assert (batch.arrays[1] == batch.rows).all(), "the labels of `numbered` are the numbers of the rows"
        self.taken.update(batch.rows[batch.weights > 0].tolist())
        return 1.0

    def eval_step(self, arrays):
        self._limit_calls()
        return Evaluated(1.0, {"accuracy": float(len(arrays[1]))}, arrays[1])

    def weights(self):
        return WEIGHTS

    def load(self, weights):
        """Nothing to do."""

    def optimizer_state(self):
        return OptimizerState({})

    def load_optimizer_state(self, state):
        """Nothing to do."""


def numbered(samples: int) -> Dataset:
    """Training images whose labels are the numbers of their rows."""
    images = np.zeros((samples, 1, 1, 1), np.uint8)
    test = ArraySource(images[:1], np.zeros(1, np.int64))
    return Dataset("rows", ArraySource(images, np.arange(samples)), test, NAMES)


def use_fakes(monkeypatch, dataset: Dataset) -> list[FakeLearner]:
    """Let `train` use this data and a new fake learner each time; the learners so far."""
    made: list[FakeLearner] = []

    def build(config, network, weights, runtime):
        made.append(FakeLearner())
        return made[-1]

    monkeypatch.setattr(training, "load_target", lambda config, runtime: (NetworkTarget(NETWORK), dataset))
    monkeypatch.setattr(training, "build_learner", build)
    monkeypatch.setattr(plots, "plot_metrics", lambda folder, title, choice: None)
    return made
