"""Training in processes without a framework: a learner in NumPy, for jobs that test the launcher or the training loop.

`install` puts it in the place of MXNet's, with the strategies that every framework has; a rank then starts in a
quarter of the time. It trains one dense layer with SGD and momentum, so that a wrong row, step or state changes its
weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hvdtrain.cli import train as entry_point
from hvdtrain.config.options import Config, Framework, RuntimeOptions
from hvdtrain.datasets.rows import ArraySource
from hvdtrain.frameworks import registry
from hvdtrain.frameworks.engine import Engine
from hvdtrain.interfaces.combining import Combined, Gradients, StepLoss, Types, type_of
from hvdtrain.interfaces.learner import Evaluated, OptimizerState
from hvdtrain.interfaces.reading import PIXEL_MAX, Batch, Dataset
from hvdtrain.interfaces.strategy import Strategy
from hvdtrain.networks.description import Network
from hvdtrain.networks.layers import CLASSES, Dense, Flatten
from hvdtrain.system.phases import FORWARD, UPDATE, phases
from hvdtrain.tasks.target import NetworkTarget
from hvdtrain.training import train as training

NAME = "numpy"
"""In the place of a framework's name, for the programs of this folder."""
ROWS, TEST_ROWS, IMAGE = 23 * 64, 50, (1, 3, 3)
MOMENTUM = "momentum/"


class NumPyStrategy(Strategy):
    """Gradients are combined on the host."""

    sums_shards = True


class NumPyLearner(Engine):
    """A dense layer and softmax."""

    device = "cpu"

    def __init__(self, target: NetworkTarget, weights: dict[str, np.ndarray], strategy: NumPyStrategy) -> None:
        self.group, self._config, self._strategy = strategy.group, strategy.config, strategy
        self._weights = {name: array.copy() for name, array in weights.items()}
        self._momentum = {name: np.zeros_like(array) for name, array in weights.items()}
        self._begin_training()

    def train_step(self, batch: Batch) -> StepLoss:
        self._lr = np.float32(batch.lr)
        return super().train_step(batch)

    def gradient_types(self) -> Types:
        return tuple(type_of(array.dtype, array.shape) for array in self._weights.values())

    def start_statistics(self) -> list[np.ndarray]:
        return []

    def gradients(self, parts: Sequence[Batch]) -> Iterator[Gradients]:
        for batch in parts:
            phases.begin(FORWARD)
            pixels, labels = batch.arrays
            inputs, rows = _flat(pixels), np.arange(len(labels))
            probabilities = _softmax(self.logits(pixels))
            loss = float((batch.weights * -np.log(probabilities[rows, labels])).sum())
            probabilities[rows, labels] -= 1
            outputs = probabilities * batch.weights[:, None]
            yield Gradients(loss, [(outputs.T @ inputs).astype(np.float32), outputs.sum(axis=0, dtype=np.float32)], [])

    def update(self, combined: Combined) -> None:
        phases.begin(UPDATE)
        for (name, weights), gradient in zip(self._weights.items(), combined.arrays, strict=True):
            self._momentum[name] *= self._config.momentum
            self._momentum[name] += gradient
            weights -= self._lr * self._momentum[name]

    def logits(self, images: np.ndarray) -> np.ndarray:
        kernel, bias = self._weights.values()
        return _flat(images) @ kernel.T + bias

    def eval_step(self, arrays: tuple[np.ndarray, ...]) -> Evaluated:
        logits, labels = self.logits(arrays[0]), arrays[1]
        predicted = logits.argmax(axis=1)
        loss = float(-np.log(_softmax(logits)[np.arange(len(labels)), labels]).sum())
        return Evaluated(loss, {"accuracy": float((predicted == labels).sum())}, predicted)

    def weights(self) -> dict[str, np.ndarray]:
        return {name: array.copy() for name, array in self._weights.items()}

    def load(self, weights: dict[str, np.ndarray]) -> None:
        self._weights = {name: weights[name].copy() for name in self._weights}

    def optimizer_state(self) -> OptimizerState:
        return OptimizerState({f"{MOMENTUM}{name}": array.copy() for name, array in self._momentum.items()})

    def load_optimizer_state(self, state: OptimizerState) -> None:
        self._momentum = {name: state.arrays[f"{MOMENTUM}{name}"].copy() for name in self._momentum}


def _flat(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1).astype(np.float32) / PIXEL_MAX


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def _load_target(config: Config, runtime: RuntimeOptions) -> tuple[NetworkTarget, Dataset]:
    """Random images, whose labels are the place of their brightest pixel."""
    images = np.random.default_rng(0).integers(0, 256, (ROWS + TEST_ROWS, *IMAGE), np.uint8)
    labels = images.reshape(len(images), -1).argmax(axis=1)
    train, test = (ArraySource(images[part], labels[part]) for part in (slice(ROWS), slice(ROWS, None)))
    network = Network((Flatten(), Dense(CLASSES))).for_data(IMAGE, 9, config.model)
    return NetworkTarget(network), Dataset("pixels", train, test, tuple("123456789"))


def install() -> Framework:
    """Let training in this process use it; returns the framework whose place it takes."""
    registry.ENTRIES["mxnet"] = lambda: tuple(registry.on_host(NumPyStrategy, NumPyLearner))
    registry.require = registry.settle = lambda *_: None  # type: ignore[assignment]
    training.load_target = _load_target  # type: ignore[assignment]
    entry_point.examine_host = lambda: []
    return "mxnet"
