"""Tasks in TensorFlow."""

import tensorflow as tf
from task_rows import RARE, ClassifierRows, RegressionRows, SequenceRows


class TwoInputs(tf.keras.Model):
    """With what Keras adds to the loss, and does after an update; one layer is called in training only."""

    def __init__(self):
        super().__init__()
        layers = tf.keras.layers
        limit, decay = tf.keras.constraints.MaxNorm(2.0), tf.keras.regularizers.L2(0.01)
        self.of_kind, self.unused, self.auxiliary = layers.Embedding(5, 3), layers.Dense(2), layers.Dense(1)
        self.normalization = layers.BatchNormalization()
        activity = None if hasattr(tf.keras, "ops") else decay  # in Keras 3, not on several devices
        self.last = layers.Dense(1, kernel_regularizer=decay, activity_regularizer=activity, kernel_constraint=limit)
        self.rare = layers.Dense(1)
        self.rare.build((None, 4))

    def call(self, inputs, training=None):
        numbers, kinds = inputs
        self.unused(numbers)
        value = self.last(tf.concat([numbers, self.of_kind(kinds)], 1))[:, 0]
        if training:
            value += self.auxiliary(numbers)[:, 0] + self.normalization(tf.ones_like(numbers), training=True)[:, 0]
        is_rare = numbers[:, 0] > RARE
        # Not by `if`, which Keras 3 does not make a part of a graph.
        rare = tf.cond(
            tf.reduce_any(is_rare),
            lambda: tf.cast(is_rare, tf.float32) * self.rare(numbers)[:, 0],
            lambda: tf.zeros_like(value),
        )
        return {"value": value + rare}


class Regression(RegressionRows):
    def model(self):
        return TwoInputs()

    def metrics(self, outputs, values):
        return {"distance": tf.abs(outputs["value"] - values)}


class Classifier(ClassifierRows):
    """With batch normalization and random numbers."""

    def model(self):
        layers = tf.keras.layers
        return tf.keras.Sequential(
            [layers.Dense(self.width), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(5)]
        )


class Sequences(SequenceRows):
    """An LSTM with dropout."""

    def model(self):
        layers = tf.keras.layers
        return tf.keras.Sequential([layers.LSTM(8), layers.Dropout(0.5), layers.Dense(5)])


class Scheduled(Sequences):
    """With an optimizer of its own, whose learning rate falls."""

    def optimizer(self, parameters):
        return tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.ExponentialDecay(0.01, 1, 0.5))
