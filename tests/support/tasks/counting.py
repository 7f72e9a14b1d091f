"""A task, in the framework FRAMEWORK, whose weights count how often each training row was used.

Each row has a weight of its own, whose gradient is 1 divided by the rows of a batch. With plain SGD and a learning rate
of as many rows, each use of a row takes 1 off its weight, which begins at 0.
"""

import os

import numpy as np

ROWS, BATCH = 128, 16
OPTIONS = ("--batch-size", str(BATCH), "--lr", str(BATCH), "--optimizer", "sgd", "--momentum", "0",
           "--warmup-epochs", "0", "--schedule", "constant")  # fmt: skip


def torch_model():
    import torch

    model = torch.nn.Embedding(ROWS, 1)
    torch.nn.init.zeros_(model.weight)
    return model


def mxnet_model():
    from mxnet import init
    from mxnet.gluon import nn

    return nn.Embedding(ROWS, 1, weight_initializer=init.Zero())


def tensorflow_model():
    import tensorflow as tf

    return tf.keras.Sequential([tf.keras.layers.Embedding(ROWS, 1, embeddings_initializer="zeros")])


class Counting:
    """Rows are their numbers."""

    def model(self):
        return globals()[f"{os.environ['FRAMEWORK']}_model"]()

    def data(self):
        rows = np.arange(ROWS, dtype=np.int64)
        return (rows, rows), (rows, rows)

    def losses(self, outputs, rows):
        return outputs[:, 0]
