"""Training rows that a task augments: by seed, epoch and row only, in the rank or in processes."""

from __future__ import annotations

import itertools
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.reader import Reader
from hvdtrain.datasets.row_random import Draw, row_generators
from hvdtrain.datasets.rows import RowSource, read_rows
from hvdtrain.errors import UserError
from hvdtrain.tasks.registry import load_target
from hvdtrain.tasks.rows import AugmentedRows
from hvdtrain.tasks.user import make_task

X, Y = np.arange(48, dtype=np.float32).reshape(12, 4), np.arange(12)
ROWS = [np.array([5, 0, 5]), np.array([11]), np.array([2, 9, 3, 4])]


class Task:
    def data(self):
        return (X, Y), (X[:2], Y[:2])

    def model(self):
        return None

    def augment(self, rows, generators):
        x, y = rows
        x += np.array([one.normal() for one in generators], np.float32)[:, None]
        return x, y


def made(augment=Task.augment, **methods):
    """The task with this method."""
    return make_task("t.py:Task", type("Own", (Task,), {"augment": augment, **methods}))


def expected(rows, seed, epoch):
    """What the task above makes of these rows."""
    noise = [one.normal() for one in row_generators(Draw(seed, epoch), rows)]
    return X[rows] + np.array(noise, np.float32)[:, None]


@pytest.mark.guarantee("augmented-rows")
def test_training_rows_are_augmented_by_seed_epoch_and_row_and_others_are_not():
    dataset = made().dataset
    for seed, epoch in ((0, 0), (3, 0), (3, 1)):
        with Reader(dataset, 0, None, seed) as reader:
            for rows, found in zip(ROWS, reader.batches("train", ROWS, epoch), strict=True):
                assert np.array_equal(found.arrays[0], expected(rows, seed, epoch))
                assert np.array_equal(found.arrays[1], rows)
            (found,) = reader.batches("test", [np.array([1, 0])])
            assert np.array_equal(found.arrays[0], X[[1, 0]])
    assert np.array_equal(X, np.arange(48).reshape(12, 4)), "the task's own arrays stay as they are"


def test_rows_without_an_epoch_are_augmented_too():
    assert np.array_equal(made().dataset.train[np.array([4, 1])][0], expected(np.array([4, 1]), 0, 0))


FILE = """
    import os
    import numpy as np

    class Rows:
        fingerprint = "rows"
        def __len__(self):
            return 12
        def __getitem__(self, rows):
            return X[rows], Y[rows]

    X, Y = np.arange(48, dtype=np.float32).reshape(12, 4), np.arange(12)

    class InMemory:
        def __init__(self, scale=1.0):
            self.scale = scale
        def data(self):
            return (X, Y), (X, Y)
        def model(self):
            return None
        def augment(self, rows, generators):
            noise = np.array([one.normal() for one in generators], np.float32)
            return rows[0] + noise[:, None] * self.scale, rows[1]

    class Source(InMemory):
        def data(self):
            return Rows(), Rows()

    class Pid(InMemory):
        def data(self):
            return (X, Y + os.getpid()), (X, Y)

    class Fails(InMemory):
        def augment(self, rows, generators):
            if 9 in rows[1]:
                raise KeyError("nine")
            return rows
"""


@pytest.fixture
def task(tmp_path: Path):
    """Load a class of a file with these options, as training does."""
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(FILE))
    yield lambda name, **options: load_target(Config(model=f"{path}:{name}", **options), RuntimeOptions())
    for module in [name for name in sys.modules if name.startswith("hvdtrain_user_mine")]:
        del sys.modules[module]


@pytest.mark.guarantee("augmented-rows")
@pytest.mark.parametrize("name", ["InMemory", "Source"])
def test_processes_augment_as_the_rank_does(task, name):
    trained, dataset = task(name, set=("scale=2.0",))
    found = []
    for workers in (0, 2):
        with Reader(dataset, workers, trained.loader_spec, 7) as reader:
            assert len(reader._processes) == workers
            found.append([read.arrays for read in reader.batches("train", ROWS, 3)])
    for one, other in zip(*found, strict=True):
        assert all(map(np.array_equal, one, other))
    assert not np.array_equal(found[0][1][0], X[[11]])


def test_a_task_that_other_processes_cannot_load_is_read_in_its_rank():
    with Reader(made().dataset, 2) as reader:
        assert (reader.workers, reader._processes) == (0, [])
        assert len(list(reader.batches("train", ROWS))) == len(ROWS)


def test_data_that_differ_in_another_process_are_an_error(task):
    trained, dataset = task("Pid")
    with Reader(dataset, 1, trained.loader_spec) as reader, pytest.raises(UserError, match="other rows in a process"):
        reader.wait_until_loaded()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_method_that_fails_in_training_is_one_line(task, workers):
    trained, dataset = task("Fails")
    with Reader(dataset, workers, trained.loader_spec) as reader:
        found = reader.batches("train", ROWS)
        next(found)
        next(found)
        with pytest.raises(
            UserError, match=r"mine.py:Fails: augment\(\) failed in line \d+ of mine.py \(KeyError: 'nine'\)"
        ):
            next(found)


class Broken(RowSource):
    """Images; some cannot be read."""

    fingerprint = "broken"

    def __init__(self, bad):
        super().__init__("broken", 6, 10, True)
        self.bad = bad

    def read_row(self, row):
        if row in self.bad:
            raise ValueError("broken")
        return np.full((2, 2), row, np.uint8), row


def brighter(rows, generators):
    """Fails on an image without content."""
    assert rows[0].any((1, 2, 3)).all()
    return rows[0] / rows[0].max((1, 2, 3), keepdims=True), rows[1]


def test_bad_rows_are_skipped_and_not_augmented():
    rows = AugmentedRows(Broken({0, 1, 2, 3, 5}), brighter, UserError)
    found = read_rows(rows, np.array([3, 4]), Draw(0, 0))
    assert list(found.bad) == [0] and found.arrays[0].min() == 1
    found = read_rows(rows, np.array([3, 5]), Draw(0, 0))
    assert list(found.bad) == [0, 1] and found.arrays[0].min() == 1 and found.arrays[1].tolist() == [4, 4]
    assert [(one.shape, one.dtype) for one in found.arrays] == [((2, 1, 2, 2), np.float64), ((2,), np.int64)]


def test_shape_and_type_may_change():
    train = made(lambda self, rows, generators: (rows[0][:, 1:3].astype(np.float64), rows[1]), data=smaller).dataset
    assert train.train[np.array([3])][0].tolist() == [[13, 14]]


def smaller(self):
    """Training rows of 4 numbers, test rows of 2."""
    return (X, Y), (X[:, 1:3].astype(np.float64), Y)


@pytest.mark.parametrize(
    ("augment", "text"),
    [
        (lambda self, rows, generators: None, "returned NoneType; return a tuple of arrays"),
        (lambda self, rows, generators: (), "returned tuple; return a tuple of arrays"),
        (lambda self, rows, generators: (rows[0], None), "returned an array of type object; return arrays of numbers"),
        (lambda self, rows, generators: (rows[0], "y"), "returned an array of type <U1"),
        (lambda self, rows, generators: (rows[0][1:], rows[1]), "returned an array of shape (3, 4) for 4 rows"),
        (lambda self, rows, generators: (rows[0], 3), "returned an array of shape () for 4 rows"),
        (lambda self, rows: rows, "failed (TypeError: "),
        (lambda self, rows, generators: (1 / 0,), "(ZeroDivisionError: division by zero); correct the task"),
        (
            lambda self, rows, generators: (rows[0] + np.random.rand(), rows[1]),
            "returned other values when it was called again for the same rows; draw random numbers only from the",
        ),
        (
            lambda self, rows, generators: (rows[0].astype(np.float64), rows[1]),
            "training rows are float32 (4,) and int64 (), test rows float32 (4,) and int64 (); augment() returned "
            "float64 (4,) and int64 (); return rows of the same shapes and types",
        ),
    ],
)
def test_mistakes_are_found_before_training(augment, text):
    with pytest.raises(UserError) as caught:
        made(augment)
    assert "--model t.py:Task: " in str(caught.value) and text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_large_integers_that_differ_by_one_are_different():
    calls = itertools.count()
    with pytest.raises(UserError, match="returned other values when it was called again"):
        made(lambda self, rows, generators: (rows[0], rows[1] + 10**9 + next(calls)))


def test_rows_of_other_shapes_are_named():
    rows = made(lambda self, rows, generators: (rows[0][:, : 4 if rows[1][0] < 4 else 3], rows[1])).dataset.train
    text = r"returned float32 \(3,\) and int64 \(\), but float32 \(4,\) and int64 \(\) for the first rows"
    with pytest.raises(UserError, match=text):
        rows[np.array([9])]


def test_a_row_that_depends_on_its_batch_is_a_warning():
    (warning,) = made(lambda self, rows, generators: (rows[0] - rows[0].mean(0), rows[1])).dataset.train.advice
    assert "augment() gives a row values that depend on the other rows of its batch" in warning
    assert made().dataset.train.advice == ()
