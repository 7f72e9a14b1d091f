"""A task, in the framework FRAMEWORK, each part of whose step takes a time of its own."""

import importlib
import os
import time

import numpy as np
from task_rows import KINDS, NUMBERS, VALUES

FRAMEWORK = os.environ["FRAMEWORK"]
DATA_S, FORWARD_S, BACKWARD_S = 0.02, 0.04, 0.08


def slept(values, seconds):
    time.sleep(seconds)
    return values


def torch_losses(losses):
    import torch

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(context, values):
            return slept(values.clone(), FORWARD_S)

        @staticmethod
        def backward(context, gradients):
            return slept(gradients, BACKWARD_S)

    return Slow.apply(losses)


def mxnet_losses(losses):
    import mxnet as mx

    class Slow(mx.autograd.Function):
        def forward(self, values):
            values.wait_to_read()
            return slept(values.copy(), FORWARD_S)

        def backward(self, gradients):
            gradients.wait_to_read()
            return slept(gradients.copy(), BACKWARD_S)

    return Slow()(losses)


def tensorflow_losses(losses):
    import tensorflow as tf

    def slow(tensor, seconds):
        done = tf.numpy_function(lambda values: slept(values, seconds), [tensor], tf.float32)
        return tf.ensure_shape(done, tensor.shape)

    @tf.custom_gradient
    def identity(values):
        return slow(values, FORWARD_S), lambda gradients: slow(gradients, BACKWARD_S)

    return identity(losses)


class SlowRows:
    """Rows that are read by one thread, no faster than the steps."""

    fingerprint = "the same in all runs"

    def __len__(self):
        return 120

    def __getitem__(self, rows):
        time.sleep(DATA_S)
        return NUMBERS[rows], KINDS[rows], VALUES[rows]


class Sleeping(importlib.import_module(f"of_{FRAMEWORK}").Regression):
    def data(self):
        return SlowRows(), tuple(np.array(array[120:]) for array in (NUMBERS, KINDS, VALUES))

    def losses(self, outputs, values):
        return globals()[f"{FRAMEWORK}_losses"](super().losses(outputs, values))
