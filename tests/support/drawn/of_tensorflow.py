"""Pieces of models and losses in Keras, for `drawn_models`; scripts are for the other frameworks."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import tensorflow as tf
from support.drawn.pieces import Framework, common
from support.drawn_models import (
    BATCH,
    CLASSES,
    EPOCHS,
    EVALUATED,
    FEATURES,
    KEPT,
    LR,
    ODD,
    STATE,
    Drawn,
    Piece,
    plain_batches,
)

import hvdtrain
from hvdtrain.tasks.progress import Progress, place

STRATEGIES = ("ring", "ring", "horovod")
OPTIONS = ({"nesterov": ""},)
IS_KERAS_3 = hasattr(tf.keras, "ops")
layers = tf.keras.layers
constraints, regularizers = tf.keras.constraints, tf.keras.regularizers


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


def forces(layer, x, training):
    with tf.GradientTape() as tape:
        tape.watch(x)
        energy = tf.reduce_sum(tf.tanh(layer.layer(x)))
    return tape.gradient(energy, x)


def checkpointed(layer, x, training):
    return tf.recompute_grad(lambda values: tf.tanh(layer.layer(values)))(x)


def stopped(layer, x, training):
    return layer.layer(x) + tf.stop_gradient(tf.tanh(x))


COMMON = Framework(
    layer=Layer,
    ones=lambda shape, kind: np.ones(shape, kind),
    get=lambda layer, name: layer.layer.kernel if name == "weight" else getattr(layer, name),
    put=lambda layer, name, value: COMMON.get(layer, name).assign(value),
    paused=contextlib.nullcontext,
    mean=lambda x: tf.reduce_mean(x, 0, keepdims=True),
    reshape=tf.reshape,
    norm=tf.norm,
    clip=lambda weight: tf.clip_by_value(weight, -0.3, 0.3),
    noise=lambda weight: tf.random.normal(weight.shape),
    as_float=lambda array: tf.cast(array, tf.float32),
)


def counted(layer, x, training):
    if training:
        layer.calls.assign_add(1)
    return layer.layer(x) * (1 + tf.cast(layer.calls, x.dtype) / 10)


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
    """One layer in two places."""

    def __init__(self):
        super().__init__()
        self.layer = dense(kernel_regularizer=regularizers.L2(0.1))

    def call(self, x):
        return self.layer(tf.tanh(self.layer(x)))


class Branch(layers.Layer):
    """Layers that are called in training only, or never, and a frozen one."""

    def __init__(self):
        super().__init__()
        self.main, self.unused, self.frozen = dense(), dense(), dense()
        self.frozen.trainable = False
        self.extra = tf.keras.Sequential([dense(kernel_regularizer=regularizers.L2(0.1)), layers.BatchNormalization()])

    def call(self, x, training=None):
        x = self.frozen(self.main(x))
        return x + self.extra(x, training=True) if training else x


class AddedLoss(layers.Layer):
    """Adds the mean of something of its rows to the loss, and in training the mean of something else."""

    def call(self, x, training=None):
        self.add_loss(tf.reduce_mean(x**2))
        if training:
            self.add_loss(0.5 * tf.reduce_mean(tf.abs(x)))
        return x


def functional():
    """A model as a layer, with a loss of its own."""
    inputs = tf.keras.Input((FEATURES,))
    outputs = dense(kernel_constraint=constraints.MaxNorm(0.5))(inputs)
    model = tf.keras.Model(inputs, outputs)
    if not IS_KERAS_3:  # which has none of symbolic values
        model.add_loss(0.1 * tf.reduce_mean(outputs**2))
    return model


def recurrent(kind, rows=None, **options):
    def make():
        inputs = tf.keras.Input((FEATURES,), batch_size=rows)
        return tf.keras.Sequential([inputs, layers.Reshape((2, FEATURES // 2)), kind(FEATURES, **options)])

    return make


FIRST = ("stateful GRU", "stateful LSTM", "fixed batch")
"""Pieces without a layer before them."""
DTYPES = ("bool", "int32", "int64", "uint8", "float16", "float64", "complex64")
PIECES = {
    "dense": Piece(dense),
    "shared": Piece(Shared),
    "branch": STATE(Branch),
    "added loss": Piece(AddedLoss),
    "functional": Piece(functional),
    "regularizers": Piece(
        lambda: dense(kernel_regularizer=regularizers.L2(0.1), bias_regularizer=regularizers.L1(0.1))
    ),
    "activity": Piece(lambda: dense(activity_regularizer=regularizers.L2(0.1))),
    "activity layer": Piece(lambda: layers.ActivityRegularization(0.1, 0.1)),
    "layer norm": Piece(lambda: layers.LayerNormalization(gamma_constraint="unit_norm")),
    "largest norm of a kernel": Piece(lambda: dense(kernel_constraint=constraints.MaxNorm(0.5))),
    "not negative": Piece(lambda: dense(kernel_constraint="non_neg", bias_constraint="non_neg")),
    "dropout": Piece(lambda: layers.Dropout(0.3), draws=True),
    "GRU": Piece(recurrent(layers.GRU)),
    "LSTM": Piece(
        recurrent(layers.LSTM, kernel_regularizer=regularizers.L2(0.1), recurrent_constraint=constraints.UnitNorm())
    ),
    "GRU of a batch": STATE(recurrent(layers.GRU, BATCH), fixed=True),
    "stateful GRU": EVALUATED(recurrent(layers.GRU, BATCH, stateful=True), fixed=True, local=True),
    "stateful LSTM": EVALUATED(recurrent(layers.LSTM, BATCH, stateful=True), fixed=True, local=True),
    "forces": ODD(lambda: Layer(forces)),
    "recomputed": ODD(lambda: Layer(checkpointed)),
    "stopped": Piece(lambda: Layer(stopped)),
    "batch norm": STATE(lambda: layers.BatchNormalization(gamma_regularizer=regularizers.L2(0.1))),
    "always batch norm": EVALUATED(Always),
    "frozen batch norm": Piece(lambda: layers.BatchNormalization(trainable=False)),
    "counter": STATE(lambda: Layer(counted, calls=np.zeros((), np.int64))),
    "embedding": Piece(Looked),
    "largest norm of an embedding": Piece(lambda: Looked(embeddings_constraint=constraints.MaxNorm(0.5, 1))),
    "watched": EVALUATED(lambda: Watched(0.0)),
    "watched mean": EVALUATED(lambda: Watched(0.1), local=True),
    **common(COMMON, DTYPES, refused=True),
}


def cross_entropy(outputs, labels):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)


def penalty_of_outputs(outputs, labels):
    """With the square of the gradient of a smooth function."""
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        summed = tf.reduce_sum(tf.tanh(outputs))
    return cross_entropy(outputs, labels) + tf.reduce_sum(tape.gradient(summed, outputs) ** 2, 1)


def sequential(body, last):
    return tf.keras.Sequential([*body, last])


class Values(tf.keras.Model):
    """A dict of values and of complex numbers."""

    def __init__(self, body, last):
        super().__init__()
        self.body, self.last, self.other = tf.keras.Sequential(body), last, dense(CLASSES)

    def call(self, x, training=None):
        x = self.body(x, training=training)
        return {"values": tf.complex(self.last(x), self.other(x))}


def squares(outputs, labels):
    """The squared distances of rows to one-hot labels."""
    return tf.reduce_sum((outputs - tf.one_hot(tf.reshape(labels, [-1]), CLASSES)) ** 2, 1)


def complex_squares(outputs, labels):
    return sum(squares(part(outputs["values"]), labels) for part in (tf.math.real, tf.math.imag))


CALLS = itertools.count(1)
FACTORS: list[tf.Variable] = []


def factor():
    if not FACTORS:
        FACTORS.append(tf.Variable(tf.ones(CLASSES)))
    return FACTORS[0]


def asked(outputs, labels):
    now = hvdtrain.progress()
    share = tf.minimum(tf.cast(now.step, tf.float32) / 10, 0.3) + (1.0 if now.training else 0.0)
    return cross_entropy(outputs, labels) + share * tf.reduce_sum(outputs**2, 1)


def stopped_factor(outputs, labels):
    return cross_entropy(outputs * tf.stop_gradient(factor()), labels)


LOSSES = {
    "plain": Piece(cross_entropy, form=sequential),
    "asked": Piece(asked, form=sequential),
    "counted": KEPT(lambda x, labels: cross_entropy(x, labels) * (1 + next(CALLS) / 10), form=sequential),
    "own variable": ODD(lambda x, labels: cross_entropy(x * factor(), labels), form=sequential, outside="tasks"),
    "own variable, stopped": Piece(stopped_factor, form=sequential),
    "squares": Piece(squares, form=sequential),
    "penalty of outputs": ODD(penalty_of_outputs, form=sequential),
    "complex": Piece(complex_squares, form=Values),
}
ODDS: dict[str, Piece] = {}


def model_of(drawn: Drawn):
    body = [layer for name in drawn.pieces for layer in (PIECES[name].make(), layers.Activation("tanh"))]
    first = [] if drawn.pieces[0] in FIRST else [dense(), layers.Activation("tanh")]
    return LOSSES[drawn.losses].form([*first, *body], dense(CLASSES))


class Steps(tf.keras.callbacks.Callback):
    """Says which steps of an epoch are made, after so many."""

    def __init__(self, before: int, epoch: int) -> None:
        super().__init__()
        self.before, self.epoch = before, epoch

    def on_train_batch_begin(self, batch, logs=None):
        place.now = Progress(self.before + batch, self.epoch, training=True)


def plain(drawn: Drawn, evaluates: bool) -> dict[str, np.ndarray]:
    """Keras' fit; its variables by their place."""
    from hvdtrain.frameworks.tensorflow.keras_versions import GENERATOR_STATES
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
    states = [variable for variable in model.variables if not any(name in variable.name for name in GENERATOR_STATES)]
    model.compile(tf.keras.optimizers.SGD(LR, 0.9, "nesterov" in drawn.options), run_eagerly=True)
    model.compute_loss = lambda x, y, outputs, *_, **__: tf.reduce_mean(losses_of(outputs, y)) + sum(model.losses)
    model.compute_metrics = lambda *_, **__: {"none": tf.zeros(())}  # of dicts
    model.reset_metrics = lambda: None  # which would reset those of layers before each epoch
    for epoch in range(EPOCHS):
        batches = plain_batches(drawn, epoch)
        rows, before = np.concatenate(batches), epoch * len(batches)
        asked_by = tf.keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs, n=before, epoch=epoch: setattr(
                place, "now", Progress(n + batch, epoch, True)
            )
        )
        model.fit(numbers[rows], labels[rows], BATCH, shuffle=False, verbose=0, callbacks=[asked_by])
        if evaluates:
            model(tf.constant(test[0]), training=False)
    return {str(place): variable.numpy() for place, variable in enumerate(states)}
