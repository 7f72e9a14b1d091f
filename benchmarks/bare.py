"""What the hand-written loops share: data as plain arrays, initial weights, and time measurement.

The loops are as fast as a careful user would write them: data as float32 in memory, a new permutation per epoch, the
loss read once in 20 steps. Speed is measured as in hvdtrain's own record: images/s is the median over intervals of 20
steps, without the first.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import SupportsFloat

import numpy as np

from hvdtrain.datasets import registry
from hvdtrain.networks.random_numbers import initial_weights
from hvdtrain.networks.registry import NETWORKS

GLOBAL_BATCH, LR, INTERVAL = 256, 0.2, 20


def arguments() -> tuple[str, int]:
    """Data set and number of steps, from the command line."""
    return sys.argv[1], int(sys.argv[2])


def load(name: str) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Images in [0, 1], float32 (n, 1, 28, 28); labels, int64 (n,); initial weights."""
    dataset = registry.load_dataset(name)
    network = NETWORKS["lenet"].for_data(dataset.input_shape, len(dataset.classes), "lenet")
    images, labels = dataset.train[np.arange(len(dataset.train))]
    return images.astype(np.float32) / 255, labels, initial_weights(network, "book", 0)


def batches(samples: int, steps: int, rank: int, size: int) -> Iterator[np.ndarray]:
    """The row numbers of this rank for each step."""
    local, rows = GLOBAL_BATCH // size, np.array([], int)
    generator = np.random.default_rng(0)
    for _ in range(steps):
        if len(rows) < GLOBAL_BATCH:
            rows = generator.permutation(samples)
        yield rows[rank * local : (rank + 1) * local]
        rows = rows[GLOBAL_BATCH:]


class Clock:
    """Measures intervals of 20 steps on `batch` images of all ranks; `report` prints one line of JSON."""

    def __init__(self, batch: int = GLOBAL_BATCH) -> None:
        self._batch = batch
        self._rates: list[float] = []
        self._began = time.perf_counter()

    def tick(self, step: int, fetch_loss: Callable[[], SupportsFloat]) -> None:
        """Call after each step; reads the loss, and so waits for the step, at the end of an interval."""
        if (step + 1) % INTERVAL == 0:
            float(fetch_loss())
            now = time.perf_counter()
            self._rates.append(INTERVAL * self._batch / (now - self._began))
            self._began = now

    def report(self) -> None:
        """Print images/s, and the peak memory of this process in MB of 2^20 bytes."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"images_per_s": float(np.median(self._rates[1:])), "peak_rss_mb": peak}), flush=True)
