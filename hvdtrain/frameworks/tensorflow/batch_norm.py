"""Batch normalization in TensorFlow: over the rows of this device, or over those of all ranks (--batch-norm sync).

Keras' own layer keeps the biased variance of features and the unbiased one of images, and Horovod's gives all ranks the
same weight, whatever their number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvdtrain.frameworks.tensorflow.keras_versions import create_for_first_replica
from hvdtrain.networks.layers import BatchNorm

SumOverRanks = Callable[[tf.Tensor], tf.Tensor]
"""The element-wise sum over all ranks of a float64 vector."""


class TensorFlowBatchNormalization(tf.keras.layers.Layer):
    """Normalizes each channel of (n, ..., channels) in fp32.

    sum_over_ranks: in training, normalizes over the rows of all ranks, with the gradients that torch/batch_norm.py
    explains; None for those of this device.
    """

    def __init__(self, layer: BatchNorm, sum_over_ranks: SumOverRanks | None = None) -> None:
        super().__init__(name=layer.name, autocast=False)
        self._layer, self._sum_over_ranks = layer, sum_over_ranks

    def build(self, shape: Any) -> None:
        def add(kind: str, initial: str, trainable: bool) -> Any:
            with tf.variable_creator_scope(create_for_first_replica):
                return self.add_weight(
                    name=kind, shape=(self._layer.inputs,), dtype="float32", initializer=initial, trainable=trainable
                )

        self.weight, self.bias = add("weight", "ones", True), add("bias", "zeros", True)
        self.running_mean, self.running_var = add("running_mean", "zeros", False), add("running_var", "ones", False)
        super().build(shape)

    def call(self, x: tf.Tensor, real_rows: tf.Tensor | None = None, training: bool = False) -> tf.Tensor:
        """x: (n, channels) or (n, height, width, channels). real_rows: float32 (n,), 1 for rows that count."""
        inputs = tf.cast(x, tf.float32)
        if not training:
            scale = self.weight * tf.math.rsqrt(self.running_var + self._layer.epsilon)
            return tf.cast((inputs - self.running_mean) * scale + self.bias, x.dtype)
        images = inputs if len(x.shape) == 4 else inputs[:, tf.newaxis, tf.newaxis, :]
        if self._sum_over_ranks and real_rows is not None:
            y, mean, unbiased = self._over_ranks(images, real_rows, self._sum_over_ranks)
        else:
            y, mean, unbiased = tf.compat.v1.nn.fused_batch_norm(
                images, self.weight, self.bias, epsilon=self._layer.epsilon
            )
        self._update(self.running_mean, mean)
        self._update(self.running_var, unbiased)
        return tf.cast(tf.reshape(y, tf.shape(x)), x.dtype)

    def _over_ranks(
        self, images: tf.Tensor, real_rows: tf.Tensor, sum_over_ranks: SumOverRanks
    ) -> tuple[tf.Tensor, ...]:
        """Output, mean and unbiased variance."""
        real = real_rows[:, tf.newaxis, tf.newaxis, tf.newaxis]
        count, mean, variance = self._moments_over_ranks(images, real, sum_over_ranks)
        scale = tf.math.rsqrt(variance + self._layer.epsilon)

        @tf.custom_gradient
        def normalize(x: tf.Tensor, weight: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Any]:
            normalized = (x - mean) * scale

            def gradient(of_y: tf.Tensor) -> tuple[tf.Tensor, ...]:
                sums = [_channel_sum(of_y), _channel_sum(of_y * normalized), tf.ones((1,), tf.float64)]
                channels = self._layer.inputs
                of_bias, of_weight, parts = tf.split(sum_over_ranks(tf.concat(sums, 0)), [channels, channels, 1])
                mean_of_y, mean_of_normalized = (tf.cast(total / count, tf.float32) for total in (of_bias, of_weight))
                of_x = (of_y - real * (mean_of_y + normalized * mean_of_normalized)) * (weight * scale)
                return of_x, tf.cast(of_weight / parts, tf.float32), tf.cast(of_bias / parts, tf.float32)

            return normalized * weight + bias, gradient

        y = normalize(images, tf.convert_to_tensor(self.weight), tf.convert_to_tensor(self.bias))
        return y, mean, variance * tf.cast(count / tf.maximum(count - 1, 1), tf.float32)

    def _moments_over_ranks(
        self, images: tf.Tensor, real: tf.Tensor, sum_over_ranks: SumOverRanks
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Number of values of each channel, their mean, and their biased variance, over the real rows of all ranks.

        The squares of float32 values are exact in float64, so the sums hardly depend on how the rows are divided. The
        gradient of `normalize` contains that of the moments.
        """
        images = tf.stop_gradient(images)
        pixels = tf.cast(tf.shape(images)[1] * tf.shape(images)[2], tf.float64)
        local_count = tf.cast(tf.reduce_sum(real), tf.float64) * pixels
        precise = tf.cast(images * real, tf.float64)
        sums = [local_count[tf.newaxis], _channel_sum(precise), _channel_sum(tf.square(precise))]
        channels = self._layer.inputs
        count, total, squares = tf.split(sum_over_ranks(tf.concat(sums, 0)), [1, channels, channels])
        mean = total / count
        variance = squares / count - tf.square(mean)
        return count, tf.cast(mean, tf.float32), tf.cast(variance, tf.float32)

    def _update(self, running: tf.Variable, batch: tf.Tensor) -> None:
        running.assign(running + self._layer.momentum * (tf.stop_gradient(batch) - running))


def _channel_sum(images: tf.Tensor) -> tf.Tensor:
    """Sum over all but the channels, float64 (channels,)."""
    return tf.reduce_sum(tf.cast(images, tf.float64), [0, 1, 2])
