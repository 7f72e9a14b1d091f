"""The optimizer that a task in MXNet or TensorFlow brings; torch/test_task_optimizer.py has those of PyTorch."""

import numpy as np
import pytest
from numpy.testing import assert_equal
from support.learners import learner, task

from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Batch

FRAMEWORKS = ("mxnet", "tensorflow")


def sgd(framework, lr, momentum):
    if framework == "mxnet":
        import mxnet as mx

        return mx.optimizer.SGD(learning_rate=lr, momentum=momentum)
    import tensorflow as tf

    return tf.keras.optimizers.SGD(lr, momentum)


def steps(trained, target, numbers, lr=0.1):
    for step in numbers:
        rows = np.arange(8 * step, 8 * step + 8)
        trained.train_step(Batch(target.dataset.train[rows], np.full(8, 1 / 8, np.float32), lr, step, rows))


@pytest.mark.guarantee("user-resume")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_resumed_optimizer_continues_with_the_same_bits(framework):
    target = task(framework, "Scheduled")
    whole, first, resumed = (learner(framework, target, ema=0.9, on_nan="skip") for _ in range(3))
    steps(whole, target, range(4), lr=7.0)  # which nothing uses
    steps(first, target, range(2))
    state = first.optimizer_state()
    assert resumed.accepts_state(state)
    resumed.load(first.weights())
    resumed.load_averages(first.averages())
    resumed.load_optimizer_state(state)
    steps(resumed, target, range(2, 4))
    assert_equal(resumed.weights(), whole.weights())
    assert_equal(resumed.averages(), whole.averages())
    assert resumed.learning_rate == whole.learning_rate < 0.01


@pytest.mark.parametrize("framework", ["mxnet", pytest.param("tensorflow", marks=pytest.mark.matrix)])
def test_an_optimizer_of_a_task_makes_the_updates(framework):
    own = task(framework, "Sequences", optimizer=lambda self, parameters: sgd(framework, 0.1, 0.5))
    plain = task(framework, "Sequences")
    trained, expected = learner(framework, own), learner(framework, plain, momentum=0.5)
    assert (trained.learning_rate, expected.learning_rate) == (pytest.approx(0.1), None)
    for one, target in ((trained, own), (expected, plain)):
        steps(one, target, range(3))
    for name, value in expected.weights().items():
        np.testing.assert_allclose(trained.weights()[name], value, 1e-4, 1e-6)
    assert not learner(framework, task(framework, "Scheduled")).accepts_state(trained.optimizer_state())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_no_optimizer(framework):
    none = task(framework, "Sequences", optimizer=lambda self, parameters: None)
    with pytest.raises(UserError, match=r"optimizer\(\) returned NoneType; return one .*Optimizer"):
        learner(framework, none)
