"""Scores of an evaluation, and ranks that were slow at it."""

import numpy as np

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.training.evaluation import join_scores, slow_ranks


def test_scores_and_per_class_accuracy():
    scores = join_scores(SingleProcess(), 6.0, np.array([[3.0, 1.0], [0.0, 2.0]]))
    assert scores[:2] == (1.0, 5 / 6)
    assert scores.per_class() == [0.75, 1.0]
    assert scores.confusion.tolist() == [[3, 1], [0, 2]]


def test_slow_ranks_take_much_longer_than_the_median():
    assert slow_ranks([1.0, 1.1, 1.6, 0.9]) == [2]
    assert slow_ranks([0.01, 0.01, 0.05]) == [], "a difference below 0.1 s does not count"
