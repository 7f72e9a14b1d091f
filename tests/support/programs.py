"""Programs that tests start under a launcher: training with an injected fault, and checks inside a job.

usage: python programs.py PROGRAM FRAMEWORK [OPTIONS of training]
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from hvdtrain.cli.train import examine_host, main
from hvdtrain.collectives import arrays
from hvdtrain.collectives.shard_sums import ShardSums
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.config.sources import CommandLine
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.interfaces.strategy import Group
from hvdtrain.networks.description import Weights
from hvdtrain.networks.random_numbers import initial_weights
from hvdtrain.networks.registry import NETWORKS
from hvdtrain.runs import checkpoints, plots
from hvdtrain.system import rank_info
from hvdtrain.tasks.target import NetworkTarget
from hvdtrain.training import consistency
from hvdtrain.training.train import train

BAD_STEP = 5
IMAGE = (1, 28, 28)


def learner_class(framework: str):
    """The class of the framework's learner."""
    if "numpy_learner" in sys.modules:
        return sys.modules["numpy_learner"].NumPyLearner
    module = importlib.import_module(f"hvdtrain.frameworks.{framework}.learner")
    return getattr(
        module, {"torch": "TorchLearner", "mxnet": "MXNetLearner", "tensorflow": "TensorFlowLearner"}[framework]
    )


def inject_on_rank_1(framework: str, inject) -> None:
    """Before each training step of rank 1, let `inject(learner, step, arguments)` replace its arguments."""
    kind = learner_class(framework)
    original, steps = kind.train_step, iter(range(10**9))

    def train_step(self, *arguments):
        step = next(steps)
        if rank_info.detect().rank == 1:
            arguments = inject(self, step, arguments)
        return original(self, *arguments)

    kind.train_step = train_step


def nan(framework: str, options: list[str]) -> None:
    """Rank 1's loss is not finite at BAD_STEP."""

    def inject(_, step, arguments):
        (batch,) = arguments
        return (batch._replace(weights=batch.weights * np.float32(np.nan if step == BAD_STEP else 1)),)

    inject_on_rank_1(framework, inject)
    main(framework, argv=options)


def drift(framework: str, options: list[str]) -> None:
    """A parameter of rank 1 changes at BAD_STEP, as if a bit of its memory had flipped."""

    def inject(learner, step, arguments):
        if step == BAD_STEP:
            weights = learner.weights()
            weights["dense2.bias"][3] += 1e-6
            learner.load(weights)
        return arguments

    inject_on_rank_1(framework, inject)
    main(framework, argv=options)


def flip(framework: str, options: list[str]) -> None:
    """`flip_gradients` of rank 1 in BAD_STEP: once."""
    flip_gradients(1, once=True)
    main(framework, argv=options)


def flip_from(framework: str, options: list[str]) -> None:
    """`flip_gradients` of rank 1 from BAD_STEP on."""
    flip_gradients(1, once=False)
    main(framework, argv=options)


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


def sleep(framework: str, options: list[str]) -> None:
    """Rank 1 sleeps in Python at BAD_STEP, in the first start in this folder only."""

    def inject(_, step, arguments):
        if step == BAD_STEP and not Path("slept").exists():
            Path("slept").touch()
            time.sleep(600)
        return arguments

    inject_on_rank_1(framework, inject)
    main(framework, argv=options)


def sleep_with_skewed_clock(framework: str, options: list[str]) -> None:
    """`sleep`; the clock of rank 1 is an hour ahead."""
    if rank_info.detect().rank == 1:
        clock = time.time
        time.time = lambda: clock() + 3600
    sleep(framework, options)


def freeze_at_the_end(framework: str, options: list[str]) -> None:
    """Rank 1 is stopped once training is done, by SIGSTOP."""
    checked = consistency.check_same_weights

    def check_same_weights(group: Group, weights: Weights, when: str, *since: int | None) -> str:
        if when == "after the last step" and rank_info.detect().rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return checked(group, weights, when, *since)

    consistency.check_same_weights = check_same_weights
    main(framework, argv=options)


def terminated_at_the_end(framework: str, options: list[str]) -> None:
    """Each rank gets SIGTERM, and SIGINT, once training is done."""
    checked = consistency.check_same_weights

    def check_same_weights(group: Group, weights: Weights, when: str, *since: int | None) -> str:
        if when == "after the last step":
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
        return checked(group, weights, when, *since)

    consistency.check_same_weights = check_same_weights
    main(framework, argv=options)


def late(framework: str, options: list[str]) -> None:
    """Rank 1 initializes the library of its strategy HVDTRAIN_TEST_LATE_S seconds later."""
    if rank_info.detect().rank == 1:
        time.sleep(float(os.environ["HVDTRAIN_TEST_LATE_S"]))
    main(framework, argv=options)


def die(framework: str, options: list[str]) -> None:
    """Rank 1 is killed at BAD_STEP, in the first start in this folder only."""

    def inject(_, step, arguments):
        if step == BAD_STEP and not Path("died").exists():
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return arguments

    inject_on_rank_1(framework, inject)
    main(framework, argv=options)


def crash(framework: str, options: list[str]) -> None:
    """Rank 1 crashes in native code at BAD_STEP."""

    def inject(_, step, arguments):
        if step == BAD_STEP:
            ctypes.string_at(1)
        return arguments

    inject_on_rank_1(framework, inject)
    main(framework, argv=options)


def elsewhere(framework: str, options: list[str]) -> None:
    """Its code changes to a new folder before each step; the first start is killed at BAD_STEP."""
    kind = learner_class(framework)
    original = kind.train_step

    def train_step(self, batch):
        os.chdir(tempfile.mkdtemp(dir=os.environ["HVDTRAIN_TEST_AWAY"]))
        if batch.step == BAD_STEP and not Path("../died").exists():
            Path("../died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, batch)

    kind.train_step = train_step
    main(framework, argv=options)


def slowly(framework: str, options: list[str]) -> None:
    """Each step takes HVDTRAIN_TEST_STEP_S seconds longer."""
    kind = learner_class(framework)
    original = kind.train_step

    def train_step(self, *arguments):
        time.sleep(float(os.environ["HVDTRAIN_TEST_STEP_S"]))
        return original(self, *arguments)

    kind.train_step = train_step
    main(framework, argv=options)


def slowly_at_first(framework: str, options: list[str]) -> None:
    """Each step takes half a second longer, unless a run in this folder has a checkpoint."""
    os.environ["HVDTRAIN_TEST_STEP_S"] = "0" if any(Path("runs").glob("*/checkpoints/step-*")) else "0.5"
    slowly(framework, options)


def disk(framework: str, options: list[str]) -> None:
    """`slowly`, on a faulty disk, as long as there is a file `disk`.

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
    slowly(framework, options)


def several(framework: str, options: list[str]) -> None:
    """Several trainings in one process, with `--then` between their options: launcher and framework start once.

    The option `apart` stands for the program of that name. Each training initializes Horovod and shuts it down.
    """
    while options:
        end = options.index("--then") if "--then" in options else len(options)
        if options[0] == "apart":
            apart(framework, [])
        else:
            train(*CommandLine.read(options[:end], "several", framework).options(), examine_host)
        options = options[end + 1 :]


def in_small_parts(framework: str, options: list[str]) -> None:
    """Like `several`, but with checkpoints of many small files, and arrays that travel in small messages."""
    checkpoints.FILE_BYTES, arrays.MESSAGE_BYTES = 20_000, 3_001
    several(framework, options)


def own_data(framework: str, options: list[str]) -> None:
    """Rank 1 trains on the folder that is the last argument."""
    *options, folder = options
    main(framework, argv=[*options, *(["--data", folder] if rank_info.detect().rank == 1 else [])])


def apart(framework: str, _: list[str]) -> None:
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


PROGRAMS = (
    nan, drift, flip, flip_from, sleep, sleep_with_skewed_clock, freeze_at_the_end, terminated_at_the_end, late,
    die, crash, elsewhere, slowly, slowly_at_first, disk, several, in_small_parts, own_data, apart,
)  # fmt: skip

if __name__ == "__main__":
    # Matplotlib takes half a second for each run, and no test of these programs needs plots.
    plots.plot_metrics = lambda folder, *_: folder  # type: ignore[assignment]
    name, framework, *options = sys.argv[1:]
    if framework == "numpy":
        import numpy_learner

        framework = numpy_learner.install()
    {program.__name__: program for program in PROGRAMS}[name](framework, options)
