"""Pieces of models and losses in Keras, for `drawn_models`; scripts are for the other frameworks."""

from __future__ import annotations

import contextlib
import functools
import itertools
from unittest import mock

import numpy as np
import tensorflow as tf
from support.drawn.pieces import Framework, common
from support.drawn_models import (
    BATCH,
    CLASSES,
    EPOCHS,
    EVALUATED,
    FEATURES,
    HALF,
    KEPT,
    LR,
    ODD,
    OUTSIDE,
    STATE,
    Drawn,
    Piece,
    plain_batches,
)

import hvdtrain
from hvdtrain.tasks.progress import Progress, place

STRATEGIES = ("ring", "ring", "horovod")
OPTIONS = ({"nesterov": ""}, {"precision": "bf16"})
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


class Set(layers.Layer):
    """Multiplies by what build() sets: a variable, and one that is not trained."""

    def build(self, shape):
        self.scale = self.add_weight(name="scale", shape=(FEATURES,), initializer="zeros")
        self.table = self.add_weight(name="table", shape=(FEATURES,), initializer="ones", trainable=False)
        self.scale.assign(np.linspace(1, 2, FEATURES))
        self.table.assign(np.linspace(2, 1, FEATURES))
        self.built = True

    def call(self, x):
        return x * tf.convert_to_tensor(self.scale) * tf.convert_to_tensor(self.table)


class InEvaluation(layers.Layer):
    """A layer that is called in evaluations only; its regularizer is in each loss."""

    def __init__(self):
        super().__init__()
        self.layer = dense(kernel_regularizer=regularizers.L2(0.1))

    def call(self, x, training=None):
        return x if training else self.layer(x)


class Tied(layers.Layer):
    """A layer, and one whose kernel is that of the other."""

    def __init__(self):
        super().__init__()
        self.layer = dense()

    def call(self, x):
        return tf.matmul(tf.tanh(self.layer(x)), tf.convert_to_tensor(self.layer.kernel), transpose_b=True)


class Inner(layers.Layer):
    """Layers that learn from the call around theirs whether it is training."""

    def __init__(self, *inner):
        super().__init__()
        self.inner = tf.keras.Sequential([*inner])

    def call(self, x):
        return self.inner(x)


class Attention(layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, 3)

    def call(self, x):
        parts = tf.reshape(x, (-1, 2, FEATURES // 2))
        return tf.reshape(self.attention(parts, parts, use_causal_mask=True), tf.shape(x))


def reversed_gradient(layer, x, training):
    @tf.custom_gradient
    def reverse(values):
        return values, lambda gradient: -0.5 * gradient

    return layer.layer(reverse(x))


def in_graph(layer, x, training):
    """By the control flow of Keras 3, and of TensorFlow."""
    if not IS_KERAS_3:
        return tf.cond(tf.reduce_sum(x) > 1e6, lambda: x, lambda: layer.layer(x))
    values = tf.keras.ops.cond(tf.reduce_sum(x) > 1e6, lambda: x, lambda: layer.layer(x))
    return tf.keras.ops.fori_loop(0, 2, lambda _, values: tf.tanh(values + x), values)


def sparsely(x):
    """Some rows of each two of which one is zero, for layers that make a mask of it."""
    return tf.reshape(x, (-1, 2, FEATURES // 2)) * tf.cast(tf.reshape(x[:, :2], (-1, 2, 1)) > 0, x.dtype)


class Masked(layers.Layer):
    """A layer that leaves out what is zero."""

    def __init__(self, layer):
        super().__init__()
        self.masking, self.layer = layers.Masking(), layer

    def call(self, x):
        return tf.reshape(self.layer(self.masking(sparsely(x))), tf.shape(x))


class Tokens(layers.Layer):
    """Numbers of which 0 is left out."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = layers.Embedding(3, 4, mask_zero=True), layers.GRU(FEATURES)

    def call(self, x):
        return x + self.layer(self.table(tf.cast(x > 0, tf.int32) + tf.cast(x > 0.5, tf.int32)))


def of_parts(*inner):
    """Layers of sequences."""
    return tf.keras.Sequential([layers.Reshape((2, FEATURES // 2)), *inner, layers.Flatten()])


def normalization():
    """A layer that knows the mean and the variance of data before the model is called."""
    layer = layers.Normalization()
    layer.adapt(np.random.default_rng(0).normal(0.5, 2, (20, FEATURES)).astype(np.float32))
    return layer


def steps_of(x):
    return x + 0.1 * tf.cast(layers.Discretization([-0.5, 0.0, 0.5])(x), x.dtype)


def augmentation():
    images = [layers.Reshape((2, FEATURES // 2, 1)), layers.RandomFlip(), layers.RandomTranslation(0.5, 0.5)]
    return tf.keras.Sequential([*images, layers.Flatten()])


class Seeded(layers.Layer):
    """Draws by a generator of its own, and by the one that all layers share."""

    def __init__(self):
        super().__init__()
        self.seeds = tf.keras.random.SeedGenerator(3)

    def call(self, x, training=None):
        noise = tf.keras.random.normal(x.shape[1:], seed=self.seeds) + tf.keras.random.uniform(x.shape[1:])
        return x + noise / 10 if training else x


class Held(layers.Layer):
    """A variable that no add_weight() has made, and one with a loss of its own."""

    def __init__(self):
        super().__init__()
        self.shift = tf.keras.Variable(np.linspace(0, 1, FEATURES), dtype="float32", name="shift")
        self.calls = tf.keras.Variable(0, dtype="int32", trainable=False, name="calls")

    def call(self, x, training=None):
        if training:
            self.calls.assign_add(1)
        return x + self.shift * (1 + tf.cast(self.calls.value, x.dtype) / 10)


class Stateless(layers.Layer):
    """Calls its layer as a function of variables."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def build(self, shape):
        self.layer.build(shape)

    def call(self, x, training=None):
        trained, others = self.layer.trainable_variables, self.layer.non_trainable_variables
        outputs, values = self.layer.stateless_call(trained, others, x, training=training)
        for variable, value in zip(others, values, strict=True):
            variable.assign(value)
        return outputs


class Replaced(layers.Layer):
    """Has a variable whose gradient is its next value, as those of layers in float8."""

    def build(self, shape):
        options = {"initializer": "ones", "overwrite_with_gradient": True}
        self.largest = self.add_weight(name="largest", shape=(), **options)

    def call(self, x):
        @tf.custom_gradient
        def divided(values, largest):
            return values / largest, lambda gradient: (gradient / largest, tf.reduce_max(tf.abs(values)))

        return divided(x, tf.convert_to_tensor(self.largest))


MORE = {
    "set in build": Piece(Set),
    "evaluation only": Piece(InEvaluation),
    "tied": Piece(Tied),
    "inner dropout": Piece(lambda: Inner(layers.Dropout(0.3, seed=5)), draws=True),
    "inner batch norm": STATE(lambda: Inner(dense(), layers.BatchNormalization())),
    "attention": Piece(Attention),
    "reversed gradient": Piece(lambda: Layer(reversed_gradient)),
    "control flow": Piece(lambda: Layer(in_graph)),
    "masked GRU": Piece(lambda: Masked(layers.GRU(FEATURES))),
    "masked LSTM": Piece(lambda: Masked(layers.Bidirectional(layers.LSTM(FEATURES // 2)))),
    "masked batch norm": STATE(lambda: Masked(layers.BatchNormalization())),
    "tokens": Piece(Tokens),
    "convolution": Piece(lambda: of_parts(layers.Conv1D(FEATURES // 2, 2, padding="same"), layers.PReLU())),
    "time distributed": Piece(lambda: of_parts(layers.TimeDistributed(dense(FEATURES // 2)))),
    "group norm": Piece(lambda: layers.GroupNormalization(2)),
    "unit norm": Piece(layers.UnitNormalization),
    "normalization": Piece(normalization),
    "steps": Piece(lambda: layers.Lambda(steps_of)),
    "frozen with a regularizer": Piece(lambda: dense(kernel_regularizer="l2", trainable=False)),
    "noise": Piece(lambda: layers.GaussianNoise(0.1), draws=True),
    "augmentation": Piece(augmentation, draws=True),
    "recurrent dropout": Piece(recurrent(layers.GRU, dropout=0.2, recurrent_dropout=0.2), draws=True),
    "bfloat16": Piece(lambda: dense(dtype="mixed_bfloat16"), tolerance=HALF),
    "float64": ODD(lambda: dense(dtype="float64")),
}
"""Those that only the drawn models have, as the models of tests have all others."""
if IS_KERAS_3:
    MORE |= {
        "seeded": Piece(Seeded, draws=True),
        "held": STATE(Held),
        "stateless": Piece(lambda: Stateless(dense())),
        "stateless batch norm": STATE(lambda: Stateless(layers.BatchNormalization())),
        "low rank": Piece(lambda: dense(lora_rank=2)),
        "spectral norm": STATE(lambda: layers.SpectralNormalization(dense())),
        "replaced": OUTSIDE(Replaced, by_row=False),
    }
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
    **MORE,
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
optimizers = tf.keras.optimizers


def decay():
    return optimizers.schedules.ExponentialDecay(LR, 2, 0.5)


def without_decay_of_biases():
    optimizer = optimizers.AdamW(0.01, weight_decay=0.1, epsilon=0.01)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def of_kinds(**options):
    """An optimizer for biases, and one for the others."""
    of_biases = {".*bias": optimizers.SGD(LR, 0.9)}
    return optimizers.MultiOptimizer(optimizers.OptimizerMap(optimizers.Adam(0.01, epsilon=0.01), of_biases), **options)


# With a large epsilon, as rounding is the sign of a gradient without it.
OPTIMIZERS = {
    "schedule": Piece(lambda: optimizers.SGD(decay(), 0.9, nesterov=True)),
    "function": Piece(lambda: optimizers.SGD(lambda: 2 * tf.constant(LR))),
    "Adam": Piece(lambda: optimizers.Adam(0.01, amsgrad=True, epsilon=0.01, clipnorm=0.1)),
    "AdamW": Piece(without_decay_of_biases),
    "RMSprop": Piece(lambda: optimizers.RMSprop(0.01, momentum=0.9, centered=True, epsilon=0.01, clipvalue=0.05)),
    "Adagrad": Piece(lambda: optimizers.Adagrad(0.05, global_clipnorm=0.5)),
    # Its weights begin at zero, where a constraint to unit norm enlarges what they round.
    "Ftrl": Piece(lambda: optimizers.Ftrl(0.05, l2_regularization_strength=0.1), tolerance=1e-3),
    # Keras 2's counts its updates in Python, so that a graph which is made again would continue otherwise.
    "Nadam": (Piece if IS_KERAS_3 else OUTSIDE)(lambda: optimizers.Nadam(0.01, epsilon=0.01)),
    "average": Piece(lambda: optimizers.SGD(LR, 0.9, use_ema=True, ema_momentum=0.8)),
    "average that replaces": Piece(
        lambda: optimizers.SGD(LR, 0.9, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2)
    ),
}
if IS_KERAS_3:
    OPTIMIZERS |= {
        "scaled": Piece(lambda: optimizers.Adam(0.01, epsilon=0.01, clipnorm=0.1, loss_scale_factor=3000.0)),
        "dynamic scale": Piece(
            lambda: optimizers.LossScaleOptimizer(optimizers.SGD(decay(), 0.9), dynamic_growth_steps=2)
        ),
        "accumulation": Piece(
            lambda: optimizers.SGD(decay(), 0.9, gradient_accumulation_steps=2, weight_decay=0.1, use_ema=True)
        ),
        "of kinds": Piece(of_kinds),
        "of kinds, scaled": Piece(lambda: of_kinds(loss_scale_factor=512.0)),
        "Lamb": Piece(lambda: optimizers.Lamb(0.01, epsilon=0.01)),
        "Muon": Piece(lambda: optimizers.Muon(0.01, adam_lr_ratio=0.5, epsilon=0.01), tolerance=1e-3),
        "without a schedule": Piece(lambda: optimizers.ScheduleFreeAdamW(0.01, epsilon=0.01, warmup_steps=2)),
    }


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


def optimizer_of(drawn: Drawn):
    """The task's own, or that of the options, which training goes on with after each `fit`.

    No gradient counts as zero, and that of an embedding has all rows: Keras 3 squares the parts of a row one by one.
    """
    by_options = functools.partial(optimizers.SGD, LR, 0.9, "nesterov" in drawn.options)
    optimizer = OPTIMIZERS[drawn.optimizer].make() if drawn.optimizer else by_options()
    apply = optimizer.apply_gradients

    def apply_dense(pairs, **options):
        pairs = [(tf.zeros_like(v) if g is None else tf.convert_to_tensor(g), v) for g, v in pairs]
        return apply(pairs, **options)

    optimizer.apply_gradients = apply_dense
    optimizer.finalize_variable_values = lambda *_: None
    return optimizer


def plain(drawn: Drawn, evaluates: bool) -> dict[str, np.ndarray]:
    """Keras' fit; its variables by their place."""
    from hvdtrain.frameworks.tensorflow.keras_versions import GENERATOR_STATES
    from hvdtrain.frameworks.tensorflow.network import building, without_half

    made = []
    maybe_build = layers.Layer._maybe_build

    def creator(following, **options):
        variable = following(**options)
        if tf.executing_eagerly():
            made.append((variable, variable.numpy()))
        return variable

    def build(layer, *given):
        """Keep what build() has set, too, which calls may change."""
        first = len(made)
        maybe_build(layer, *given)
        with tf.init_scope():
            made[first:] = [(variable, variable.numpy()) for variable, _ in made[first:]]

    tf.keras.utils.set_random_seed(drawn.seed)
    (numbers, labels), test = drawn.data
    losses_of, precision = LOSSES[drawn.losses].make, drawn.options.get("precision", "fp32")
    with (
        tf.variable_creator_scope(creator),
        building(precision),  # in which layers draw other numbers
        mock.patch.object(layers.Layer, "_maybe_build", build),
    ):
        model = model_of(drawn)
        made[:] = [(variable, variable.numpy()) for variable, _ in made]
        for training in (False, True):  # in the order in which hvdtrain builds layers, which draws their weights
            model(tf.constant(numbers[:BATCH]), training=training)
    for variable, value in made:
        variable.assign(value)
    states = [variable for variable in model.variables if not any(name in variable.name for name in GENERATOR_STATES)]
    model.compile(optimizer_of(drawn), run_eagerly=True)
    model.optimizer.build(model.trainable_variables)  # before a call changes them, with which averages of Keras 2 begin
    model.compute_loss = lambda x, y, outputs, *_, **__: sum(
        (tf.cast(loss, tf.float32) for loss in model.losses),
        tf.reduce_mean(losses_of(tf.nest.map_structure(without_half, outputs), y)),
    )
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
