"""hvdtrain: train with data parallelism on Horovod in MXNet, PyTorch and TensorFlow, with one loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvdtrain.networks.description import Network as Network

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`Network`, imported when it is asked for: the agents that launch ranks import this package, too."""
    if name == "Network":
        from hvdtrain.networks.description import Network

        return Network
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
