"""The reference of all frameworks: a network in an evaluation, in plain NumPy with float64."""

from __future__ import annotations

import math

import numpy as np

from hvdtrain.networks.description import ShapedNetwork, Weights
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
)

ERF = np.vectorize(math.erf)


def numpy_logits(network: ShapedNetwork, weights: Weights, images: np.ndarray) -> np.ndarray:
    """Logits of uint8 images (n, channels, height, width)."""
    doubles = {name: value.astype(np.float64) for name, value in weights.items()}
    return _run(network.layers, doubles, images.astype(np.float64) / 255)


def _run(layers: tuple[Layer, ...], weights: Weights, x: np.ndarray) -> np.ndarray:
    for layer in layers:
        x = _apply(layer, weights, x)
    return x


def _apply(layer: Layer, weights: Weights, x: np.ndarray) -> np.ndarray:
    match layer:
        case Conv():
            return _convolve(layer, weights, x)
        case Dense():
            return x @ weights[f"{layer.name}.weight"].T + weights.get(f"{layer.name}.bias", 0)
        case BatchNorm():
            weight, bias, mean, variance = (
                weights[f"{layer.name}.{kind}"].reshape(-1, *(1,) * (x.ndim - 2))
                for kind in ("weight", "bias", "running_mean", "running_var")
            )
            return (x - mean) / np.sqrt(variance + layer.epsilon) * weight + bias
        case Pool(reduction="average"):
            return _windows(x, layer.size, layer.step, layer.padding, 0).mean((4, 5))
        case Pool():
            return _windows(x, layer.size, layer.step, layer.padding, -np.inf).max((4, 5))
        case GlobalAveragePool():
            return x.mean((2, 3))
        case Relu():
            return np.maximum(x, 0)
        case LeakyRelu():
            return np.where(x > 0, x, layer.slope * x)
        case Gelu():
            return x * (1 + ERF(x / math.sqrt(2))) / 2
        case Flatten():
            return x.reshape(len(x), -1)
        case Residual():
            return _run(layer.body, weights, x) + _run(layer.shortcut, weights, x)
        case Dropout():
            return x
    raise TypeError(layer)


def _convolve(layer: Conv, weights: Weights, x: np.ndarray) -> np.ndarray:
    windows = _windows(x, layer.kernel, layer.stride, layer.padding, 0)
    kernels = np.split(weights[f"{layer.name}.weight"], layer.groups)
    parts = zip(np.split(windows, layer.groups, axis=1), kernels, strict=True)
    convolved = np.concatenate([np.einsum("nihwkl,oikl->nohw", part, kernel) for part, kernel in parts], axis=1)
    return convolved + weights.get(f"{layer.name}.bias", np.zeros(layer.outputs))[:, np.newaxis, np.newaxis]


def _windows(x: np.ndarray, size: int, stride: int, padding: int, border: float) -> np.ndarray:
    """(n, channels, rows of windows, columns of windows, size, size)."""
    sides = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    padded = np.pad(x, sides, constant_values=border)
    return np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(2, 3))[:, :, ::stride, ::stride]
