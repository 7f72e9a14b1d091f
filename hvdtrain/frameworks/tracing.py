"""What a timeline needs of each framework: waiting for its device, and the framework's own profiler."""

from __future__ import annotations

import abc
from collections.abc import Callable
from pathlib import Path

from hvdtrain.config.options import Framework


def waiter(framework: Framework, device: str) -> Callable[[], object] | None:
    """What waits for the device; None where all is computed when a step returns."""
    if framework == "mxnet":  # its engine computes in threads of its own on every device
        import mxnet as mx

        return mx.nd.waitall
    if framework == "torch" and device != "cpu":
        import torch

        return torch.cuda.synchronize
    return None


class Profiler(abc.ABC):
    """A framework's own profiler. path: where it writes, without a suffix."""

    @abc.abstractmethod
    def __init__(self, path: Path) -> None: ...

    @abc.abstractmethod
    def start(self) -> None:
        """Begin to record."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Write what was recorded."""


class TorchProfiler(Profiler):
    """torch.profiler, whose file Perfetto and chrome://tracing open."""

    def __init__(self, path: Path) -> None:
        import torch

        self._path, self._profile = path.with_suffix(".json"), torch.profiler.profile(record_shapes=True)

    def start(self) -> None:
        self._profile.start()

    def stop(self) -> None:
        self._profile.stop()
        self._profile.export_chrome_trace(str(self._path))


class MXNetProfiler(Profiler):
    """mx.profiler, whose file Perfetto and chrome://tracing open."""

    def __init__(self, path: Path) -> None:
        from mxnet import profiler

        self._profiler, file = profiler, str(path.with_suffix(".json"))
        profiler.set_config(profile_symbolic=True, profile_imperative=True, profile_api=False, filename=file)

    def start(self) -> None:
        self._profiler.set_state("run")

    def stop(self) -> None:
        self._profiler.set_state("stop")
        self._profiler.dump()


class TensorFlowProfiler(Profiler):
    """tf.profiler.experimental, whose profile TensorBoard opens."""

    def __init__(self, path: Path) -> None:
        import tensorflow as tf

        self._path, self._profiler = path, tf.profiler.experimental

    def start(self) -> None:
        self._profiler.start(str(self._path))

    def stop(self) -> None:
        self._profiler.stop()


PROFILERS: dict[Framework, type[Profiler]] = {
    "torch": TorchProfiler,
    "mxnet": MXNetProfiler,
    "tensorflow": TensorFlowProfiler,
}
