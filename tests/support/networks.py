"""Networks on data, as tests need them."""

from __future__ import annotations

from hvdtrain.networks.description import Network, ShapedNetwork
from hvdtrain.networks.layers import Shape
from hvdtrain.networks.record import shaped_to_record
from hvdtrain.networks.registry import NETWORKS

IMAGE = (1, 28, 28)


def shaped(network: Network | str, input_shape: Shape | None = None, classes: int = 10) -> ShapedNetwork:
    """A network, or the built-in one of that name, for images of `input_shape`, else of the only shape that it takes.

    A network that takes any shape gets IMAGE.
    """
    name, found = (network, NETWORKS[network]) if isinstance(network, str) else ("mine", network)
    return found.for_data(input_shape or found.input_shape or IMAGE, classes, name)


LENET, CIFAR_LENET = shaped("lenet"), shaped("cifar_lenet")
LENET_RECORD = shaped_to_record(LENET)
"""As checkpoints and records of runs have it."""
