"""Networks in TensorFlow, built from their descriptions, and the layout of their weights."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from hvdtrain.interfaces import PIXEL_MAX
from hvdtrain.networks.description import Conv, Dense, Flatten, Layer, Network, Pool, Relu

POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


def build_network(network: Network, precision: str) -> tf.keras.Sequential:
    """The network, built; images are channel-last."""
    channels, height, width = network.input_shape
    policy = POLICIES[precision]
    used_height, used_width = network.used_pixels
    unused = ((0, height - used_height), (0, width - used_width))
    layers = [tf.keras.layers.Cropping2D(unused, dtype=policy)]
    layers += [_build_layer(layer, policy) for layer in network.layers]
    # Horovod identifies gradients by this name, which Keras would number otherwise: in an elastic job, processes that
    # built different numbers of networks must agree on it.
    return tf.keras.Sequential([tf.keras.Input((height, width, channels)), *layers], name="network")


def _build_layer(layer: Layer, policy: str) -> tf.keras.layers.Layer:
    keras = tf.keras.layers
    match layer:
        case Conv():
            return keras.Conv2D(layer.outputs, layer.kernel, name=layer.name, dtype=policy)
        case Dense():
            return keras.Dense(layer.outputs, name=layer.name, dtype=policy)
        case Pool(kind="average"):
            return keras.AveragePooling2D(layer.size, dtype=policy)
        case Pool():
            return keras.MaxPooling2D(layer.size, dtype=policy)
        case Relu():
            return keras.ReLU(dtype=policy)
        case Flatten():
            return keras.Flatten(dtype=policy)


def scale_pixels(images: tf.Tensor) -> tf.Tensor:
    """Images as float32; uint8 pixels are scaled to [0, 1]."""
    return tf.cast(images, tf.float32) / PIXEL_MAX if images.dtype == tf.uint8 else images


def channel_last(images: np.ndarray) -> np.ndarray:
    """Images (n, channels, height, width) as (n, height, width, channels)."""
    n, channels, height, width = images.shape
    # With one channel, the order of bytes is the same.
    return images.reshape(n, height, width, 1) if channels == 1 else images.transpose(0, 2, 3, 1)


class WeightLayout:
    """Converts weights between the canonical layout and TensorFlow's, which is channel-last.

    Kernels (out, in, height, width) are (height, width, in, out) in TensorFlow, dense weights (out, in) are (in, out).
    Images are flattened channel-last, which changes the order of inputs of the first dense layer: its weight is
    permuted when it is loaded, instead of each image in each step.
    """

    def __init__(self, network: Network) -> None:
        self._permuted, self._shape = network.flattening

    def to_canonical(self, name: str, value: np.ndarray) -> np.ndarray:
        """TensorFlow's array of a parameter, or of its optimizer state, in the canonical layout."""
        if name == self._permuted:
            channels, height, width = self._shape
            by_pixel = value.reshape(height, width, channels, -1)
            return by_pixel.transpose(3, 2, 0, 1).reshape(value.shape[1], value.shape[0])
        return np.ascontiguousarray(value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T)

    def from_canonical(self, name: str, value: np.ndarray) -> np.ndarray:
        """The inverse of `to_canonical`."""
        if name == self._permuted:
            return value.reshape(-1, *self._shape).transpose(2, 3, 1, 0).reshape(value.shape[1], value.shape[0])
        return value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T
