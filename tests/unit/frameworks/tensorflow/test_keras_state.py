"""What Keras keeps besides the weights of a model: first values, masks, and settings of the whole process."""

import numpy as np
import pytest
import tensorflow as tf
from support.learners import learner
from support.model_steps import batches, learner_of, made, of_pieces

from hvdtrain.errors import UserError
from hvdtrain.frameworks.tensorflow.network import without_half
from hvdtrain.networks.registry import find_network
from hvdtrain.tasks.target import NetworkTarget
from hvdtrain.tasks.user import make_task

layers = tf.keras.layers
keras = tf.keras.backend


class Table(layers.Layer):
    """Multiplies by a table that is not trained, whose values `build` sets; `calls` counts evaluations and steps."""

    def __init__(self, early=False, trainable=False):
        super().__init__()
        self.trains = trainable
        self.table = self.add(4) if early else None

    def add(self, *shape):
        return self.add_weight(name="table", shape=shape, initializer="zeros", trainable=self.trains)

    def build(self, shape):
        self.table = self.add(shape[-1]) if self.table is None else self.table
        self.table.assign(np.linspace(1, 2, shape[-1]))
        self.calls = self.add_weight(name="calls", shape=(), initializer="zeros", trainable=False)
        self.was_called = self.add_weight(name="was_called", shape=(), initializer="zeros", trainable=False)
        self.built = True

    def call(self, x):
        self.calls.assign_add(1.0)
        self.was_called.assign(1.0)  # which a second call does not change
        return x * tf.convert_to_tensor(self.table)


class InTraining(layers.Layer):
    """Calls its layer in training only."""

    def __init__(self):
        super().__init__()
        self.layer = Table()

    def call(self, x, training=None):
        return self.layer(x) if training else x


class Pretrained(layers.Layer):
    """A frozen layer with given weights."""

    def __init__(self):
        super().__init__()
        self.layer = layers.Dense(4, trainable=False)

    def build(self, shape):
        self.layer.build(shape)
        self.layer.set_weights([np.full((shape[-1], 4), 0.25, np.float32), np.full(4, 0.5, np.float32)])
        self.built = True

    def call(self, x):
        return self.layer(x)


def test_training_begins_with_what_build_has_set():
    made_layers = [Pretrained(), Table(), Table(early=True), Table(trainable=True), InTraining()]
    model = tf.keras.Sequential([*made_layers, layers.BatchNormalization(), layers.Dense(5)])
    trained = learner_of(of_pieces("tensorflow"), made("tensorflow", lambda: model))
    kernel, bias = made_layers[0].layer.get_weights()
    assert (kernel == 0.25).all() and (bias == 0.5).all()
    for table in (*made_layers[1:4], made_layers[4].layer):
        np.testing.assert_allclose(table.table.numpy(), np.linspace(1, 2, 4))
        assert table.calls.numpy() == 0 and table.was_called.numpy() == 0
    moving = {name: value for name, value in trained.weights().items() if "moving" in name}
    assert [set(value) for value in moving.values()] == [{0.0}, {1.0}]


def masked_task():
    class Masked:
        def data(self):
            x = np.random.default_rng(0).integers(1, 9, (24, 6))
            x[:, 3:] = 0
            y = np.where(x == 0, 2, x % 3)
            return (x[:16], y[:16]), (x[16:], y[16:])

        def model(self):
            return tf.keras.Sequential([layers.Embedding(9, 8, mask_zero=True), layers.Dense(3)])

        def losses(self, outputs, y):
            return tf.reduce_sum(of_tokens(y, outputs), -1)

    of_tokens = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    return make_task("task.py:Masked", Masked)


@pytest.mark.parametrize("precision", ["fp32", "bf16", pytest.param("fp16", marks=pytest.mark.matrix)])
def test_losses_leave_out_what_the_mask_of_outputs_leaves_out(precision):
    """Rows that depend on others would be refused: a row's mask has to come with it."""
    target = masked_task()
    evaluated = learner("tensorflow", target, precision=precision).eval_step(target.dataset.test[np.arange(8)])
    assert evaluated.loss / 8 == pytest.approx(3 * np.log(3), rel=0.05)  # of three of six steps


def test_a_cast_keeps_the_mask_in_a_graph():
    @tf.function
    def of_half(x):
        x = tf.cast(x, tf.float16)
        x._keras_mask = x > 0
        return tf.cast(without_half(x)._keras_mask, tf.int32)

    assert of_half(tf.constant([0.0, 1.0])).numpy().tolist() == [0, 1]


def dropping(clear):
    def model():
        clear()
        return tf.keras.Sequential([layers.Dense(8, "tanh"), layers.Dropout(0.5), layers.Dense(5)])

    return model


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.matrix), "bf16"])
def test_a_model_that_clears_the_session_computes_and_draws_as_without(precision):
    drawn, losses = of_pieces("tensorflow"), []
    for clear in (keras.clear_session, lambda: None):
        trained = learner_of(drawn, made("tensorflow", dropping(clear)), precision=precision)
        losses.append([float(trained.train_step(batch)) for batch in batches(drawn)[:2]])
    assert losses[0] == losses[1]


def policy(name):
    def model():
        tf.keras.mixed_precision.set_global_policy(name)
        return tf.keras.Sequential([layers.Dense(5)])

    return model


@pytest.mark.parametrize(("asked", "used"), [("fp32", "mixed_bfloat16"), ("bf16", "float32"), ("fp32", "float64")])
def test_a_model_that_sets_another_policy_than_is_recorded_is_an_error(asked, used):
    with pytest.raises(UserError, match=f"Keras' policy {used}, and --precision {asked} needs") as caught:
        learner_of(of_pieces("tensorflow"), made("tensorflow", policy(used)), precision=asked)
    assert "give --precision" in caught.value.remedy
    assert tf.keras.mixed_precision.global_policy().name == "float32"


@pytest.fixture
def home_file():
    """Settings as of a keras.json in the home folder."""
    before = keras.floatx(), keras.image_data_format()
    keras.set_floatx("float64")
    keras.set_image_data_format("channels_first")
    yield
    keras.set_floatx(before[0])
    keras.set_image_data_format(before[1])


def test_settings_of_the_home_folder_do_not_change_networks_as_data(home_file):
    target = NetworkTarget(find_network("lenet").for_data((1, 28, 28), 10, "lenet"))
    trained = learner("tensorflow", target, strategy="keras-fit-single")
    assert trained.logits(np.ones((2, 1, 28, 28), np.float32)).shape == (2, 10)
    assert trained.global_settings == {} and keras.floatx() == "float32"


def test_settings_of_the_home_folder_are_refused_or_recorded_with_a_task(home_file):
    target = made("tensorflow", lambda: tf.keras.Sequential([layers.Dense(5)]))
    with pytest.raises(UserError, match="Keras' floatx float64, and --precision fp32 needs float32"):
        learner_of(of_pieces("tensorflow"), target)
    keras.set_floatx("float32")
    assert learner_of(of_pieces("tensorflow"), target, precision="bf16").global_settings == {
        "policy": "mixed_bfloat16",
        "backend": "tensorflow",
        "floatx": "float32",
        "image_data_format": "channels_first",
        "epsilon": "1e-07",
    }
