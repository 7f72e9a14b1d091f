"""What it costs to measure where the time of a step goes: steps with the measurement, and without it.

usage: horovodrun -np 2 python benchmarks/live_numbers.py FRAMEWORK [--strategy S] [--rows N] [--pairs N]

One learner trains the book's LeNet on synthetic rows. With the measurement, the strategy's communication is timed, the
loop counts rows and begins intervals, logging steps (each 20 steps) join the ranks' times, compare and record them, and
heartbeats twice a second have them; without it, logging steps and heartbeats are as they were. Blocks of both kinds
alternate in the same processes, so that drift of the machine's speed affects both equally. Rank 0 prints the median
over pairs of blocks, with the quartiles: the ratio of their times, and of the processor time of rank 0. As other work
on the machine hides so little, it also times what Python does for the measurement by itself, as a share of a step.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import math
import statistics
import tempfile
import time
import timeit
from pathlib import Path
from typing import Any

import numpy as np

from hvdtrain.collectives.communication_time import CommunicationTime
from hvdtrain.collectives.horovod import BLOCKING, HorovodGroup
from hvdtrain.config.options import RuntimeOptions, from_recipe
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.interfaces import Batch, Group, Learner
from hvdtrain.networks.initial_weights import initial_weights
from hvdtrain.networks.registry import NETWORKS
from hvdtrain.runs.metrics import MetricsWriter
from hvdtrain.runs.step_times import StepTime, to_record
from hvdtrain.system.memory import resident_bytes
from hvdtrain.system.stopwatch import Stopwatch
from hvdtrain.tasks.target import NetworkTarget
from hvdtrain.training.hang_report import Heartbeat
from hvdtrain.training.heartbeats import HEARTBEAT_S, Heartbeats
from hvdtrain.training.losses import LossMeter
from hvdtrain.training.slow_ranks import SlowRanks
from hvdtrain.training.step_times import StepTimer

IMAGE, LABELS = (1, 28, 28), 10
LOG_EVERY, BLOCK_S = RuntimeOptions.log_every, 0.5


def main() -> None:
    """Measure, and print the ratios on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=("torch", "mxnet", "tensorflow"))
    parser.add_argument("--strategy", default="horovod", help="default: horovod")
    parser.add_argument("--rows", type=int, default=128, help="rows of a step on each rank; default: 128")
    parser.add_argument("--pairs", type=int, default=60, help="pairs of blocks; default: 60")
    options = parser.parse_args()
    config = from_recipe(
        "book", framework=options.framework, strategy=options.strategy, batch_size=options.rows, batch_scope="per-rank"
    )
    network = NETWORKS["lenet"].for_data(IMAGE, LABELS, "lenet")
    weights = initial_weights(network, "xavier", 0)
    learner = build_learner(config, NetworkTarget(network), weights, RuntimeOptions(device="cpu"))
    group = learner.group
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(learner, options.rows, Path(folder))
        ratios, step_s = measure(loop, options.pairs)
        own_s = loop.own_s(step_s)
    if group.rank == 0:
        print(f"{options.framework}, {options.strategy}, {group.size} ranks, {options.rows} rows on each")
        print(f"a step: {1e3 * step_s:.2f} ms without the measurement")
        for name, values in zip(("time", "processor time"), zip(*ratios, strict=True), strict=True):
            low, middle, high = (100 * (one - 1) for one in statistics.quantiles(values, n=4))
            print(f"{name} with the measurement: {middle:+.2f} % ({low:+.2f} to {high:+.2f})", flush=True)
        print(f"Python's part by itself: {1e6 * own_s:.1f} us a step, {own_s / step_s:.3%}", flush=True)
    group.close()


def measure(loop: Loop, pairs: int) -> tuple[list[list[float]], float]:
    """Seconds and processor seconds with the measurement divided by those without, by pair; and seconds of a step."""
    group = loop.group
    for measured in (False, True):
        loop.run_block(measured, LOG_EVERY)
    steps = math.ceil(max(group.gather(BLOCK_S / loop.run_block(False, LOG_EVERY)[0])) / LOG_EVERY) * LOG_EVERY
    ratios, plain = [], []
    for pair in range(pairs):
        both = {}
        for measured in ((False, True), (True, False))[pair % 2]:
            group.sum(np.zeros(1))
            both[measured] = loop.run_block(measured, steps)
        ratios.append([one / other for one, other in zip(both[True], both[False], strict=True)])
        plain.append(both[False][0])
    return ratios, statistics.median(plain)


class Loop:
    """The part of the training loop that has to do with the measurement, around a learner's steps."""

    def __init__(self, learner: Learner, rows: int, folder: Path) -> None:
        self.group, self._learner = learner.group, learner
        generator = np.random.default_rng(0)
        arrays = generator.integers(0, 256, (rows, *IMAGE), np.uint8), generator.integers(0, LABELS, rows)
        self._batch = Batch(arrays, np.full(rows, 1 / rows, np.float32), 0.01, 0, np.arange(rows))
        self._meter, self._slow = LossMeter(self.group), SlowRanks(["host"] * self.group.size)
        self._writer = MetricsWriter(folder)
        self._switch = Switch(learner)
        self._timer = StepTimer(self.group, Stopwatch())
        self._folder, self._measured = folder, False

    def run_block(self, measured: bool, steps: int) -> tuple[float, float]:
        """Seconds and processor seconds of a step, on average."""
        self._measured = measured
        self._switch.turn(measured)
        beats = Heartbeats(self._folder, self.group.rank, self.group.size, self._heartbeat)
        beats.start()
        began, cpu = time.perf_counter(), time.process_time()
        for step in range(1, steps + 1):
            if measured:
                self._timer.start()
                self._timer.rows += int(np.count_nonzero(self._batch.weights))
            self._meter.add(step, self._learner.train_step(self._batch))
            if step % LOG_EVERY == 0:
                self._log(step)
        seconds = (time.perf_counter() - began) / steps, (time.process_time() - cpu) / steps
        beats.stop(10)
        return seconds

    def own_s(self, step_s: float) -> float:
        """Seconds of a step of `step_s` that Python's part of the measurement takes, without the strategy's hooks."""
        timer, watch, ranks = self._timer, Stopwatch(), self.group.size
        times = [StepTime(0.01, 0.01, 0.01)] * ranks

        def in_step() -> None:
            timer.start()
            timer.rows += int(np.count_nonzero(self._batch.weights))
            with watch:
                pass

        def in_logging_step() -> None:
            timer.stop()
            self._slow.add(times)
            to_record(times)

        def in_heartbeat() -> None:
            self._measured = True
            self._heartbeat(1)

        once, logging, beat = (min(timeit.repeat(one, number=200, repeat=20)) / 200 for one in (
            in_step, in_logging_step, in_heartbeat))  # fmt: skip
        return once + logging / LOG_EVERY + beat * step_s / HEARTBEAT_S

    def _log(self, step: int) -> None:
        self._learner.weights()
        times = [self._timer.stop()] if self._measured else []
        interval = self._meter.join(False, False, *times)
        record = {}
        if self._measured:
            self._slow.add(interval.times)
            record = to_record(interval.times)
        if self.group.rank == 0:
            self._writer.write("train", step, loss=interval.loss, lr=0.01, images_per_s=1.0, **record)

    def _heartbeat(self, number: int) -> Heartbeat:
        rank = self.group.rank
        more = (time.time(), resident_bytes(), *self._timer.total, self._timer.rows) if self._measured else ()
        return Heartbeat(rank, 1, "host", 0, "step", 0.0, number, *more)


class Switch:
    """Turns the timing of a strategy's communication on and off."""

    def __init__(self, learner: Learner) -> None:
        self._group: Group = learner.group
        model = getattr(learner, "_model", None)
        parameters = model.parameters() if hasattr(model, "named_parameters") else []
        hooks = [getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in parameters]
        self._hooks: list[tuple[Any, dict]] = [(own, dict(own)) for own in hooks if own]
        if isinstance(self._group, CommunicationTime):
            self._watch = self._group.communicating

    def turn(self, measured: bool) -> None:
        """Time, or do not."""
        for hooks, own in self._hooks:  # of DistributedDataParallel's strategy
            hooks.clear()
            hooks.update(own if measured else {})
        if isinstance(self._group, CommunicationTime):
            self._group.communicating = self._watch if measured else NoStopwatch()
        if isinstance(self._group, HorovodGroup):
            core = importlib.import_module(f"{self._group._hvd.__name__}.mpi_ops")._basics.MPI_LIB_CTYPES
            core.horovod_measure_waiting(BLOCKING.encode() if measured else None)


class NoStopwatch(contextlib.nullcontext):
    """In the place of one."""

    def add(self, seconds: float) -> None:
        """Nothing."""


if __name__ == "__main__":
    main()
