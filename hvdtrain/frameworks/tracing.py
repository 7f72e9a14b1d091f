"""What a timeline needs of each framework: waiting for its device."""

from __future__ import annotations

from collections.abc import Callable

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
