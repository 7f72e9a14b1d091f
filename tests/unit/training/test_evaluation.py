"""Scores of an evaluation."""

import json
import tracemalloc

import numpy as np
import pytest

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.interfaces.learner import Evaluated
from hvdtrain.runs.metrics import EVALUATION_NAMES, MetricsWriter
from hvdtrain.training.evaluation import MAX_CONFUSED, Sums


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


@pytest.mark.parametrize("classes", [MAX_CONFUSED + 1, 100_000])
def test_many_classes_have_accuracies_and_no_matrix(classes):
    """The matrix of 100,000 classes would take 80 GB on each rank, and one of 4,000 a minute in result.json."""
    labels = np.arange(classes)
    tracemalloc.start()
    sums = Sums(classes)
    sums.add(Evaluated(1.0, {"accuracy": 1.0}, np.where(labels == 3, 0, labels)), (labels, labels))
    scores = sums.join(SingleProcess())
    assert tracemalloc.get_traced_memory()[1] < 1 << 26
    tracemalloc.stop()
    assert scores.confusion is None
    assert scores.per_class() == [float(label != 3) for label in range(classes)]


@pytest.mark.parametrize("name", sorted({"", *EVALUATION_NAMES}))
def test_a_metric_named_as_a_value_of_the_record_has_another_name(name, tmp_path):
    sums = Sums(0)
    sums.add(Evaluated(4.0, {name: 3.0, f"{name}_": 1.0, "right": 2.0}), (np.zeros(2),))
    scores = sums.join(SingleProcess())
    assert (scores.loss, scores.metrics) == (2.0, {f"{name}__": 1.5, f"{name}_": 0.5, "right": 1.0})
    writer = MetricsWriter(tmp_path)
    writer.write("test", 7, epoch=1.0, loss=scores.loss, **scores.metrics)
    writer.close()
    record = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert record.pop("time") > 1e9
    assert record == {"kind": "test", "step": 7, "epoch": 1.0, "loss": 2.0, **scores.metrics}
