"""Networks as ONNX models, built from their descriptions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hvdtrain import __version__
from hvdtrain.networks.description import STATISTICS, ShapedNetwork, Weights
from hvdtrain.networks.layers import (
    BatchNorm,
    Conv,
    Dense,
    Dropout,
    Flatten,
    Gelu,
    GlobalAveragePool,
    Layer,
    LeakyRelu,
    Pool,
    Relu,
    Residual,
    WindowLayer,
)

OPSET, IR_VERSION = 17, 8
"""Read by ONNX Runtime from version 1.12 (2022) on. Later operators would be needed for nothing but Gelu."""
LARGEST = (1 << 31) - (1 << 24)
"""Bytes of the weights of a model in one file, at most: protobuf's limit, less what the graph takes."""
INPUT, OUTPUT = "images", "logits"


def to_onnx(network: ShapedNetwork, weights: Weights, metadata: Mapping[str, str]) -> onnx.ModelProto:
    """A model whose input `images` are float32 (n, channels, height, width), and output `logits` (n, classes).

    weights: those of the network, in canonical layout. Raises onnx.checker.ValidationError if ONNX does not accept it.
    """
    model = helper.make_model(
        _Graph(network, weights).finish(),
        producer_name="hvdtrain",
        producer_version=__version__,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    helper.set_model_props(model, dict(metadata))
    onnx.checker.check_model(model, full_check=True)
    return model


class _Graph:
    """The nodes of a graph, and the arrays that they use. Values are known by their names."""

    def __init__(self, network: ShapedNetwork, weights: Weights) -> None:
        self._network, self._arrays = network, dict(weights)
        self._nodes: list[onnx.NodeProto] = []
        self._numbers = itertools.count(1)

    def finish(self) -> onnx.GraphProto:
        self._chain(self._network.layers, INPUT)
        self._nodes[-1].output[0] = OUTPUT  # there is a node, as images become logits, and no other one follows it
        tensor = helper.make_tensor_value_info
        # In the order of their use: that in which a checkpoint is read is another one each time.
        used = dict.fromkeys(name for node in self._nodes for name in node.input if name in self._arrays)
        return helper.make_graph(
            self._nodes,
            "network",
            [tensor(INPUT, onnx.TensorProto.FLOAT, ["n", *self._network.input_shape])],
            [tensor(OUTPUT, onnx.TensorProto.FLOAT, ["n", self._network.outputs])],
            [numpy_helper.from_array(np.ascontiguousarray(self._arrays[name]), name) for name in used],
        )

    def _chain(self, layers: tuple[Layer, ...], x: str) -> str:
        """The output of the last layer, of which the first one has the input `x`."""
        for layer in layers:
            x = self._layer(layer, x)
        return x

    def _layer(self, layer: Layer, x: str) -> str:
        match layer:
            case Conv():
                return self._node("Conv", x, *layer.parameters(), group=layer.groups, **_window(layer))
            case Dense():
                return self._node("Gemm", x, *layer.parameters(), transB=1)
            case BatchNorm(name=name):
                statistics = (name + ending for ending in STATISTICS)
                return self._node("BatchNormalization", x, *layer.parameters(), *statistics, epsilon=layer.epsilon)
            case Pool(reduction="average"):
                return self._node("AveragePool", x, count_include_pad=1, **_window(layer))
            case Pool():
                return self._node("MaxPool", x, **_window(layer))
            case GlobalAveragePool():
                return self._node("Flatten", self._node("GlobalAveragePool", x))
            case Relu():
                return self._node("Relu", x)
            case LeakyRelu():
                return self._node("LeakyRelu", x, alpha=layer.slope)
            case Gelu():
                return self._gelu(x)
            case Flatten():
                return self._node("Flatten", x)
            case Residual():
                return self._node("Add", self._chain(layer.body, x), self._chain(layer.shortcut, x))
            case Dropout():
                return x
        raise TypeError(f"{layer} is not a layer")

    def _gelu(self, x: str) -> str:
        """x * (1 + erf(x / sqrt(2))) / 2"""
        erf = self._node("Erf", self._node("Mul", x, self._constant("gelu_scale", math.sqrt(0.5))))
        phi = self._node("Mul", self._node("Add", erf, self._constant("one", 1.0)), self._constant("half", 0.5))
        return self._node("Mul", x, phi)

    def _node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator}_{next(self._numbers)}"
        output = f"{name}:0"  # a name with a colon is none of a layer's parameters
        self._nodes.append(helper.make_node(operator, inputs, [output], name, **attributes))
        return output

    def _constant(self, name: str, value: float) -> str:
        self._arrays[name] = np.array(value, np.float32)
        return name


def _window(layer: WindowLayer) -> dict[str, list[int]]:
    """Attributes of square windows, of which an incomplete one is dropped."""
    size, stride, padding = layer.window
    return {"kernel_shape": [size] * 2, "strides": [stride] * 2, "pads": [padding] * 4}
