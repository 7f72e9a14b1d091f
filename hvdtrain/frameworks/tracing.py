"""What a timeline needs of each framework: waiting for its device, and the framework's own profiler."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
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


@contextlib.contextmanager
def profiling(framework: Framework, path: Path) -> Iterator[None]:
    """Let the framework's own profiler record what runs inside, and write it at the end.

    path: without the suffix .json of a file for Perfetto and chrome://tracing; TensorFlow writes a folder for
    TensorBoard.
    """
    if framework == "torch":
        import torch

        with torch.profiler.profile(record_shapes=True) as profile:
            yield
        profile.export_chrome_trace(f"{path}.json")
    elif framework == "mxnet":
        from mxnet import profiler

        profiler.set_config(profile_symbolic=True, profile_imperative=True, profile_api=False, filename=f"{path}.json")
        profiler.set_state("run")
        yield
        profiler.set_state("stop")
        profiler.dump()
    else:
        import tensorflow as tf

        tf.profiler.experimental.start(str(path))
        yield
        tf.profiler.experimental.stop()
