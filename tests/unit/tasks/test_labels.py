"""Labels of the default loss outside the model's outputs."""

from __future__ import annotations

import numpy as np
import pytest

from hvdtrain.datasets.reader import Reader
from hvdtrain.errors import UserError
from hvdtrain.tasks.user import make_task

X, Y = np.arange(32, dtype=np.float32).reshape(8, 4), np.array([0, 1, 2, 0, 1, 7, 2, -1])
GOOD = (X[:5], Y[:5])


class Source:
    fingerprint = "1"

    def __init__(self, *arrays):
        self.arrays = arrays or (X, Y)

    def __len__(self):
        return 8

    def __getitem__(self, rows):
        return tuple(array[rows] for array in self.arrays)


def made(train, test=GOOD, skip=False, **methods):
    methods |= {"data": lambda self: (train, test), "model": lambda self: None}
    return make_task("t.py:Task", type("Task", (), methods), skip_bad_rows=skip)


def read(task, *batches, part="train", workers=0):
    with Reader(task.dataset, workers, check=task.labels) as reader:
        return list(reader.batches(part, map(np.array, batches)))


def larger(self, rows, generators):
    return rows[0], rows[1] + (rows[1] > 1)


@pytest.mark.parametrize(
    ("data", "outputs", "message"),
    [
        ({"train": (X, Y)}, 3, "Task: the label of training row 5 is 7, but the model has 3 outputs; "),
        ({"train": GOOD, "test": (X, Y)}, 8, "the label of test row 7 is -1, but the model has 8 outputs"),
        ({"train": Source()}, 0, "training row 0 is 0, but the model has 0 outputs"),
        ({"train": GOOD, "augment": larger}, 3, "the label of training row 2 is 3, but the model has 3 outputs"),
        ({"train": GOOD, "skip": True}, 0, "training row 4 is 1, but the model has 0 outputs, as those"),  # all are bad
    ],
    ids=["memory", "test", "source", "augmented", "skipped"],
)
def test_labels_that_are_known_are_checked_at_once(data, outputs, message):
    made(GOOD).labels.expect(3)
    with pytest.raises(UserError, match=message):
        made(**data).labels.expect(outputs)


@pytest.mark.parametrize("workers", [0, 1])
def test_other_labels_are_checked_when_they_are_read(workers):
    source = Source()
    source.background = "threads"
    task = made(source)
    assert len(read(task, [5, 7])) == 1, "losses of the task's own may take any labels"
    task.labels.expect(3)
    assert len(read(task, [0, 1], [6], workers=workers)) == 2
    with pytest.raises(UserError, match="the label of training row 7 is -1, but the model has 3 outputs"):
        read(task, [0, 7, 5], workers=workers)


def test_rows_with_wrong_labels_are_skipped_with_that_option():
    task = made((X, Y), skip=True)
    task.labels.expect(3)
    (found,) = read(task, [4, 5, 7])
    assert list(found.bad) == [1, 2] and found.arrays[1].tolist() == [1, 1, 1]
    assert "training row 5 is 7" in found.bad[1].reason
    (only_bad,) = read(task, [7, 5])
    assert list(only_bad.bad) == [0, 1] and only_bad.arrays[1].tolist() == [0, 0]
    assert np.array_equal(only_bad.arrays[0], X[[0, 0]])
    assert Y[5] == 7


@pytest.mark.parametrize("data", [lambda x, y: (x, y), Source])
def test_the_first_rows_may_have_wrong_labels_too(data):
    task = made(data(X[::-1], Y[::-1]), skip=True)  # labels -1, 2, 7, 1, ...
    assert [array.shape for array in task.first_rows()] == [(4, 4), (4,)]
    assert task.first_rows()[1].tolist() == [0, 0, 0, 0], "the trial's losses have labels that each model has"
    task.labels.expect(3)
    (only_bad,) = read(task, [2, 0])
    assert list(only_bad.bad) == [0, 1] and only_bad.arrays[1].tolist() == [2, 2]
    task.labels.expect(1)  # the first label 0 is that of row 4
    (only_bad,) = read(task, [0, 1])
    assert np.array_equal(only_bad.arrays[0], X[[3, 3]])
