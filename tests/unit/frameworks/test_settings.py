"""The optimizer's settings that ranks compare: a rank that joins has those of the state that it gets."""

import numpy as np
import pytest
from support.learners import TASKS, learner, task
from support.stack import FRAMEWORKS

from hvdtrain.interfaces.reading import Batch
from hvdtrain.system.python_files import load_object
from hvdtrain.tasks.user import make_task


def target_of(framework, optimizer):
    """A task, with an optimizer of its own whose learning rate falls where it is to make the updates."""
    if optimizer != "its own":
        return task(framework, "Classifier")
    if framework == "torch":
        path = f"{TASKS}/own_optimizers.py:Noisy"
        return make_task(path, load_object(path, "--model"))
    return task(framework, "Scheduled")


def step(trained, target, number, lr):
    rows = np.arange(8 * number, 8 * number + 8)
    trained.train_step(Batch(target.dataset.train[rows], np.full(8, 1 / 8, np.float32), lr, number, rows))


@pytest.mark.guarantee("survive-lost-ranks")
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "its own"])
def test_a_rank_that_joins_has_the_settings_of_the_others(framework, optimizer):
    """Before it makes a step: others may have lost a rank after a step, of which all do again what is due then."""
    target, options = target_of(framework, optimizer), {} if optimizer == "its own" else {"optimizer": optimizer}
    there, joins = (learner(framework, target, **options) for _ in range(2))
    for one in (there, joins):
        one.set_length(10, 2)
    for number, lr in enumerate((0.1, 0.05, 0.02)):
        step(there, target, number, lr)
    step(joins, target, 0, 0.1)  # as a replacement does before it joins
    joins.load(there.weights())
    joins.load_optimizer_state(there.optimizer_state())
    assert joins.settings() == there.settings()
