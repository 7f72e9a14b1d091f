"""Parameters that get a gradient in some steps only, with DistributedDataParallel, which waits for all of them."""

import numpy as np
import pytest
import torch
from support import learners
from torch import nn

from hvdtrain.errors import UserError
from hvdtrain.interfaces import Batch
from hvdtrain.tasks.user import make_task

NUMBERS = np.array([[0.0, 1.0], [2.0, 1.0]] * 4, np.float32)
LABELS = np.zeros(8, np.int64)
WITHOUT = np.arange(0, 8, 2)
"""Rows whose step has no gradient of one layer."""


class Branching(nn.Module):
    """Has a second layer for rows whose first number is positive."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, numbers):
        outputs = self.first(numbers)
        return outputs + self.second(numbers) if (numbers[:, 0] > 0).any() else outputs


class Task:
    def data(self):
        return (NUMBERS, LABELS), (NUMBERS, LABELS)

    def model(self):
        return Branching()


@pytest.fixture
def learner():
    """Makes a learner of a task whose attributes are given."""

    def make(**attributes):
        task = make_task("task.py:Task", type("Task", (Task,), attributes))
        return learners.learner("torch", task, strategy="ddp", lr=0.1)

    yield make
    torch.distributed.destroy_process_group()


def step(learner, rows):
    return float(
        learner.train_step(Batch((NUMBERS[rows], LABELS[rows]), np.full(len(rows), 0.25, np.float32), 0.1, 0, rows))
    )


def test_a_task_says_that_parameters_may_be_unused(learner):
    trained = learner(unused_parameters=True)
    before = trained.weights()
    losses = [step(trained, WITHOUT), step(trained, np.arange(4)), step(trained, WITHOUT)]
    assert losses[2] < losses[0]
    assert not np.array_equal(trained.weights()["second.weight"], before["second.weight"])


def test_without_that_the_first_such_step_is_an_error_that_names_the_attribute(learner):
    trained = learner()
    step(trained, np.arange(4))
    with pytest.raises(UserError) as error:
        step(trained, WITHOUT)
    assert "second.weight" in error.value.reason and "unused_parameters = True" in error.value.remedy
