"""Tasks in TensorFlow, and mistaken ones."""

import numpy as np
import tensorflow as tf

RANDOM = np.random.default_rng(3)
NUMBERS, KINDS = RANDOM.normal(size=(160, 4)).astype(np.float32), RANDOM.integers(0, 5, 160)
VALUES = (NUMBERS @ np.array([1, -2, 3, 0.5], np.float32) + KINDS).astype(np.float32)


def add_noise(rows, generators):
    """Augmentation: noise on the first array."""
    numbers, *others = rows
    return numbers + np.array([one.normal(0, 0.1, 4) for one in generators], np.float32), *others


class TwoInputs(tf.keras.Model):
    def __init__(self):
        super().__init__()
        layers = tf.keras.layers
        self.of_kind, self.last, self.unused = layers.Embedding(5, 3), layers.Dense(1), layers.Dense(2)

    def call(self, inputs):
        numbers, kinds = inputs
        self.unused(numbers)
        return {"value": self.last(tf.concat([numbers, self.of_kind(kinds)], 1))[:, 0]}


class Regression:
    inputs = 2
    augment = staticmethod(add_noise)

    def data(self):
        rows = NUMBERS, KINDS, VALUES
        return tuple(array[:128] for array in rows), tuple(array[128:] for array in rows)

    def model(self):
        return TwoInputs()

    def losses(self, outputs, values):
        return (outputs["value"] - values) ** 2

    def metrics(self, outputs, values):
        return {"distance": tf.abs(outputs["value"] - values)}


class Classifier:
    """With batch normalization and random numbers."""

    augment = staticmethod(add_noise)

    def __init__(self, width=6):
        self.width = width

    def data(self):
        return (NUMBERS[:128], KINDS[:128]), (NUMBERS[128:], KINDS[128:])

    def model(self):
        layers = tf.keras.layers
        return tf.keras.Sequential(
            [layers.Dense(self.width), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(5)]
        )


class MeanLoss(Regression):
    def losses(self, outputs, values):
        return tf.reduce_mean(super().losses(outputs, values))


class FailingLoss(Regression):
    def losses(self, outputs, values):
        return outputs["price"] - values  # the line that fails


class ListMetrics(Regression):
    def metrics(self, outputs, values):
        return [values]


class NoLoss(Regression):
    losses = None


class NoModel:
    data = Regression.data


class OneInput(Regression):
    inputs = 1


class Foreign(Regression):
    def model(self):
        return type("Sequential", (), {"__module__": "torch.nn.modules.container"})()
