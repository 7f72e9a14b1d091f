"""What a Keras model may do besides computing: a task's steps end at the weights of Keras' fit."""

import functools
import random

import numpy as np
import pytest
import tensorflow as tf
from support import model_steps
from support.learners import learner
from support.model_steps import CLASSES, FEATURES, LR, ROWS, SIZE, batches, made

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.frameworks.tensorflow.strategies import TensorFlowMirrored


def dense(**options):
    return tf.keras.layers.Dense(FEATURES, **options)


def l2(factor=0.1):
    return tf.keras.regularizers.L2(factor)


class AddedLoss(tf.keras.layers.Layer):
    """Adds the mean of something of its rows to the loss, and in training the mean of something else."""

    def call(self, x, training=None):
        self.add_loss(tf.reduce_mean(x**2))
        if training:
            self.add_loss(0.5 * tf.reduce_mean(tf.abs(x)))
        return x


class Auxiliary(tf.keras.layers.Layer):
    """Layers that are called in training only, or never, and a frozen one."""

    def __init__(self):
        super().__init__()
        self.main, self.unused, self.frozen = dense(), dense(), dense()
        self.frozen.trainable = False
        self.branch = tf.keras.Sequential([dense(kernel_regularizer=l2()), tf.keras.layers.BatchNormalization()])

    def call(self, x, training=None):
        x = self.frozen(self.main(x))
        return x + self.branch(x, training=True) if training else x


class Counter(tf.keras.layers.Layer):
    """Scales by the number of its calls in training."""

    def build(self, shape):
        self.calls = self.add_weight(name="calls", shape=(), dtype="int64", initializer="zeros", trainable=False)

    def call(self, x, training=None):
        if training:
            self.calls.assign_add(1)
        return x * (1 + tf.cast(self.calls, x.dtype) / 10)


class Normalized(tf.keras.layers.Layer):
    """Normalizes its kernel in each call in training, as spectral normalization does."""

    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(FEATURES, FEATURES))

    def call(self, x, training=None):
        if training:
            self.kernel.assign(self.kernel / tf.norm(self.kernel))
        return x @ self.kernel


class Shared(tf.keras.layers.Layer):
    """One layer in two places."""

    def __init__(self):
        super().__init__()
        self.layer = dense(kernel_regularizer=l2())

    def call(self, x):
        return self.layer(tf.tanh(self.layer(x)))


def functional():
    """A model as a layer, with a loss of its own."""
    inputs = tf.keras.Input((FEATURES,))
    outputs = dense(kernel_constraint=tf.keras.constraints.MaxNorm(0.5))(inputs)
    model = tf.keras.Model(inputs, outputs)
    model.add_loss(0.1 * tf.reduce_mean(outputs**2))
    return model


def recurrent():
    layers = tf.keras.layers
    lstm = layers.LSTM(FEATURES, kernel_regularizer=l2(), recurrent_constraint=tf.keras.constraints.UnitNorm())
    return tf.keras.Sequential([layers.Reshape((2, FEATURES // 2)), lstm])


# Pieces of models, and whether rows pass them one by one: else shards and parts of a step compute something else.
PIECES = {
    "regularizers": (lambda: dense(kernel_regularizer=l2(), bias_regularizer=tf.keras.regularizers.L1(0.1)), True),
    "activity": (lambda: dense(activity_regularizer=l2()), True),
    "activity layer": (lambda: tf.keras.layers.ActivityRegularization(0.1, 0.1), True),
    "added loss": (AddedLoss, True),
    "largest norm": (lambda: dense(kernel_constraint=tf.keras.constraints.MaxNorm(0.5)), True),
    "not negative": (lambda: dense(kernel_constraint="non_neg", bias_constraint="non_neg"), True),
    "functional": (functional, True),
    "recurrent": (recurrent, True),
    "shared": (Shared, True),
    "unused": (lambda: Auxiliary(), False),
    "batch norm": (lambda: tf.keras.layers.BatchNormalization(gamma_regularizer=l2()), False),
    "still batch norm": (lambda: tf.keras.layers.BatchNormalization(trainable=False), True),
    "layer norm": (lambda: tf.keras.layers.LayerNormalization(gamma_constraint="unit_norm"), True),
    "counter": (Counter, False),
    "normalized": (Normalized, False),
}


class Values(tf.keras.Model):
    """A dict of values and of complex numbers."""

    def __init__(self, body, last):
        super().__init__()
        self.body, self.last, self.other = body, last, tf.keras.layers.Dense(CLASSES)

    def call(self, x, training=None):
        x = self.body(x, training=training)
        return {"values": tf.complex(self.last(x), self.other(x))}


def squares(labels, values):
    """The squared distances of rows to one-hot labels."""
    expected = tf.one_hot(tf.reshape(labels, [-1]), CLASSES)
    return tf.reduce_sum((tf.math.real(values) - expected) ** 2 + (tf.math.imag(values) - expected) ** 2, 1)


def losses(outputs, labels):
    return squares(labels, outputs["values"])


def model_maker(pieces):
    def model():
        layers = [layer for name in pieces for layer in (PIECES[name][0](), tf.keras.layers.Activation("tanh"))]
        return Values(tf.keras.Sequential(layers), tf.keras.layers.Dense(CLASSES))

    return model


def learner_of(model, losses=losses, **options):
    return learner("tensorflow", made(model, losses), lr=LR, weight_decay=0.0, **options)


def in_order(weights):
    """Names of variables in the order of `model.variables`."""
    return sorted(weights, key=lambda name: int(name.partition(".")[0]))


def reference(model, weights, options):
    """Keras' fit from these weights on; returns the weights after it."""
    trained = model()
    trained(ROWS[0][:4], training=True)
    states = [variable for variable in trained.variables if "StateVar" not in variable.name]
    names = in_order(weights)
    for variable, name in zip(states, names, strict=True):
        variable.assign(weights[name])
    optimizer = tf.keras.optimizers.SGD(LR, 0.9, options.get("nesterov", False))
    trained.compile(optimizer, {"values": squares}, run_eagerly=True)
    trained.fit(*ROWS, batch_size=SIZE, shuffle=False, verbose=0)
    return dict(zip(names, [variable.numpy() for variable in states], strict=True))


def check(pieces, resumes=False, **options):
    """Steps of a task, and those of fit. resumes: with an evaluation and a resume, which compile steps again."""
    model = model_maker(pieces)
    both = {"evaluates": resumes, "resumes": resumes}
    model_steps.check("tensorflow", model, losses, functools.partial(reference, model), **both, **options)


OPTIONS = ({}, {"nesterov": True}, {"on_nan": "skip"})
BY_ROW = ({"accumulate": 2}, {"shards": 5}, {"shards": 3, "nesterov": True}, {"accumulate": 3, "clip_norm": 1e6})


@pytest.mark.guarantee("user-same-step")
@pytest.mark.parametrize("number", [*range(6), *(pytest.param(n, marks=pytest.mark.matrix) for n in (6, 7))])
def test_models_train_as_in_keras_fit(number):
    chosen = random.Random(number)
    by_row = number % 2
    names = [name for name, (_, alone) in PIECES.items() if alone or not by_row]
    chosen.shuffle(names)
    names = sorted(names[: len(names) // 3], key="activity layer".__eq__)
    check(names, resumes=number in (0, 1), **chosen.choice(BY_ROW if by_row else OPTIONS))


def test_the_trial_before_training_leaves_the_model_as_it_was():
    values = []

    def model():
        built = model_maker([name for name in PIECES if name != "unused"])()
        built(ROWS[0], training=False)
        values.extend(built.get_weights())
        return built

    weights = learner_of(model).weights()
    for name, expected in zip(in_order(weights), values, strict=True):
        assert np.array_equal(weights[name], expected), name
    of_branch = learner_of(model_maker(["unused"])).weights()
    moving = [value for name, value in of_branch.items() if "moving" in name]
    assert len(moving) == 2 and not moving[0].any() and (moving[1] == 1).all()


def row_sums(outputs, labels):
    return tf.reduce_sum(outputs, 1)


class Masked(tf.keras.layers.Layer):
    """Has an infinite variable, which gets no gradient."""

    def build(self, shape):
        self.mask = self.add_weight(name="mask", shape=(2,), initializer=tf.constant_initializer([-np.inf, 1.0]))

    def call(self, values):
        return values


def test_an_infinite_variable_without_a_gradient_makes_no_loss_infinite():
    trained = learner_of(lambda: tf.keras.Sequential([Masked(), tf.keras.layers.Dense(CLASSES)]), row_sums)
    assert all(np.isfinite(float(trained.train_step(batch))) for batch in batches())
    assert any(np.isneginf(value).any() for value in trained.weights().values())


class OwnStep(tf.keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


class LossOfRows(tf.keras.layers.Layer):
    def call(self, x):
        self.add_loss(tf.reduce_sum(x, 1))
        return x


class EagerInTraining(tf.keras.layers.Layer):
    def call(self, x, training=None):
        return x * x.numpy().sum() if training else x


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (lambda: OwnStep([dense()]), "train_step()"),
        (lambda: tf.keras.Sequential([dense(), LossOfRows()]), "(4,)"),
        (lambda: tf.keras.Sequential([dense(), EagerInTraining()]), "graph"),
    ],
)
def test_what_cannot_be_trained_is_an_error_before_the_first_step(model, named):
    with pytest.raises(UserError) as caught:
        learner_of(model, row_sums)
    assert named in caught.value.reason


def test_that_a_compiled_models_optimizer_is_not_used_is_said():
    def compiled():
        model = model_maker(["shared"])()
        model.compile("adam", "mse")
        return model

    def advice(model):
        task = made(model, losses)
        learner("tensorflow", task)
        return task.problems(task.dataset)

    assert len(advice(compiled)) == 1 and not advice(model_maker(["shared"]))


def test_another_number_of_devices_in_the_same_process_is_an_error(monkeypatch):
    def started(*_):
        raise RuntimeError("Virtual devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "set_logical_device_configuration", started)
    with pytest.raises(UserError) as caught:
        config = Config(framework="tensorflow", strategy="mirrored")
        TensorFlowMirrored(config, RuntimeOptions(device="cpu", devices=3))
    assert caught.value.option == "strategy"
