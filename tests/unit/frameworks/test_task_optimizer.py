"""The optimizer that a task in MXNet or TensorFlow brings; torch/test_task_optimizer.py has those of PyTorch."""

import dataclasses
import functools

import numpy as np
import pytest
import safetensors.numpy
from numpy.testing import assert_equal
from support.errors import refused
from support.in_process import quickly, train_here
from support.jobs import result
from support.learners import TASKS, learner, task, task_class

import hvdtrain
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Batch
from hvdtrain.runs import checkpoints

FRAMEWORKS = ("mxnet", "tensorflow")


def sgd(framework, momentum=0.5):
    if framework == "mxnet":
        import mxnet as mx

        return mx.optimizer.SGD(learning_rate=0.1, momentum=momentum)
    import tensorflow as tf

    return tf.keras.optimizers.SGD(0.1, momentum)


def adam(framework):
    """With a learning rate that falls."""
    return task_class(framework, "Scheduled").optimizer(None, None)


def own(framework, make):
    """A task with an optimizer of its own."""
    return task(framework, "Classifier", optimizer=lambda self, parameters: make(framework))


def steps(trained, target, numbers, lr=0.1):
    for step in numbers:
        rows = np.arange(8 * step, 8 * step + 8)
        trained.train_step(Batch(target.dataset.train[rows], np.full(8, 1 / 8, np.float32), lr, step, rows))


@pytest.mark.guarantee("user-resume")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_resumed_optimizer_continues_with_the_same_bits(framework):
    target = own(framework, adam)
    whole, resumed = (learner(framework, target, ema=0.9, on_nan="skip") for _ in range(2))
    steps(whole, target, range(2), lr=7.0)  # which nothing uses
    state = whole.optimizer_state()
    assert resumed.accepts_state(state)
    resumed.load(whole.weights())
    resumed.load_averages(whole.averages())
    resumed.load_optimizer_state(state)
    for one in (whole, resumed):
        steps(one, target, range(2, 4))
    assert_equal(resumed.weights(), whole.weights())
    assert_equal(resumed.averages(), whole.averages())
    assert resumed.learning_rate == whole.learning_rate < 0.01


@pytest.mark.parametrize("framework", ["mxnet", pytest.param("tensorflow", marks=pytest.mark.matrix)])
def test_an_optimizer_of_a_task_makes_the_updates(framework):
    target, plain = own(framework, sgd), task(framework, "Classifier")
    trained, expected = learner(framework, target), learner(framework, plain, momentum=0.5)
    assert (trained.learning_rate, expected.learning_rate) == (pytest.approx(0.1), None)
    assert trained.settings()["momentum"] == 0.5
    for one in (trained, expected):
        steps(one, plain, range(3))
    for name, value in expected.weights().items():
        np.testing.assert_allclose(trained.weights()[name], value, 1e-4, 1e-6)
    # Keras' SGD has the arrays of a momentum of 0 as well.
    others = [adam] if framework == "tensorflow" else [adam, functools.partial(sgd, momentum=0.0)]
    for other in others:
        assert not learner(framework, own(framework, other)).accepts_state(trained.optimizer_state())


@pytest.mark.parametrize("framework", ["mxnet", pytest.param("tensorflow", marks=pytest.mark.matrix)])
def test_a_run_with_averages_of_weights_resumes_its_optimizer(framework, tmp_path):
    options = ("--model", f"{TASKS}/of_{framework}.py:Scheduled", "--batch-size", "64", "--ema", "0.9")
    train_here(tmp_path, framework, *options, "--name", "run", "--epochs", "1")
    train_here(tmp_path, framework, "--resume", "runs/run", "--epochs", "2")
    assert "optimizer state" not in (tmp_path / "runs" / "run" / "logs" / "rank-0.log").read_text()


@pytest.mark.needs("tensorflow")
def test_a_schedule_of_keras_needs_no_config():
    import tensorflow as tf

    class Falling(tf.keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1 / (1 + tf.cast(step, tf.float32))

    target = task("tensorflow", "Classifier", optimizer=lambda *_: tf.keras.optimizers.Adam(Falling(), beta_1=0.8))
    settings = learner("tensorflow", target).settings()
    assert (settings["learning rate"], settings["beta_1"], settings["updates"]) == (pytest.approx(0.1), 0.8, 0)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_no_optimizer(framework):
    with pytest.raises(UserError, match=r"optimizer\(\) returned NoneType; return one .*Optimizer"):
        learner(framework, own(framework, lambda framework: None))


@pytest.mark.needs("tensorflow")
def test_an_optimizer_that_cannot_update_is_said_before_the_first_step():
    def built(framework):
        optimizer = sgd(framework)
        optimizer.build([])
        return optimizer

    with pytest.raises(
        UserError, match=r"optimizer\(\) returned one that cannot update .*(cannot recognize|Unknown) variable"
    ):
        learner("tensorflow", own("tensorflow", built))


@pytest.mark.needs("mxnet")
def test_an_optimizer_of_mxnet_is_tried_without_a_trace():
    """Although it draws from NumPy, and its code knows the parameters."""
    import mxnet as mx

    parameters = []

    class Drawing(mx.optimizer.Optimizer):
        def update(self, index, weight, grad, state):
            parameters[0].set_data(parameters[0].data() * 2)
            weight[:] -= 0.1 * grad + float(np.random.randn())

    def make(self, named):
        parameters[:] = [named[0][1]]
        return Drawing()

    plain = learner("mxnet", task("mxnet", "Classifier")).weights()
    trained = learner("mxnet", task("mxnet", "Classifier", optimizer=make))
    assert_equal(trained.weights(), plain)


def counting(keras):
    class Counting(keras.optimizers.SGD):
        """Counts its updates in Python: in each graph that is made."""

        count = 0

        def apply_gradients(self, *given, **options):
            self.count += 1
            return super().apply_gradients(*given, **options)

    return Counting(0.1)


def holding(keras):
    import tensorflow as tf

    optimizer = keras.optimizers.SGD(0.1)
    optimizer.held = tf.Variable(0.0)
    return optimizer


LOST = {
    "count": counting,
    "held": holding,
    "_u_product": lambda keras: keras.optimizers.Nadam(0.1),
    "_u_product of a scaled one": lambda keras: keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Nadam(0.1)),
}


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("name", LOST)
def test_what_a_graph_or_a_checkpoint_would_not_have_is_refused(name):
    import tensorflow as tf

    from hvdtrain.frameworks.tensorflow.keras_versions import IS_KERAS_3

    target = own("tensorflow", lambda _: LOST[name](tf.keras))
    if "_u" in name and IS_KERAS_3:
        learner("tensorflow", target)
        return
    refused(lambda: learner("tensorflow", target), f"whose {name.split()[0]} is not one of its variables")


@pytest.mark.needs("tensorflow")
def test_momentum_is_not_taken_for_averages_of_the_same_shapes():
    import tensorflow as tf

    averaging = own("tensorflow", lambda _: tf.keras.optimizers.SGD(0.1, use_ema=True))
    state = learner("tensorflow", own("tensorflow", sgd)).optimizer_state()
    assert not learner("tensorflow", averaging).accepts_state(state)


OF_FIT = {
    "SGD": lambda keras: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5),
    "Adam that overwrites": lambda keras: keras.optimizers.Adam(
        0.05, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3
    ),
    "without": lambda keras: keras.optimizers.Adam(0.05),
}


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("kind", OF_FIT)
def test_evaluations_and_the_end_have_the_weights_of_keras_fit(kind, tmp_path):
    """Also after a resume, and from weights that were loaded before the first step."""
    import tensorflow as tf

    numbers = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    labels = (numbers[:, 0] > 0).astype(np.int64)

    class Task:
        def data(self):
            return (numbers, labels), (numbers[:5], labels[:5])

        def model(self):
            return tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])

        def optimizer(self, parameters):
            return OF_FIT[kind](tf.keras)

    tf.keras.utils.set_random_seed(0)
    expected = Task().model()
    expected.compile(Task().optimizer([]), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    first = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2), np.float32([0.1, -0.1])
    expected.set_weights(first)
    weights = {"0.kernel": first[0], "1.bias": first[1]}
    safetensors.numpy.save_file(weights, tmp_path / "first.safetensors")
    expected.fit(numbers, labels, 16, 5, verbose=0, shuffle=False)
    config = Config(framework="tensorflow", strategy="single", batch_size=16, weights=f"{tmp_path}/first.safetensors")
    with quickly():
        for epochs, resume in ((2, None), (5, "auto")):
            options = RuntimeOptions(runs=tmp_path, name="run", resume=resume, device="cpu", quiet=True)
            hvdtrain.fit(Task(), dataclasses.replace(config, epochs=epochs), options)
    model, (_, saved) = hvdtrain.load(tmp_path / "run", task=Task), checkpoints.newest(tmp_path / "run")
    for found, value in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(found, value, 1e-5, 1e-6)
    assert bool(saved.averages) == (kind != "without")
    loss = expected.evaluate(numbers[:5], labels[:5], verbose=0)
    assert result(tmp_path / "run")["loss"] == pytest.approx(loss, rel=1e-5)
