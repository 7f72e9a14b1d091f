"""hvdtrain's step on a GPU against a bare PyTorch loop with a CUDA graph and against eager PyTorch, in one process.

hvdtrain trains as always, with its loop, records and logging steps. Between blocks of its steps, the other two make as
many steps of their own, so that all three see the same machine. Prints one JSON object. On a CPU, recorded operations
stand for graphs, which only shows that this program works.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.rows import ArraySource
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.frameworks.torch import step_graph
from hvdtrain.interfaces import Dataset
from hvdtrain.networks.registry import NETWORKS
from hvdtrain.tasks.target import NetworkTarget
from hvdtrain.training import train as training

SHAPE, CLASSES = (1, 28, 28), tuple("0123456789")
LR, MOMENTUM = 0.05, 0.9


def lenet() -> nn.Module:
    """The network that hvdtrain calls lenet, as one writes it in PyTorch."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


class Rival:
    """A loop without hvdtrain, whose data is on the device. graph: steps are one CUDA graph."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, batch: int, device: str, graph: bool) -> None:
        self._device, self._batch, self._samples = device, batch, len(images)
        self._images, self._labels = (torch.from_numpy(one).to(device) for one in (images, labels))
        self._model = lenet().to(device)
        fused = {"fused": True} if graph else {}
        self._optimizer = torch.optim.SGD(self._model.parameters(), LR, MOMENTUM, **fused)
        self._rows = torch.zeros(batch, dtype=torch.int64, device=device)
        pinned = device != "cpu"
        self._slots = [torch.zeros(batch, dtype=torch.int64, pin_memory=pinned) for _ in range(8)]
        self._copied = [torch.cuda.Event() if pinned else None for _ in self._slots]
        self.step: Callable[[], Any] = self._step
        if graph:
            capture = step_graph.CAPTURES[device](device)
            for _ in range(3):
                capture.warm_up(self._step)
            self._graph = capture.capture(self._step)
            self.step = self._graph.replay

    def _step(self) -> torch.Tensor:
        images = self._images.index_select(0, self._rows).float().div_(255)
        loss = nn.functional.cross_entropy(self._model(images), self._labels.index_select(0, self._rows))
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def block(self, steps: int) -> None:
        """Make this many steps, in a random order of rows."""
        order = torch.from_numpy(np.random.default_rng(0).permutation(self._samples))
        for step in range(steps):
            slot = step % len(self._slots)
            event = self._copied[slot]
            if event:
                event.synchronize()
            first = step * self._batch % (self._samples - self._batch + 1)
            self._slots[slot].copy_(order[first : first + self._batch])
            self._rows.copy_(self._slots[slot], non_blocking=True)
            if event:
                event.record()
            self.step()


class Measurement:
    """Interleaves blocks of hvdtrain's steps with those of the rivals."""

    def __init__(self, device: str, blocks: int, steps: int, batch: int, log_every: int) -> None:
        self._device, self._blocks, self._steps, self._batch, self._log_every = device, blocks, steps, batch, log_every
        self._per_epoch = 2 * steps + 10
        self.seconds: dict[str, list[float]] = {"hvdtrain": [], "bare graph": [], "eager": []}
        self.memory: dict[str, float] = {}
        self._rivals: dict[str, Rival] = {}
        self._began: float | None = None
        random = np.random.default_rng(0)
        self._images = random.integers(0, 256, (self._per_epoch * batch, *SHAPE), np.uint8)
        self._labels = random.integers(0, len(CLASSES), len(self._images))

    def run(self) -> None:
        """Train, and measure."""
        source = ArraySource(self._images, self._labels)
        dataset = Dataset("random", source, ArraySource(self._images[:64], self._labels[:64]), CLASSES)
        network = NETWORKS["lenet"].for_data(SHAPE, len(CLASSES), "lenet")
        training.load_target = lambda config, runtime: (NetworkTarget(network), dataset)  # type: ignore[assignment]
        training.build_learner = self._build  # type: ignore[assignment]
        epochs = -(-self._blocks // 2) + 1
        config = Config(strategy="single", batch_size=self._batch, epochs=epochs, lr=LR, schedule="constant")
        with tempfile.TemporaryDirectory() as folder:
            runtime = RuntimeOptions(
                runs=Path(folder), cuda_graph=True, quiet=True, checkpoint_every="0s", log_every=self._log_every
            )
            training.train(config, runtime, list)

    def _build(self, *arguments: Any) -> Any:
        learner = build_learner(*arguments)
        train_step = learner.train_step

        def timed(batch: Any) -> Any:
            at = batch.step % self._per_epoch
            if at in (5, 5 + self._steps, 5 + 2 * self._steps) and batch.step >= self._per_epoch:
                self._between(last=at == 5 + 2 * self._steps)
            return train_step(batch)

        learner.train_step = timed
        return learner

    def _between(self, last: bool) -> None:
        """End hvdtrain's block, if one began, let the rivals run, and begin the next one unless it was the last."""
        self._wait()
        if self._began is not None:
            self.seconds["hvdtrain"].append(time.perf_counter() - self._began)
        if not self._rivals:
            self._make_rivals()
        for name, rival in self._rivals.items():
            rival.block(5)
            self._wait()
            began = time.perf_counter()
            rival.block(self._steps)
            self._wait()
            self.seconds[name].append(time.perf_counter() - began)
        self._began = None if last else time.perf_counter()

    def _make_rivals(self) -> None:
        self.memory["hvdtrain"] = self._peak()
        for name in ("bare graph", "eager"):
            before = torch.cuda.memory_allocated() if self._is_cuda else 0
            if self._is_cuda:
                torch.cuda.reset_peak_memory_stats()
            rival = Rival(self._images, self._labels, self._batch, self._device, name == "bare graph")
            rival.block(20)
            self.memory[name] = self._peak() - before / 1e6
            self._rivals[name] = rival

    @property
    def _is_cuda(self) -> bool:
        return self._device != "cpu"

    def _peak(self) -> float:
        return torch.cuda.max_memory_allocated() / 1e6 if self._is_cuda else 0.0

    def _wait(self) -> None:
        if self._is_cuda:
            torch.cuda.synchronize()

    def result(self) -> dict[str, Any]:
        """Images per second and MB of each, and hvdtrain's speed relative to the others', medians over blocks."""
        rates = {name: self._steps * self._batch / statistics.median(seconds) for name, seconds in self.seconds.items()}
        spread = {name: [min(seconds), max(seconds)] for name, seconds in self.seconds.items()}
        blocks = list(zip(*(self.seconds[name] for name in ("hvdtrain", "bare graph", "eager")), strict=False))
        return {
            "images_per_s": rates,
            "block_s": spread,
            "blocks": len(blocks),
            "of_graph": rates["hvdtrain"] / rates["bare graph"],
            "of_eager": rates["hvdtrain"] / rates["eager"],
            "memory_mb": self.memory,
        }


def main() -> None:
    """Arguments: blocks, steps of a block, rows of a batch, steps between logging steps."""
    blocks, steps, batch, log_every = map(int, sys.argv[1:])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        from support.recorded_operations import RecordedOperations

        step_graph.CAPTURES["cpu"] = RecordedOperations
    measurement = Measurement(device, blocks, steps, batch, log_every)
    measurement.run()
    print(json.dumps(measurement.result()))


if __name__ == "__main__":
    main()
