"""What a timeline needs of TensorFlow: times within a step's graph, and TensorFlow's own profiler."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from hvdtrain.system.phases import BACKWARD, Phase


class Stamps:
    """The times at which the parts of a step begin, taken by the step's graph.

    A graph runs its operations in any order that their inputs allow. Here each part waits for the time that is taken
    when the part before has ended.
    """

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self._times: list[tf.Tensor] = []

    def begin(self, phase: Phase, gradients: list[tf.Tensor], variables: list[tf.Variable]) -> list[tf.Tensor]:
        """The gradients, once all of them are computed, for this phase.

        variables: those of the gradients, after which Horovod's messages are named then.
        """
        at = self._take(phase, gradients)
        with tf.control_dependencies([at]):
            names = [re.sub(r"\W", "_", variable.name.partition(":")[0]) for variable in variables]
            return [tf.identity(gradient, name) for gradient, name in zip(gradients, names, strict=True)]

    def begin_backward(self, loss: tf.Tensor) -> tf.Tensor:
        """The loss, whose gradients depend on the time: backward needs nothing else of a loss than its computation."""
        at = self._take(BACKWARD, [loss])
        return loss * tf.cast(at > 0, loss.dtype)

    def times(self) -> tf.Tensor:
        """All times, in the order of `phases`: float64 (n,), seconds since the epoch."""
        return tf.stack(self._times)

    def _take(self, phase: Phase, tensors: list[tf.Tensor]) -> tf.Tensor:
        with tf.control_dependencies(tensors):
            at = tf.timestamp()
        self.phases.append(phase)
        self._times.append(at)
        return at


def monotonic_ns(times: np.ndarray) -> list[int]:
    """Times that have just been taken, in seconds since the epoch, by the monotonic clock."""
    epoch = time.monotonic_ns() - time.time_ns()
    return [int(at * 1e9) + epoch for at in times]


def waiter(device: str) -> Callable[[], object] | None:
    """What waits for the device; a step's graph has run when it returns."""
    return None


class Profiler:
    """tf.profiler.experimental, whose profile TensorBoard opens."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = folder / f"profiler-rank-{rank}"

    def start(self) -> None:
        """Begin to record."""
        tf.profiler.experimental.start(str(self.path))

    def stop(self) -> None:
        """Write what was recorded."""
        tf.profiler.experimental.stop()
