"""Programs that tests start under a launcher: training with an injected fault, and checks inside a job.

usage: python programs.py PROGRAM FRAMEWORK|SCRIPT.py [OPTIONS of training]
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import itertools
import os
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hvdtrain.cli.train import examine_host, main
from hvdtrain.collectives import arrays
from hvdtrain.collectives.shard_sums import ShardSums
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.config.sources import CommandLine
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.interfaces.reading import Batch
from hvdtrain.networks.random_numbers import initial_weights
from hvdtrain.networks.registry import NETWORKS
from hvdtrain.runs import checkpoints, plots
from hvdtrain.system import rank_info
from hvdtrain.tasks.target import NetworkTarget
from hvdtrain.training import consistency
from hvdtrain.training.train import train

BAD_STEP = 5
IMAGE = (1, 28, 28)
LEARNERS = {"torch": "TorchLearner", "mxnet": "MXNetLearner", "tensorflow": "TensorFlowLearner"}


def before_steps(framework: str, action: Callable[[Any, Batch], Batch | None]) -> None:
    """Call this before each training step; it may return another batch."""
    if "numpy_learner" in sys.modules:
        kind = sys.modules["numpy_learner"].NumPyLearner
    else:
        kind = getattr(importlib.import_module(f"hvdtrain.frameworks.{framework}.learner"), LEARNERS[framework])
    original = kind.train_step

    def train_step(self, batch):
        return original(self, action(self, batch) or batch)

    kind.train_step = train_step


def is_faulty(batch: Batch) -> bool:
    """Whether it is the bad step of rank 1."""
    return batch.step == BAD_STEP and rank_info.detect().rank == 1


def is_first(name: str) -> bool:
    """Whether this is the first call with a name in all starts in this folder."""
    try:
        Path(name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


# What is done before each step.


def nan(_: Any, batch: Batch) -> Batch | None:
    """Rank 1's loss is not finite."""
    return batch._replace(weights=batch.weights * np.float32(np.nan)) if is_faulty(batch) else None


def drift(learner: Any, batch: Batch) -> None:
    """A parameter of rank 1 changes, as if a bit of its memory had flipped."""
    if is_faulty(batch):
        weights = learner.weights()
        weights["dense2.bias"][3] += 1e-6
        learner.load(weights)


def sleep(_: Any, batch: Batch) -> None:
    """Rank 1 sleeps in Python, in the first start only."""
    if is_faulty(batch) and is_first("slept"):
        time.sleep(600)


def die(_: Any, batch: Batch) -> None:
    """Rank 1 is killed, in the first start only."""
    if is_faulty(batch) and is_first("died"):
        os.kill(os.getpid(), signal.SIGKILL)


def crash(_: Any, batch: Batch) -> None:
    """Rank 1 crashes in native code."""
    if is_faulty(batch):
        ctypes.string_at(1)


def elsewhere(_: Any, batch: Batch) -> None:
    """Each rank changes to a new folder; the first start is killed."""
    os.chdir(tempfile.mkdtemp(dir=os.environ["HVDTRAIN_TEST_AWAY"]))
    if batch.step == BAD_STEP and is_first("../died"):
        os.kill(os.getpid(), signal.SIGKILL)


def slowly(*_: Any) -> None:
    """Each step takes HVDTRAIN_TEST_STEP_S seconds longer."""
    time.sleep(float(os.environ["HVDTRAIN_TEST_STEP_S"]))


# What is done before training.


def flip_gradients(rank: int, once: bool) -> None:
    """With --shards: in each gradient of a shard that a rank adds in BAD_STEP, one bit is wrong, as long as it lasts.

    Of the largest element, and the highest of its mantissa: the last one may vanish when weights are rounded. once: not
    in later steps, nor when a shard of this one is computed again.
    """
    add = ShardSums.add

    def add_flipped(self, gradients):
        step = self._step
        is_first = step.step == BAD_STEP and not (step.audit and step.audit.only)
        if rank_info.detect().rank == rank and (is_first if once else step.step >= BAD_STEP):
            first, *others = (array.copy() for array in gradients.arrays)
            first.view(np.uint32).flat[np.abs(first).argmax()] ^= 1 << 22
            gradients = gradients._replace(arrays=[first, *others])
            print("1 bit flipped", flush=True)
        add(self, gradients)

    ShardSums.add = add_flipped


def skew_clock() -> None:
    """The clock of rank 1 is an hour ahead."""
    if rank_info.detect().rank == 1:
        clock = time.time
        time.time = lambda: clock() + 3600


def signal_at_the_end(*numbers: signal.Signals, ranks: tuple[int, ...]) -> None:
    """These ranks get signals once training is done."""
    checked = consistency.check_same_weights

    def check_same_weights(group, weights, when, *since):
        if when == "after the last step" and rank_info.detect().rank in ranks:
            for number in numbers:
                os.kill(os.getpid(), number)
        return checked(group, weights, when, *since)

    consistency.check_same_weights = check_same_weights


def be_late() -> None:
    """Rank 1 initializes the library of its strategy HVDTRAIN_TEST_LATE_S seconds later."""
    if rank_info.detect().rank == 1:
        time.sleep(float(os.environ["HVDTRAIN_TEST_LATE_S"]))


def slow_until_a_checkpoint() -> None:
    """Steps take half a second longer, unless a run in this folder has a checkpoint."""
    os.environ["HVDTRAIN_TEST_STEP_S"] = "0" if any(Path("runs").glob("*/checkpoints/step-*")) else "0.5"


def damage_disk() -> None:
    """The disk is faulty as long as there is a file `disk`.

    The file holds the name of an error, which each change below `runs` raises, or the seconds that a change takes.
    """

    def fail(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], int):
            return  # a pipe
        writing = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        changed = Path(os.path.relpath(arguments[0])) if writing or event in ("os.mkdir", "os.rename") else Path()
        if Path("runs") in changed.parents:
            with contextlib.suppress(FileNotFoundError):
                fault = Path("disk").read_text()
                if fault[0].isdigit():
                    time.sleep(float(fault))
                else:
                    raise OSError(getattr(errno, fault), os.strerror(getattr(errno, fault)), arguments[0])

    sys.addaudithook(fail)


def make_small_parts() -> None:
    """Checkpoints have many small files, and arrays travel in small messages."""
    checkpoints.FILE_BYTES, arrays.MESSAGE_BYTES = 20_000, 3_001


# What is done in place of training.


def several(framework: str, argv: list[str]) -> None:
    """Several trainings in one process, with `--then` between their options: launcher and framework start once.

    The option `apart` stands for the function of that name. Each training initializes Horovod and shuts it down.
    """
    for given in parts(argv):
        if given[0] == "apart":
            apart(framework)
        else:
            train(*CommandLine.read(given, "several", framework).options(), examine_host)


def parts(words: list[str]) -> Iterator[list[str]]:
    """What is between the words `--then`. Rank 0 prints which part of the job begins, for `try_each` of jobs.py."""
    for number, (is_end, given) in enumerate(itertools.groupby(words, "--then".__eq__)):
        if not is_end:
            if rank_info.detect().rank == 0:
                print(f"part {number // 2 + 1} of the job begins", flush=True)
            yield [*given]


def apart(framework: str) -> None:
    """Ranks that start with different weights have rank 0's after the broadcast; collectives give the right values."""
    network = NETWORKS["lenet"].for_data(IMAGE, 10, "lenet")
    own = initial_weights(network, "xavier", seed=rank_info.detect().rank)
    learner = build_learner(
        Config(framework=framework, momentum=0.9), NetworkTarget(network), own, RuntimeOptions(device="cpu")
    )
    equal = consistency.check_same_weights(learner.group, learner.weights(), "after the broadcast")
    assert equal == consistency.checksum(initial_weights(network, "xavier", seed=0))
    sums = learner.group.sum(np.array([learner.group.rank + 1.0, 0.5]))
    size = learner.group.size
    assert sums.tolist() == [size * (size + 1) / 2, size / 2]
    assert learner.group.gather(learner.group.rank) == list(range(size))
    assert learner.group.broadcast({"from": learner.group.rank}) == {"from": 0}
    if learner.group.rank == 0:
        print("equal on all ranks:", equal)
    learner.group.close()


STEPS = {
    **{action.__name__: action for action in (nan, drift, sleep, die, crash, elsewhere, slowly)},
    **{"sleep_with_skewed_clock": sleep, "slowly_at_first": slowly, "disk": slowly},
}
"""What a program does before each step."""
BEGINS: dict[str, Callable[[], None]] = {
    "flip": lambda: flip_gradients(1, once=True),
    "flip_from": lambda: flip_gradients(1, once=False),
    "sleep_with_skewed_clock": skew_clock,
    "freeze_at_the_end": lambda: signal_at_the_end(signal.SIGSTOP, ranks=(1,)),
    "terminated_at_the_end": lambda: signal_at_the_end(signal.SIGTERM, signal.SIGINT, ranks=(0, 1)),
    "late": be_late,
    "slowly_at_first": slow_until_a_checkpoint,
    "disk": damage_disk,
    "in_small_parts": make_small_parts,
}
"""What it does before training."""

if __name__ == "__main__":
    # Matplotlib takes half a second for each run, and no test of these programs needs plots.
    plots.plot_metrics = lambda folder, *_: folder  # type: ignore[assignment]
    name, framework, *options = sys.argv[1:]
    if framework == "numpy":
        import numpy_learner

        framework = numpy_learner.install()
    BEGINS.get(name, lambda: None)()
    if name in STEPS:
        before_steps(framework, STEPS[name])
    if framework.endswith(".py"):
        sys.argv = [framework, *options]
        runpy.run_path(framework, run_name="__main__")
    else:
        trains = several if name in ("several", "in_small_parts") else main
        trains(framework, argv=options)
