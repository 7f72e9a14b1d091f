"""Networks in MXNet: one translation of a description for Gluon, Module and plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon import nn

from hvdtrain.interfaces import PIXEL_MAX
from hvdtrain.networks.description import Conv, Dense, Flatten, Network, Pool, Relu


def forward(F: Any, network: Network, parameters: Mapping[str, Any], images: Any) -> Any:
    """Logits of images (n, channels, height, width).

    F: `mx.nd` or `mx.sym`, to which parameters and images belong. parameters: by canonical name; MXNet's own layout is
    the canonical one.
    """
    height, width = network.used_pixels
    x = F.slice(images, begin=(None, None, 0, 0), end=(None, None, height, width))
    for layer in network.layers:
        match layer:
            case Conv(name=name, kernel=k):
                weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
                x = F.Convolution(x, weight, bias, kernel=(k, k), num_filter=layer.outputs)
            case Dense(name=name):
                weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
                x = F.FullyConnected(x, weight, bias, num_hidden=layer.outputs)
            case Pool(size=k):
                kind = "avg" if layer.kind == "average" else "max"
                x = F.Pooling(x, kernel=(k, k), stride=(k, k), pool_type=kind)
            case Relu():
                x = F.Activation(x, act_type="relu")
            case Flatten():
                x = F.flatten(x)
    return x


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
    """A network as a Gluon block; all shapes are known, so its parameters exist before the first batch."""

    def __init__(self, network: Network) -> None:
        super().__init__(prefix="")
        self._network = network
        for name, shape in network.parameters():
            setattr(self, mxnet_name(name), self.params.get(mxnet_name(name), shape=shape))

    def hybrid_forward(self, F: Any, images: Any, **parameters: Any) -> Any:
        canonical = {canonical_name(name): parameter for name, parameter in parameters.items()}
        return forward(F, self._network, canonical, images)


class WeightedLoss(nn.HybridBlock):
    """Network and loss in one graph: sum(weights * cross entropy)."""

    def __init__(self, network: GluonNetwork) -> None:
        super().__init__()
        self.network = network

    def hybrid_forward(self, F: Any, images: Any, labels: Any, weights: Any) -> Any:
        return F.sum(cross_entropy(F, self.network(images), labels) * weights)


def logits_symbol(network: Network) -> mx.sym.Symbol:
    """Logits of the variable `data`, of parameters in MXNet's names."""
    parameters = {name: mx.sym.var(mxnet_name(name)) for name, _ in network.parameters()}
    return forward(mx.sym, network, parameters, mx.sym.var("data"))
