"""Pieces of models and losses in Keras, for `drawn_models`; scripts are for the other frameworks."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf
from support.drawn_models import BATCH, CLASSES, EPOCHS, FEATURES, LR, Drawn, Piece, plain_batches

STRATEGIES = ("ring", "ring", "horovod")
layers = tf.keras.layers


def dense(units=FEATURES, **options):
    return layers.Dense(units, **options)


class Layer(layers.Layer):
    """A dense layer, and a function of this layer, its inputs and whether it trains; variables by their names."""

    def __init__(self, function, **arrays):
        super().__init__()
        self.function, self.layer, self.arrays = function, dense(), arrays

    def build(self, shape):
        self.layer.build(shape)
        for name, array in self.arrays.items():
            options = {"dtype": array.dtype.name, "shape": array.shape, "trainable": False}
            setattr(
                self, name, self.add_weight(name=name, initializer=lambda *_, a=array, **__: tf.constant(a), **options)
            )

    def call(self, x, training=None):
        return self.function(self, x, training)


def zeros(*shape):
    return np.zeros(shape, np.float32)


def forces(layer, x, training):
    with tf.GradientTape() as tape:
        tape.watch(x)
        energy = tf.reduce_sum(tf.tanh(layer.layer(x)))
    return tape.gradient(energy, x)


def checkpointed(layer, x, training):
    return tf.recompute_grad(lambda values: tf.tanh(layer.layer(values)))(x)


def stopped(layer, x, training):
    return layer.layer(x) + tf.stop_gradient(tf.tanh(x))


def fixed_batch(layer, x, training):
    return layer.layer(x + 0.1 * tf.reduce_mean(tf.reshape(x, (BATCH, FEATURES)), 0))


def changing(change, always=False):
    def call(layer, x, training):
        if training or always:
            layer.layer.kernel.assign(change(layer.layer.kernel))
        return layer.layer(x)

    return lambda: Layer(call)


def clipped(weight):
    return tf.clip_by_value(weight, -0.3, 0.3)


def normalized(weight):
    return weight / tf.norm(weight)


def centered(always):
    def call(layer, x, training):
        if training or always:
            layer.mean.assign(0.9 * layer.mean + 0.1 * tf.reduce_mean(x, 0))
        return layer.layer(x - layer.mean)

    return lambda: Layer(call, mean=zeros(FEATURES))


def kept(kind, changes):
    def call(layer, x, training):
        if changes and training:
            layer.kept.assign(~layer.kept if kind == "bool" else layer.kept + tf.ones((), kind))
        return layer.layer(x * (tf.cast(layer.kept, tf.float32) + 1) / 4)

    return lambda: Layer(call, kept=np.ones(FEATURES, kind))


class Watched(layers.Layer):
    """Keeps the mean of its inputs as a metric. factor: of that in its outputs."""

    def __init__(self, factor):
        super().__init__()
        self.factor, self.mean = factor, tf.keras.metrics.Mean()

    def call(self, x):
        self.mean.update_state(tf.reduce_mean(x))
        return x + self.factor * self.mean.result()


class Always(layers.Layer):
    """Normalizes by the rows in evaluations, too."""

    def __init__(self):
        super().__init__()
        self.norm = layers.BatchNormalization()

    def call(self, x):
        return self.norm(x, training=True)


class Looked(layers.Layer):
    def __init__(self, **options):
        super().__init__()
        self.table = layers.Embedding(8, FEATURES, **options)

    def call(self, x):
        numbers = tf.reduce_sum(tf.cast(x[:, :3] > 0, tf.int32) * tf.constant([4, 2, 1]), 1)
        return x + self.table(numbers)


class Shared(layers.Layer):
    def __init__(self):
        super().__init__()
        self.layer = dense(kernel_regularizer=tf.keras.regularizers.L2(0.1))

    def call(self, x):
        return self.layer(tf.tanh(self.layer(x)))


class Branch(layers.Layer):
    def __init__(self):
        super().__init__()
        self.main, self.extra, self.frozen = dense(), dense(), dense()
        self.frozen.trainable = False

    def call(self, x, training=None):
        x = self.frozen(self.main(x))
        return x + self.extra(x) if training else x


class AddedLoss(layers.Layer):
    def call(self, x, training=None):
        self.add_loss(tf.reduce_mean(x**2))
        return x


def recurrent(kind, rows=None, **options):
    def make():
        shape = {"batch_input_shape": (rows, FEATURES)} if rows else {"input_shape": (FEATURES,)}
        return tf.keras.Sequential([layers.Reshape((2, FEATURES // 2), **shape), kind(FEATURES, **options)])

    return make


ODD = functools.partial(Piece, refused=True)
STATE = functools.partial(Piece, by_row=False, refused=True)
EVALUATED = functools.partial(Piece, by_row=False, refused=True, in_evaluation=True)
FIRST = ("stateful GRU", "stateful LSTM", "fixed batch")
"""Pieces without a layer before them."""
DTYPES = ("bool", "int32", "int64", "uint8", "float16", "float64", "complex64")
PIECES = {
    "dense": Piece(dense),
    "shared": Piece(Shared),
    "branch": Piece(Branch),
    "added loss": Piece(AddedLoss),
    "layer norm": Piece(layers.LayerNormalization),
    "largest norm of a kernel": Piece(lambda: dense(kernel_constraint=tf.keras.constraints.MaxNorm(0.5))),
    "dropout": Piece(lambda: layers.Dropout(0.3), draws=True),
    "GRU": Piece(recurrent(layers.GRU)),
    "GRU of a batch": STATE(recurrent(layers.GRU, BATCH)),
    "stateful GRU": EVALUATED(recurrent(layers.GRU, BATCH, stateful=True)),
    "stateful LSTM": EVALUATED(recurrent(layers.LSTM, BATCH, stateful=True)),
    "forces": ODD(lambda: Layer(forces)),
    "recomputed": ODD(lambda: Layer(checkpointed)),
    "stopped": Piece(lambda: Layer(stopped)),
    "batch norm": STATE(layers.BatchNormalization),
    "always batch norm": EVALUATED(Always),
    "frozen batch norm": Piece(lambda: layers.BatchNormalization(trainable=False)),
    "fixed batch": STATE(lambda: Layer(fixed_batch), fixed=True),
    "normalized weight": ODD(changing(normalized)),
    "always normalized weight": ODD(changing(normalized, always=True), in_evaluation=True),
    "clipped weight": ODD(changing(clipped)),
    "always clipped weight": ODD(changing(clipped, always=True), in_evaluation=True),
    "decayed weight": STATE(changing(lambda weight: 0.9 * weight)),
    "embedding": Piece(Looked),
    "largest norm of an embedding": Piece(lambda: Looked(embeddings_constraint=tf.keras.constraints.MaxNorm(0.5, 1))),
    "watched": EVALUATED(lambda: Watched(0.0)),
    "watched mean": EVALUATED(lambda: Watched(0.1)),
    "centered in training": STATE(centered(False)),
    "centered": EVALUATED(centered(True)),
    **{f"kept {name}": ODD(kept(name, False)) for name in DTYPES},
    **{f"changing {name}": STATE(kept(name, True)) for name in DTYPES},
}


def cross_entropy(outputs, labels):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)


def penalty_of_outputs(outputs, labels):
    """With the square of the gradient of a smooth function."""
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        summed = tf.reduce_sum(tf.tanh(outputs))
    return cross_entropy(outputs, labels) + tf.reduce_sum(tape.gradient(summed, outputs) ** 2, 1)


LOSSES = {
    "plain": Piece(cross_entropy),
    "squares": Piece(lambda outputs, labels: tf.reduce_sum((outputs - tf.one_hot(labels, CLASSES)) ** 2, 1)),
    "penalty of outputs": ODD(penalty_of_outputs),
}
ODDS: dict[str, Piece] = {}


def model_of(drawn: Drawn):
    body = [layer for name in drawn.pieces for layer in (PIECES[name].make(), layers.Activation("tanh"))]
    first = [] if drawn.pieces[0] in FIRST else [dense(), layers.Activation("tanh")]
    return tf.keras.Sequential([*first, *body, dense(CLASSES)])


class Task:
    drawn: Drawn

    def data(self):
        return self.drawn.data

    def model(self):
        return model_of(self.drawn)

    def losses(self, outputs, labels):
        return LOSSES[self.drawn.losses].make(outputs, labels)


def plain(drawn: Drawn, evaluates: bool) -> dict[str, np.ndarray]:
    """A loop with Keras' optimizer, which also applies constraints; its variables by their place."""
    from hvdtrain.frameworks.tensorflow.network import building

    made = []

    def creator(following, **options):
        made.append((variable := following(**options), variable.numpy()))
        return variable

    tf.keras.utils.set_random_seed(drawn.seed)
    (numbers, labels), test = drawn.data
    losses_of = LOSSES[drawn.losses].make
    with tf.variable_creator_scope(creator), building("fp32"):  # in which layers draw other numbers
        model = model_of(drawn)
        for training in (False, True):  # in the order in which hvdtrain builds layers, which draws their weights
            model(tf.constant(numbers[:BATCH]), training=training)
    for variable, value in made:
        variable.assign(value)
    optimizer = tf.keras.optimizers.SGD(LR, 0.9)
    for epoch in range(EPOCHS):
        for rows in plain_batches(drawn, epoch):
            with tf.GradientTape() as tape:
                losses = losses_of(model(tf.constant(numbers[rows]), training=True), tf.constant(labels[rows]))
                loss = tf.reduce_mean(losses) + sum(model.losses)
            gradients = tape.gradient(loss, model.trainable_variables)
            given = [(g, v) for g, v in zip(gradients, model.trainable_variables, strict=True) if g is not None]
            optimizer.apply_gradients(given)
        if evaluates:
            losses_of(model(tf.constant(test[0]), training=False), tf.constant(test[1]))
    states = [variable for variable in model.variables if "StateVar" not in variable.name]
    return {str(place): variable.numpy() for place, variable in enumerate(states)}
