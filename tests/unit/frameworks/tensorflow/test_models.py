"""What a Keras model may do besides computing: a task's steps end at the weights of Keras' fit."""

import json

import numpy as np
import pytest
import tensorflow as tf
from support.drawn.of_tensorflow import MORE, PIECES, dense, model_of
from support.drawn_models import CLASSES
from support.learners import learner
from support.model_steps import batches, check, learner_of, made, of_pieces, task_of, tried

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.division import UNDIVIDED
from hvdtrain.datasets.formats.python_objects import load_parts
from hvdtrain.datasets.streams import Stream
from hvdtrain.errors import PeerLost, UserError
from hvdtrain.frameworks.tensorflow.strategies import TensorFlowMirrored, new_multiworker

BY_ROW = ({"accumulate": 2}, {"shards": 5}, {"accumulate": 3, "clip_norm": 1e6}, {"shards": 3})
OTHERS = ({}, {"on_nan": "skip"}, {"clip_norm": 1e6}, {})
GROUPS = {
    (by_row, number): [name for name in tried(PIECES) if name not in MORE and PIECES[name].by_row == by_row][number::4]
    for by_row in (True, False)
    for number in range(4)
}
"""All of these pieces, of which a model has several, as TensorFlow compiles each for seconds."""


@pytest.mark.guarantee("user-same-step")
@pytest.mark.parametrize("group", GROUPS)
def test_models_train_as_in_keras_fit(group):
    """With an evaluation and a resume, which compile steps again, in a few of them."""
    by_row, number = group
    options = (BY_ROW if by_row else OTHERS)[number]
    drawn = of_pieces("tensorflow", *GROUPS[group], losses="complex", options={"nesterov": ""} if number % 2 else {})
    check(drawn, resumes=not number, nesterov=bool(number % 2), **options)


def in_order(weights):
    """Names of variables in the order of `model.variables`."""
    return sorted(weights, key=lambda name: int(name.partition(".")[0]))


def test_the_trial_before_training_leaves_the_model_as_it_was():
    drawn, values = (
        of_pieces("tensorflow", *(name for group in GROUPS.values() for name in group[::3] if name != "branch")),
        [],
    )

    def model():
        built = model_of(drawn)
        built(drawn.data[0][0], training=False)
        values.extend(built.get_weights())
        return built

    weights = learner_of(drawn, task_of(drawn, model=staticmethod(model))).weights()
    for name, expected in zip(in_order(weights), values, strict=True):
        assert np.array_equal(weights[name], expected), name
    of_branch = learner_of(of_pieces("tensorflow", "branch")).weights()
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
    task = made("tensorflow", lambda: tf.keras.Sequential([Masked(), tf.keras.layers.Dense(CLASSES)]), row_sums)
    trained = learner_of(drawn := of_pieces("tensorflow"), task)
    assert all(np.isfinite(float(trained.train_step(batch))) for batch in batches(drawn))
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
        learner_of(of_pieces("tensorflow"), made("tensorflow", model, row_sums))
    assert named in caught.value.reason


def test_that_a_compiled_models_optimizer_is_not_used_is_said():
    drawn = of_pieces("tensorflow", "shared")

    def compiled():
        model = model_of(drawn)
        model.compile("adam", "mse")
        return model

    def advice(task):
        learner("tensorflow", task)
        return task.problems(task.dataset)

    assert len(advice(task_of(drawn, model=staticmethod(compiled)))) == 1 and not advice(task_of(drawn))


def test_another_number_of_devices_in_the_same_process_is_an_error(monkeypatch):
    def started(*_):
        raise RuntimeError("Virtual devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "set_logical_device_configuration", started)
    with pytest.raises(UserError) as caught:
        config = Config(framework="tensorflow", strategy="mirrored")
        TensorFlowMirrored(config, RuntimeOptions(device="cpu", devices=3))
    assert caught.value.option == "strategy"


def test_ranks_are_not_connected_where_tensorflow_has_started(monkeypatch):
    """As it has in a process that trained before."""
    tf.constant(0)
    cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}))
    with pytest.raises(UserError, match="strategy multiworker: TensorFlow has started in this process") as caught:
        new_multiworker()
    assert caught.value.option == "strategy"


def test_a_resume_before_a_batch_of_fewer_rows_has_the_same_bits(capfd):
    """The steps' graphs do not depend on the number of rows that came first; and AutoGraph understands them."""
    drawn = of_pieces("tensorflow", "batch norm", rows=41)
    first = learner_of(drawn)
    *early, smaller, after = batches(drawn)[:5]
    for batch in early:
        first.train_step(batch)
    again = learner_of(drawn)
    again.load(first.weights())
    again.load_optimizer_state(first.optimizer_state())
    assert "AutoGraph" not in capfd.readouterr().err
    of_first, of_again = ([learner.train_step(batch) for batch in (smaller, after)] for learner in (first, again))
    assert len(smaller.weights) < len(after.weights) and list(map(float, of_first)) == list(map(float, of_again))
    weights = again.weights()
    assert all(np.array_equal(weights[name], value) for name, value in first.weights().items())


class Failing(SingleProcess):
    """Two ranks, of which this one loses the other when gradients are combined."""

    size = 2

    def allreduce(self, values):
        raise PeerLost("lost rank 1")


def test_what_fails_while_ranks_combine_gradients_within_a_step_is_raised_as_it_is(capfd):
    drawn = of_pieces("tensorflow", "branch")
    trained = learner("tensorflow", task_of(drawn), Failing(), strategy="ring")
    with pytest.raises(PeerLost, match="lost rank 1"):
        trained.train_step(batches(drawn)[0])
    assert "PeerLost" not in capfd.readouterr().err, "TensorFlow prints nothing about it"


def test_data_sets_whose_items_are_batches_are_refused():
    rows = tf.data.Dataset.from_tensor_slices((np.zeros((6, 2), np.float32), np.zeros(6, np.int64)))
    for given in (
        rows.batch(2),
        rows.batch(2, drop_remainder=True).prefetch(1),
        rows.padded_batch(3).map(lambda *r: r),
    ):
        with pytest.raises(UserError, match=r"Dataset are batches, .* by unbatch\(\) in tf.data"):
            load_parts("here", given, None, given, False, UNDIVIDED, 1)
    for given in (rows.prefetch(1), Stream(rows.batch(4).prefetch(1).unbatch(), 6)):
        assert load_parts("here", given, None, given, False, UNDIVIDED, 1).train[np.arange(6)][0].shape == (6, 2)

    class Batches(getattr(tf.keras.utils, "PyDataset", tf.keras.utils.Sequence)):
        def __len__(self):
            return 3

        def __getitem__(self, number):
            return np.zeros((2, 4), np.float32), np.zeros(2, np.int64)

    with pytest.raises(UserError, match="the items of Batches are batches"):
        load_parts("here", Batches(), None, rows, False, UNDIVIDED, 1)
