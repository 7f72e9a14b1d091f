"""Random networks that fit their images, for properties."""

from __future__ import annotations

from hypothesis import strategies as st

from hvdtrain.networks.description import Network, ShapedNetwork
from hvdtrain.networks.layers import (
    CLASSES,
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
    Shape,
)

ANYWHERE = (
    st.sampled_from([Relu(), Gelu()])
    | st.builds(LeakyRelu, st.floats(-2, 2))
    | st.builds(Dropout, st.sampled_from([0, 0.0, 0.25, 0.5, 0.999]))
    | st.builds(BatchNorm, st.floats(0.01, 1), st.floats(1e-6, 0.1), st.floats(-2, 2))
)


@st.composite
def shaped_networks(draw: st.DrawFn) -> ShapedNetwork:
    """A network on data; some take only its shape."""
    shape = (draw(st.integers(1, 4)), draw(st.integers(1, 9)), draw(st.integers(1, 9)))
    layers, output = draw(_chains(shape, 4, 2))
    if len(output) == 3:
        layers += (draw(st.sampled_from([Flatten(), GlobalAveragePool()])),)
    only = draw(st.sampled_from([None, shape]))
    return Network((*layers, Dense(CLASSES)), only).for_data(shape, draw(st.integers(1, 5)), "random")


@st.composite
def _chains(draw: st.DrawFn, shape: Shape, most: int, depth: int) -> tuple[tuple[Layer, ...], Shape]:
    """Layers for an input of this shape, and the shape of their output."""
    layers: tuple[Layer, ...] = ()
    for _ in range(draw(st.integers(0, most))):
        layer = draw(_layers(shape, depth))
        shape = layer.output(shape)
        layers += (layer,)
    return layers, shape


@st.composite
def _layers(draw: st.DrawFn, shape: Shape, depth: int) -> Layer:
    kind = draw(
        st.sampled_from(["any", "image", "image", "residual"] if len(shape) == 3 else ["any", "dense", "residual"])
    )
    if kind == "residual" and depth:
        return draw(_residuals(shape, depth - 1))
    if kind == "dense":
        return Dense(draw(st.integers(1, 6)), draw(st.booleans()))
    return draw(_image_layers(shape)) if kind == "image" else draw(ANYWHERE)


@st.composite
def _image_layers(draw: st.DrawFn, shape: Shape) -> Layer:
    padding = draw(st.integers(0, 2))
    size = draw(st.integers(max(1, 2 * padding), min(min(shape[1:]) + 2 * padding, 5)))
    stride = draw(st.integers(1, 3))
    match draw(st.sampled_from(["conv", "conv", "average", "max", "flatten", "global"])):
        case "conv":
            groups = draw(st.sampled_from([n for n in range(1, shape[0] + 1) if shape[0] % n == 0]))
            outputs = groups * draw(st.integers(1, 3))
            return Conv(outputs, size, stride, padding, groups, draw(st.booleans()))
        case "flatten":
            return Flatten()
        case "global":
            return GlobalAveragePool()
        case reduction:
            return Pool(reduction, size, draw(st.sampled_from([0, stride])), padding)


@st.composite
def _residuals(draw: st.DrawFn, shape: Shape, depth: int) -> Residual:
    """A body that ends as it began, or a shortcut that ends as the body does."""
    body, output = draw(_chains(shape, 2, depth))
    if output == shape:
        return Residual(body)
    if len(output) == 1:
        ending = (Flatten(),) if len(shape) == 3 else ()
        return Residual(body, (*ending, Dense(output[0])))
    return Residual(tuple(layer for layer in body if layer.output(shape) == shape))
