"""Networks in MXNet: one translation of a description for Gluon, Module and plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon import nn

from hvdtrain.interfaces import PIXEL_MAX
from hvdtrain.networks.description import Conv, Dense, Flatten, Network, Pool, Relu

CPU_CHANNELS = {"fp32": 8, "bf16": 16}
"""By precision: on the CPU, the number of channels that a convolution computes is a multiple of this.

oneDNN has direct convolutions and fast pooling only for arrays of whole vectors of channels. It would pad others by
itself, but MXNet refuses arrays that are larger than their shapes, and gets a matrix product for each image. CPU time
of a step with batch 128, with these multiples and without: cifar_lenet 12 and 22 ms, lenet 39 and 42 ms (AVX-512), 13
and 31, 39 and 54 ms (limited to AVX2), 19 and 24, 31 and 40 ms (bf16). For fp32, 16 was slower than 8: AVX-512's larger
vectors do not make up for the zeros.
"""


def forward(F: Any, network: Network, parameters: Mapping[str, Any], images: Any, multiple: int = 1) -> Any:
    """Logits of images (n, channels, height, width).

    F: `mx.nd` or `mx.sym`, to which parameters and images belong. parameters: by canonical name; MXNet's own layout is
    the canonical one. multiple: convolutions compute additional channels, whose weights are zero, so that the number is
    a multiple of this. The logits do not depend on it, but for rounding.
    """
    height, width = network.used_pixels
    x = F.slice(images, begin=(None, None, 0, 0), end=(None, None, height, width))
    channels = own_channels = network.input_shape[0]
    for layer in network.layers:
        match layer:
            case Conv(name=name, kernel=k):
                weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
                weight = append_zeros(F, weight, 1, channels - layer.inputs)
                own_channels, added = layer.outputs, -layer.outputs % multiple
                weight = append_zeros(F, weight, 0, added)
                channels = own_channels + added
                x = F.Convolution(x, weight, append_zeros(F, bias, 0, added), kernel=(k, k), num_filter=channels)
            case Dense(name=name):
                weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
                x = F.FullyConnected(x, weight, bias, num_hidden=layer.outputs)
            case Pool(size=k):
                kind = "avg" if layer.kind == "average" else "max"
                x = F.Pooling(x, kernel=(k, k), stride=(k, k), pool_type=kind)
            case Relu():
                x = F.Activation(x, act_type="relu")
            case Flatten():
                x = F.flatten(x if channels == own_channels else F.slice_axis(x, axis=1, begin=0, end=own_channels))
    return x


def append_zeros(F: Any, values: Any, axis: int, count: int) -> Any:
    """`values`, followed by `count` zeros along `axis`."""
    if count == 0:
        return values
    # Not F.zeros: MXNet's bf16 mode fails on operators without input.
    first = F.slice_axis(values, axis=axis, begin=0, end=1)
    return F.concat(values, F.zeros_like(F.broadcast_axis(first, axis=axis, size=count)), dim=axis)


def channel_multiple(device: str, precision: str) -> int:
    """`forward`'s multiple on `cpu` or `gpu`."""
    return CPU_CHANNELS[precision] if device == "cpu" else 1


def cross_entropy(F: Any, logits: Any, labels: Any) -> Any:
    """Loss of each row, (n,); labels are float32, MXNet's convention."""
    return -F.pick(F.log_softmax(logits), labels)


def mxnet_name(name: str) -> str:
    """<layer>_weight, as MXNet names parameters, for the canonical <layer>.weight."""
    return name.replace(".", "_")


def canonical_name(name: str) -> str:
    """The inverse of `mxnet_name`."""
    return ".".join(name.rsplit("_", 1))


def scale_pixels(images: np.ndarray) -> np.ndarray:
    """Images as float32; uint8 pixels are scaled to [0, 1]. In NumPy, ten times faster than in MXNet on the CPU."""
    return np.divide(images, PIXEL_MAX, dtype=np.float32) if images.dtype == np.uint8 else images


class GluonNetwork(nn.HybridBlock):
    """A network as a Gluon block; all shapes are known, so its parameters exist before the first batch.

    multiple: that of `forward`.
    """

    def __init__(self, network: Network, multiple: int = 1) -> None:
        super().__init__(prefix="")
        self._network, self._multiple = network, multiple
        for name, shape in network.parameters():
            setattr(self, mxnet_name(name), self.params.get(mxnet_name(name), shape=shape))

    def hybrid_forward(self, F: Any, images: Any, **parameters: Any) -> Any:
        canonical = {canonical_name(name): parameter for name, parameter in parameters.items()}
        return forward(F, self._network, canonical, images, self._multiple)


class WeightedLoss(nn.HybridBlock):
    """Network and loss in one graph: sum(weights * cross entropy)."""

    def __init__(self, network: GluonNetwork) -> None:
        super().__init__()
        self.network = network

    def hybrid_forward(self, F: Any, images: Any, labels: Any, weights: Any) -> Any:
        return F.sum(cross_entropy(F, self.network(images), labels) * weights)


def logits_symbol(network: Network, multiple: int) -> mx.sym.Symbol:
    """Logits of the variable `data`, of parameters in MXNet's names. multiple: that of `forward`."""
    parameters = {name: mx.sym.var(mxnet_name(name), shape=shape) for name, shape in network.parameters()}
    return forward(mx.sym, network, parameters, mx.sym.var("data"), multiple)
