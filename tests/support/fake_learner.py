"""Training without a framework: a learner that computes nothing and records its rows."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np

from hvdtrain.collectives.single_process import SingleProcess
from hvdtrain.interfaces import Dataset, OptimizerState
from hvdtrain.networks.initial_weights import initial_weights
from hvdtrain.networks.registry import NETWORKS
from hvdtrain.runs import plots
from hvdtrain.training import train as training

CLASSES = tuple("0123456789")
MOST_CALLS = 1000
WEIGHTS = initial_weights(NETWORKS["lenet"], "xavier", 0)


class FakeLearner:
    """A learner whose weights never change."""

    device, devices, state_by_rank, skipped = "cpu", 1, False, 0

    def __init__(self) -> None:
        self.group = SingleProcess()
        self.taken: Counter[int] = Counter()
        """How often each row was taken."""
        self._calls = itertools.count()

    def _limit_calls(self) -> None:
        assert next(self._calls) < MOST_CALLS, "training does not end"

    def train_step(self, images, labels, weights, lr):
        self._limit_calls()
        self.taken.update(labels[weights > 0].tolist())
        return 1.0

    def eval_step(self, images, labels):
        self._limit_calls()
        return 1.0, labels

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
    return Dataset("rows", images, np.arange(samples), images[:1], np.zeros(1, np.int64), CLASSES)


def use_fakes(monkeypatch, dataset: Dataset) -> list[FakeLearner]:
    """Let `train` use this data and a new fake learner each time; the learners so far."""
    made: list[FakeLearner] = []

    def build(config, weights, runtime):
        made.append(FakeLearner())
        return made[-1]

    monkeypatch.setattr(training, "load_dataset", lambda name, network, offline: dataset)
    monkeypatch.setattr(training, "build_learner", build)
    monkeypatch.setattr(plots, "plot_metrics", lambda folder, title: None)
    return made
