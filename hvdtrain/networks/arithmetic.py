"""The arithmetic of a training step, counted from a network's description."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hvdtrain.networks.description import ShapedNetwork
from hvdtrain.networks.layers import Conv, Dense


def training_flops(network: ShapedNetwork) -> int:
    """Floating-point operations of forward and backward for one image: those of convolutions and dense layers.

    A multiplication and an addition count as two. Backward takes twice as many as forward, one product for the
    gradient of the weights and one for that of the inputs (Chowdhery et al., PaLM, 2022, appendix B, whose "model
    FLOPs utilization" counts in this way); the first layer needs no gradient of its inputs. Biases, activations,
    normalization, pooling, loss and update are not counted.
    """
    first, *others = (2 * number for number in multiply_adds(network))
    return 2 * first + 3 * sum(others)


def multiply_adds(network: ShapedNetwork) -> Iterator[int]:
    """Multiplications of the forward pass of each convolution and dense layer for one image."""
    for layer, shape in network.walk():
        if isinstance(layer, Conv | Dense):
            yield math.prod(layer.shape) * math.prod(shape[1:])
