"""What works with Keras 3, by the tables of docs/own.md and docs/horovod.md; that its models train is in test_tasks.py.

The tests of models, strategies and networks run with the Keras that the environment has.
"""

import json

import numpy as np
import pytest
import tensorflow as tf
from support.jobs import ROOT, launcher, newest, succeed, train
from support.learners import learner
from support.model_steps import batches, learner_of, made, of_pieces, task_of

from hvdtrain.errors import UserError
from hvdtrain.frameworks.tensorflow.network import check_losses
from hvdtrain.interfaces.reading import Batch

pytestmark = [
    pytest.mark.needs("tensorflow"),
    pytest.mark.skipif(not hasattr(tf.keras, "ops"), reason="needs Keras 3, which this environment's TensorFlow lacks"),
]


def test_horovods_wrappers_combine_in_keras_3_or_are_errors(tmp_path):
    program = ROOT / "tests" / "support" / "keras_3_wrappers.py"
    succeed([*launcher("local", 2), "python", str(program)], tmp_path)
    uses = json.loads((tmp_path / "uses.json").read_text())
    assert uses == dict.fromkeys(uses, "") and len(uses) == 22


@pytest.mark.parametrize("strategy", ["single", pytest.param("keras-fit-single", marks=pytest.mark.matrix)])
def test_a_network_has_the_same_bits_with_keras_2(tmp_path, strategy):
    pytest.importorskip("tf_keras")
    options = ("--strategy", strategy, "--model", "lenet", "--epochs", "1", "--max-steps", "3")
    folders = {}
    for keras in "01":
        folders[keras] = train(tmp_path, "tensorflow", *options, "--name", keras, TF_USE_LEGACY_KERAS=keras)
    of_2, of_3 = (newest(folders[keras]).weights for keras in "10")
    assert of_2.keys() == of_3.keys() and all((of_2[name] == of_3[name]).all() for name in of_2)


def test_dropout_draws_the_same_after_a_resume_and_in_shards():
    """By generators of layers, of the model's own and of Keras as a whole."""
    drawn = of_pieces("tensorflow", "dropout", "dense")
    for options in ({}, {"shards": 4}):
        first = learner_of(drawn, **options)
        *early, last = batches(drawn, options.get("shards", 0))
        for batch in early:
            first.train_step(batch)
        again = learner_of(drawn, **options)
        again.load(first.weights())
        again.load_optimizer_state(first.optimizer_state())
        for trained in (first, again):
            trained.train_step(last)
        weights = first.weights()
        assert all((weights[name] == value).all() for name, value in again.weights().items())


class Noise(tf.keras.layers.Layer):
    """Draws by a generator of its own, and by the one that all layers share."""

    def __init__(self):
        super().__init__()
        self.seeds = tf.keras.random.SeedGenerator(3)

    def call(self, x):
        return x + tf.keras.random.normal((1,), seed=self.seeds) + tf.keras.random.uniform((1,))


def test_generators_outside_of_layers_are_seeded_for_each_step():
    drawn = of_pieces("tensorflow")
    losses = []
    for is_tried in (False, True):
        trained = learner_of(drawn, task_of(drawn, model=staticmethod(lambda: noisy(drawn))))
        if is_tried:
            trained.seed_trial()  # it made Keras forget the generator of all layers, whose state no step then set
        losses.append([float(trained.train_step(batch)) for batch in batches(drawn)[:3]])
    assert losses[0] == losses[1]


def noisy(drawn):
    return tf.keras.Sequential([Noise(), tf.keras.layers.Dense(5)])


def test_losses_that_a_model_adds_are_refused_on_several_devices():
    layers = tf.keras.layers
    of_weights = tf.keras.Sequential([layers.Dense(5, kernel_regularizer="l2")])
    of_outputs = tf.keras.Sequential([layers.Dense(5, kernel_regularizer="l2", activity_regularizer="l2")])
    for model in (of_weights, of_outputs):
        model(np.ones((2, 4), np.float32), training=True)
    check_losses(task := made("tensorflow", lambda: None), of_weights, in_threads=True)
    check_losses(task, of_outputs, in_threads=False)
    with pytest.raises(UserError, match="adds losses"):
        check_losses(task, of_outputs, in_threads=True)


def test_a_model_of_the_other_keras_is_an_error_with_a_remedy():
    keras_2 = pytest.importorskip("tf_keras")
    with pytest.raises(UserError, match="a model of Keras 2") as caught:
        learner_of(of_pieces("tensorflow"), made("tensorflow", lambda: keras_2.Sequential([keras_2.layers.Dense(5)])))
    assert caught.value.remedy == "make it by tf.keras, or set TF_USE_LEGACY_KERAS"


def test_layers_in_float8_are_an_error():
    """The gradients of their scales are the next scales, which ranks and hvdtrain's optimizers cannot take for any."""
    model = small()
    model.layers[0].quantize("float8")
    with pytest.raises(UserError, match="a variable of type float8") as caught:
        learner_of(of_pieces("tensorflow"), made("tensorflow", lambda: model))
    assert "--precision" in caught.value.remedy


def test_the_error_of_a_layer_is_the_first_one_without_codes_of_terminals():
    layers = tf.keras.layers
    with pytest.raises(UserError) as caught:
        learner_of(of_pieces("tensorflow"), made("tensorflow", lambda: tf.keras.Sequential([layers.Reshape((4, 5))])))
    assert "target_shape=(4, 5)" in caught.value.reason and "\x1b" not in caught.value.reason
    assert "Arguments received" not in caught.value.reason


def falling(optimizers):
    """An optimizer whose rate is a function of its number of updates."""
    made = []
    made.append(optimizers.SGD(lambda: 0.1 / (1.0 + tf.cast(made[0].iterations, tf.float32))))
    return made[0]


def by_variable(optimizers, **options):
    return optimizers.MultiOptimizer(
        optimizers.OptimizerMap(optimizers.Adam(0.01), {".*bias": optimizers.SGD(0.1)}), **options
    )


def decay(optimizers, rate=0.1):
    return optimizers.schedules.ExponentialDecay(rate, 2, 0.5)


OPTIMIZERS = {
    "a fixed scale": (lambda of: of.SGD(0.1, loss_scale_factor=1024.0), [0.1, 0.1, 0.1]),
    "a scale that is no power of 2": (lambda of: of.Adam(0.01, loss_scale_factor=3000.0, clipnorm=0.1), [0.01] * 3),
    "a dynamic scale": (lambda of: of.LossScaleOptimizer(of.SGD(decay(of))), [0.1, 0.1 * 0.5**0.5, 0.05]),
    "both scales": (lambda of: of.LossScaleOptimizer(of.Adam(0.01, loss_scale_factor=8.0)), [0.01] * 3),
    "a function": (lambda of: of.SGD(lambda: 0.1), [0.1, 0.1, 0.1]),
    "a function of the updates": (falling, [0.1, 0.05, 0.1 / 3]),
    "accumulation": (
        lambda of: of.Adam(decay(of), gradient_accumulation_steps=2, global_clipnorm=0.1),
        [0.1, 0.1 * 0.5**0.5, 0.05],
    ),
    "two optimizers": (by_variable, [0.1] * 3),
    "two with a scale": (lambda of: by_variable(of, loss_scale_factor=512.0), [0.1] * 3),
    "Nadam": (lambda of: of.Nadam(0.01), [0.01] * 3),
}
"""By what they have: how they are made of `keras.optimizers`, and the rates of their first updates."""


def small():
    layers = tf.keras.layers
    return tf.keras.Sequential([tf.keras.Input((6,)), layers.Dense(8, "tanh"), layers.Dense(5)])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_updates_as_in_keras_fit(name):
    """Its state goes to another optimizer of the same process."""
    make, rates = OPTIMIZERS[name]
    target = task_of(of_pieces("tensorflow"), model=staticmethod(small), optimizer=lambda *_: make(tf.keras.optimizers))
    trained, resumed = (learner("tensorflow", target) for _ in range(2))
    model = small()
    model.set_weights([*trained.weights().values()])
    model.compile(make(tf.keras.optimizers), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = target.dataset.train[np.arange(24)]
    model.fit(x, y, 8, shuffle=False, verbose=0)
    recorded = []
    for step in range(3):
        if step == 2:
            assert resumed.accepts_state(trained.optimizer_state())
            resumed.load(trained.weights())
            resumed.load_optimizer_state(trained.optimizer_state())
            trained = resumed
        rows = np.arange(8 * step, 8 * step + 8)
        trained.train_step(Batch((x[rows], y[rows]), np.full(8, 1 / 8, np.float32), 7.0, step, rows))
        recorded.append(trained.learning_rate)
    for array, expected in zip(trained.weights().values(), model.get_weights(), strict=True):
        np.testing.assert_allclose(array, expected, 1e-5, 1e-6)
    assert recorded == pytest.approx(rates)


class Unnamed(tf.keras.layers.Layer):
    """Has variables without names, of which one is not trained."""

    def build(self, shape):
        self.factor = self.add_weight(shape=(shape[-1],), initializer="ones")
        self.shift = self.add_weight(shape=(shape[-1],), initializer="zeros")
        self.table = self.add_weight(shape=(2,), initializer="ones", trainable=False)

    def call(self, x):
        return x * self.factor + self.shift


def test_variables_without_names_have_the_same_in_each_training_of_a_process():
    """Those of a process in which nothing was made before, so that its checkpoints stay readable."""
    names = []
    for _ in range(2):
        model = lambda: tf.keras.Sequential([Unnamed(), *small().layers])  # noqa: E731
        names.append(sorted(learner_of(of_pieces("tensorflow"), made("tensorflow", model)).weights()))
    expected = ["0.variable", "1.variable_1", "2.variable_2", "3.kernel", "4.bias", "5.kernel", "6.bias"]
    assert names == [expected, expected]
