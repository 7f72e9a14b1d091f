"""What two ranks with --sync-every compute, in one process: a learner for each, and their mean in NumPy."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets import sharding
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.interfaces.learner import Learner
from hvdtrain.interfaces.reading import Batch
from hvdtrain.networks.description import Weights
from hvdtrain.tasks.registry import load_target
from hvdtrain.training.run import learning_rate

RANKS = 2


def sync(learners: list[Learner]) -> None:
    """Give all the mean of their weights, in float64: from equal ones on, that is the mean of their changes."""
    trained = [learner.weights() for learner in learners]
    mean = {name: np.mean([weights[name] for weights in trained], axis=0, dtype=np.float64) for name in trained[0]}
    for learner in learners:
        learner.load({name: value.astype(np.float32) for name, value in mean.items()})


def train(config: Config, runtime: RuntimeOptions) -> Weights:
    """The final weights, and what begins with the number of a rank and a slash: the state of its optimizer."""
    target, dataset = load_target(config, runtime)
    alone = dataclasses.replace(config, strategy="single", sync_every=1, compression="none")
    learners = [build_learner(alone, target, target.initial_weights(config), runtime) for _ in range(RANKS)]
    samples, batch = len(dataset.train), config.batch_size
    per_epoch = sharding.steps_per_epoch(samples, batch, config.remainder)
    for step in range(min(config.epochs * per_epoch, config.max_steps or sys.maxsize)):
        epoch, in_epoch = divmod(step, per_epoch)
        order = sharding.order(config.seed, epoch, samples)
        for rank, learner in enumerate(learners):
            cut = sharding.Cut.of(rank, RANKS)
            ((rows, weights),) = sharding.slices_of_step(order, in_epoch, batch, config.remainder, cut)
            lr = learning_rate(config, step, per_epoch)
            float(learner.train_step(Batch(dataset.train[rows], weights, lr, step, rows, rank)))
        if (in_epoch + 1) % config.sync_every == 0 or in_epoch + 1 == per_epoch:
            sync(learners)
    states = ((rank, learner.optimizer_state().arrays.items()) for rank, learner in enumerate(learners))
    return learners[0].weights() | {f"{rank}/{name}": array for rank, arrays in states for name, array in arrays}
