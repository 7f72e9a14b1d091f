"""What the peers' programs of this benchmark share: the place of a rank, data, weights, schedule, the record.

usage of such a program, which `run.py` starts on each host: python FILE JSON FOLDER [STEPS] [LOG_EVERY]

JSON has the options. The order of the rows, the initial weights and the learning rates are hvdtrain's own, so that only
the loop and the communication differ. Rank 0 writes FOLDER/metrics.jsonl, with the names of hvdtrain's.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from hvdtrain.config.options import from_recipe
from hvdtrain.datasets import registry, sharding
from hvdtrain.networks.random_numbers import initial_weights
from hvdtrain.networks.registry import NETWORKS
from hvdtrain.training.run import last_step, learning_rate

NOT_OPTIONS = ("hook", "rank", "start", "threshold")
"""Of the JSON, those of the peers themselves."""
RANK, SIZE = (int(os.environ[f"HVDTRAIN_{name}"]) for name in ("RANK", "SIZE"))
MASTER, PORT = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1


class Job:
    """Options, data and network, of the command line."""

    def __init__(self) -> None:
        text, folder, *numbers = sys.argv[1:]
        self.options = json.loads(text)
        steps, self.log_every = map(int, numbers or (0, 20))
        known = {name: value for name, value in self.options.items() if name not in (*NOT_OPTIONS, "recipe")}
        self.config = from_recipe(self.options["recipe"], **known, max_steps=steps, framework="torch")
        self.dataset = registry.load_dataset(self.config.data)
        shape, classes = self.dataset.input_shape, len(self.dataset.classes)
        self.network = NETWORKS[self.config.model].for_data(shape, classes, self.config.model)
        self.weights = initial_weights(self.network, self.config.init, self.config.seed)
        self.samples = len(self.dataset.train)
        self.steps_per_epoch = sharding.steps_per_epoch(self.samples, self.config.batch_size, "drop")
        self.steps = last_step(self.config, self.steps_per_epoch * self.config.batch_size, SIZE)
        self._file = None
        if RANK == 0:
            Path(folder).mkdir(parents=True)
            self._file = open(Path(folder) / "metrics.jsonl", "w", buffering=1)  # noqa: SIM115  (until the end)
        self._began = time.perf_counter()

    def batches(self) -> Iterator[tuple[int, float, np.ndarray, np.ndarray]]:
        """Step, learning rate, images in [0, 1] and labels of this rank."""
        cut = sharding.Cut.of(RANK, SIZE)
        for step in range(self.steps):
            epoch, place = divmod(step, self.steps_per_epoch)
            if place == 0:
                order = sharding.order(self.config.seed, epoch, self.samples)
            (part,) = sharding.slices_of_step(order, place, self.config.batch_size, "drop", cut)
            images, labels = self.dataset.train[part.rows]
            yield step, learning_rate(self.config, step, self.steps_per_epoch), images.astype(np.float32) / 255, labels

    def after(self, step: int, wait: Callable[[], float], evaluate: Callable[[], tuple[float, int]]) -> None:
        """Write records. wait: for the end of the step; returns its loss. evaluate: right answers and rows."""
        done = step + 1
        if done % self.log_every == 0:
            loss = wait()
            seconds = time.perf_counter() - self._began
            self._write("train", done, images_per_s=self.log_every * self.config.batch_size / seconds, loss=loss)
            self._began = time.perf_counter()
        if done % self.steps_per_epoch == 0 or done == self.steps:
            right, rows = evaluate()
            self._write("test", done, accuracy=right / rows)
            self._began = time.perf_counter()

    def test_rows(self, rank: int = RANK, size: int = SIZE) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Images in [0, 1] and labels of a rank's share of the test part."""
        for rows in sharding.evaluation(len(self.dataset.test), 256, sharding.Cut.of(rank, size)):
            images, labels = self.dataset.test[rows]
            yield images.astype(np.float32) / 255, labels

    def _write(self, kind: str, step: int, **values: float) -> None:
        if self._file:
            epoch = step / self.steps_per_epoch
            record = {"kind": kind, "step": step, "time": round(time.time(), 3), "epoch": epoch, **values}
            self._file.write(json.dumps(record) + "\n")
