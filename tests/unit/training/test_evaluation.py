"""Scores of an evaluation."""

import numpy as np

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.interfaces import Evaluated
from hvdtrain.training.evaluation import Sums


def test_scores_and_per_class_accuracy():
    labels, predicted = np.array([0, 0, 0, 0, 1, 1]), np.array([0, 0, 0, 1, 1, 1])
    sums = Sums(2)
    for rows in (slice(0, 4), slice(4, 6)):
        right = float(np.count_nonzero(labels[rows] == predicted[rows]))
        evaluated = Evaluated(len(labels[rows]), {"accuracy": right}, predicted[rows])
        sums.add(evaluated, (labels[rows], labels[rows]))
    scores = sums.join(SingleProcess())
    assert (scores.loss, scores.metrics) == (1.0, {"accuracy": 5 / 6})
    assert scores.per_class() == [0.75, 1.0]
    assert scores.confusion.tolist() == [[3, 1], [0, 2]]


def test_scores_of_a_task():
    sums = Sums(0)
    sums.add(Evaluated(4.0, {"error": 3.0, "hits": 1.0}), (np.zeros(2),))
    sums.add(Evaluated(5.0, {"error": 0.0, "hits": 1.0}), (np.zeros(1),))
    scores = sums.join(SingleProcess())
    assert (scores.loss, scores.metrics) == (3.0, {"error": 1.0, "hits": 2 / 3})
    assert scores.confusion is None and scores.per_class() == []
