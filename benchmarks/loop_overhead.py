"""What hvdtrain's loop itself costs per step: training with a learner that computes nothing.

    python benchmarks/loop_overhead.py [--steps 3000] [--batch-size 256]

A step of a small network takes a GPU about 0.1 ms, in which the loop must have prepared the next one.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.rows import ArraySource
from hvdtrain.interfaces.learner import Evaluated, Learner, OptimizerState
from hvdtrain.interfaces.reading import Batch, Dataset
from hvdtrain.networks.random_numbers import initial_weights
from hvdtrain.networks.registry import NETWORKS
from hvdtrain.tasks.target import NetworkTarget
from hvdtrain.training import train as training

ROWS = 10000
SHAPE = (1, 28, 28)
CLASSES = tuple("0123456789")


class NullLearner(Learner):
    """Notes when steps begin and end."""

    device = "cpu"

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.group, self._weights = SingleProcess(), weights
        self.began: list[float] = []

    def train_step(self, batch: Batch) -> float:
        self.began.append(time.perf_counter())
        return 1.0

    def eval_step(self, arrays: tuple[np.ndarray, ...]) -> Evaluated:
        return Evaluated(1.0, {"accuracy": 0.0})

    def weights(self) -> dict[str, np.ndarray]:
        return self._weights

    def load(self, weights: dict[str, np.ndarray]) -> None:
        """Nothing to do."""

    def optimizer_state(self) -> OptimizerState:
        return OptimizerState({})

    def load_optimizer_state(self, state: OptimizerState) -> None:
        """Nothing to do."""


def measure(steps: int, batch_size: int, log_every: int) -> tuple[float, float]:
    """Microseconds per step: the median of steps without logging, and the mean of all up to the last logging step."""
    images, labels = np.zeros((ROWS, *SHAPE), np.uint8), np.arange(ROWS) % len(CLASSES)
    source = ArraySource(images, labels)
    dataset = Dataset("zeros", source, ArraySource(images[:10], labels[:10]), CLASSES)
    network = NETWORKS["lenet"].for_data(SHAPE, len(CLASSES), "lenet")
    learner = NullLearner(initial_weights(network, "xavier", 0))
    training.load_target = lambda config, runtime: (NetworkTarget(network), dataset)  # type: ignore[assignment]
    training.build_learner = lambda *_: learner  # type: ignore[assignment,return-value]
    per_epoch = -(-ROWS // batch_size)
    config = Config(strategy="single", batch_size=batch_size, epochs=-(-steps // per_epoch))
    with tempfile.TemporaryDirectory() as folder:
        runtime = RuntimeOptions(runs=Path(folder), log_every=log_every, quiet=True, checkpoint_every=("0s",))
        training.train(config, runtime, list)
    taken = [
        [1e6 * (late - early) for early, late in itertools.pairwise(part)]
        for part in (learner.began[first : first + per_epoch] for first in range(0, len(learner.began), per_epoch))
    ]
    whole = [one for part in taken[1:] for one in part]
    plain = [one for part in taken[1:] for number, one in enumerate(part, 1) if number % log_every]
    return statistics.median(plain), statistics.fmean(whole)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    found = [measure(options.steps, options.batch_size, options.log_every) for _ in range(options.repeats)]
    median, mean = (min(values) for values in zip(*found, strict=True))
    print(f"median step {median:.1f} us, mean with logging steps {mean:.1f} us")


if __name__ == "__main__":
    main()
