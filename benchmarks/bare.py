"""What the hand-written loops share: the data as plain arrays, the first weights, and how they are timed.

The loops are as fast as a careful user writes them: data as float32 in memory, a fresh permutation an epoch, the
loss fetched once in 20 steps. The clock is that of hvdtrain's own record: images/s is the median over intervals of 20
steps, the first left out.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import numpy as np

from hvdtrain.datasets import registry
from hvdtrain.networks.initial_weights import initial_weights
from hvdtrain.networks.registry import NETWORKS

GLOBAL_BATCH, LR, INTERVAL = 256, 0.2, 20


def arguments() -> tuple[str, int]:
    """Data set and number of steps, from the command line."""
    return sys.argv[1], int(sys.argv[2])


def load(name: str) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Images in [0, 1], float32 (n, 1, 28, 28); labels; first weights."""
    network = NETWORKS["lenet"]
    dataset = registry.load_dataset(name, network)
    return dataset.train_images.astype(np.float32) / 255, dataset.train_labels, initial_weights(network, "book", 0)


def batches(samples: int, steps: int, rank: int, size: int):
    """This rank's rows of each step."""
    local, rows = GLOBAL_BATCH // size, np.array([], int)
    generator = np.random.default_rng(0)
    for _ in range(steps):
        if len(rows) < GLOBAL_BATCH:
            rows = generator.permutation(samples)
        yield rows[rank * local : (rank + 1) * local]
        rows = rows[GLOBAL_BATCH:]


class Clock:
    """Times intervals of 20 steps; `report` prints one JSON line."""

    def __init__(self) -> None:
        self._rates: list[float] = []
        self._began = time.perf_counter()

    def tick(self, step: int, fetch_loss) -> None:
        """Call after each step; waits for the loss at an interval's end."""
        if (step + 1) % INTERVAL == 0:
            float(fetch_loss())
            now = time.perf_counter()
            self._rates.append(INTERVAL * GLOBAL_BATCH / (now - self._began))
            self._began = now

    def report(self) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"images_per_s": float(np.median(self._rates[1:])), "peak_rss_mb": peak}), flush=True)
