"""Losses and metrics that mix the rows of a batch, and a softmax before the cross entropy of logits, are found."""

import copy
import io

import numpy as np
import pytest
from support.learners import learner, task
from support.stack import FRAMEWORKS

from hvdtrain.errors import UserError
from hvdtrain.frameworks.row_checks import FirstOutputs, is_of_probabilities, mixing


def of_last_row(self, outputs, labels):
    return outputs[:, 0] - outputs[-1:, 0]


def by_row(self, outputs, labels):
    return outputs[:, 0] * outputs[:, 0]


MISTAKES = {
    "the loss": {"losses": of_last_row, "metrics": None},
    "the metric m": {"losses": by_row, "metrics": lambda self, *rows: {"m": of_last_row(self, *rows)}},
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("what", MISTAKES)
def test_a_task_that_mixes_rows_is_an_error_unless_it_says_so(framework, what):
    with pytest.raises(
        UserError, match=f"{what} of a row depends on the other rows of its batch.*attribute mixes_rows"
    ):
        learner(framework, task(framework, "Classifier", **MISTAKES[what]))
    learner(framework, task(framework, "Classifier", **MISTAKES[what], mixes_rows=True))


def changing(self, outputs, labels):
    outputs = outputs.sigmoid_()
    labels -= 1
    return (outputs[:, 0] - labels) ** 2


def test_losses_that_change_their_arguments_train_as_before():
    pytest.importorskip("torch")
    learner("torch", task("torch", "Classifier", losses=changing, metrics=None))


OUTPUTS, TARGETS = np.array([[0.1], [0.2], [0.4]]), np.array([1.0, 2.0, 4.0])


@pytest.mark.parametrize(
    ("find", "is_found"),
    [
        (lambda outputs, targets: ((outputs - targets) ** 2).mean(1), True),
        (lambda outputs, targets: ((outputs[:, 0] - targets) ** 2).mean() + 0 * targets, True),
        (lambda outputs, targets: (outputs[:, 0] - targets) ** 2 / len(targets), True),
        (lambda outputs, targets: (outputs[:, 0] - targets) ** 2, False),
        (lambda outputs, targets: targets + np.random.rand(len(targets)), False),
        (lambda outputs, targets: np.stack([targets[0] + targets[2], *targets[1:]]), False),
    ],
)
def test_values_of_one_row_are_the_first_of_several(find, is_found):
    """What is random, or takes no single row, says nothing."""
    assert mixing(lambda *rows: {"it": find(*rows)}, OUTPUTS, TARGETS, 3) == ("it" if is_found else "")
    in_parts = {"a": [OUTPUTS], "rate": np.array(2.0)}
    assert mixing(lambda out, targets: {"it": find(out["a"][0], targets)}, in_parts, TARGETS, 3) == "it" * is_found


@pytest.mark.parametrize(
    ("outputs", "distances", "is_found"),
    [
        ({"out": OUTPUTS, "centers": OUTPUTS + 1}, lambda of: (of["out"] - of["centers"].T).mean(1), False),
        (
            [{"boxes": OUTPUTS}] * 2 + [{"boxes": OUTPUTS + 1}],
            lambda of: np.stack([one["boxes"].sum() for one in of]),
            False,
        ),
        ([OUTPUTS, OUTPUTS + 1], lambda of: of[0][:, 0] - of[0].mean() + 2 * of[1].mean(), True),
    ],
)
def test_outputs_of_as_many_parts_as_rows_are_no_rows(outputs, distances, is_found):
    """Such as the centers of as many classes."""
    found = mixing(lambda of, targets: {"it": (distances(of)[: len(targets)] - targets)}, outputs, TARGETS, 3)
    assert found == "it" * is_found


def test_probabilities_are_known_by_their_cross_entropy():
    logits, labels = np.random.default_rng(0).normal(size=(5, 3)), np.array([0, 1, 2, 0, 1])

    def cross_entropy(outputs):
        return np.log(np.exp(outputs).sum(1)) - outputs[np.arange(5), labels]

    outputs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert is_of_probabilities(outputs, labels, cross_entropy(outputs))
    assert not is_of_probabilities(outputs, labels, -np.log(outputs[np.arange(5), labels])), "its own loss"
    assert not is_of_probabilities(logits, labels, cross_entropy(logits))
    assert not is_of_probabilities([outputs], labels, cross_entropy(outputs))


def test_outputs_that_cannot_be_probabilities_are_not_copied():
    """Logits of each token are large, and sparse or quantized tensors have no other precision."""

    class Tokens:
        shape, __array__ = (2, 3, 4), None

    assert not is_of_probabilities(Tokens(), np.zeros(2), np.zeros(2))
    torch = pytest.importorskip("torch")
    assert not is_of_probabilities(torch.eye(2).to_sparse(), np.zeros(2), np.zeros(2))


def test_a_model_is_copied_and_saved_in_its_first_step_without_what_is_kept():
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)
    first = FirstOutputs(model, (np.zeros(2, np.int64),))
    model(torch.eye(2))
    average, saved = copy.deepcopy(model), io.BytesIO()
    torch.save(model, saved)
    average(torch.eye(2))
    assert [hook.outputs for hook in average._forward_hooks.values()] == [None]
    assert first.end(torch.zeros(2)) == ""
    assert not model._forward_hooks
