"""What works with Keras 3, by the tables of docs/own.md and docs/horovod.md; that its models train is in test_tasks.py.

The tests of models, strategies and networks run with the Keras that the environment has.
"""

import json

import numpy as np
import pytest
import tensorflow as tf
from support.jobs import ROOT, launcher, newest, succeed, train
from support.model_steps import batches, learner_of, made, of_pieces, task_of

from hvdtrain.errors import UserError
from hvdtrain.frameworks.tensorflow.network import check_losses

pytestmark = [
    pytest.mark.needs("tensorflow"),
    pytest.mark.skipif(not hasattr(tf.keras, "ops"), reason="needs Keras 3, which this environment's TensorFlow lacks"),
]


def test_horovods_wrappers_combine_in_keras_3_or_are_errors(tmp_path):
    program = ROOT / "tests" / "support" / "keras_3_wrappers.py"
    succeed([*launcher("local", 2), "python", str(program)], tmp_path)
    uses = json.loads((tmp_path / "uses.json").read_text())
    assert uses == dict.fromkeys(uses, "") and len(uses) == 20


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
    for _ in range(2):
        trained = learner_of(drawn, task_of(drawn, model=staticmethod(lambda: noisy(drawn))))
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


def test_the_error_of_a_layer_is_the_first_one_without_codes_of_terminals():
    layers = tf.keras.layers
    with pytest.raises(UserError) as caught:
        learner_of(of_pieces("tensorflow"), made("tensorflow", lambda: tf.keras.Sequential([layers.Reshape((4, 5))])))
    assert "target_shape=(4, 5)" in caught.value.reason and "\x1b" not in caught.value.reason
    assert "Arguments received" not in caught.value.reason
