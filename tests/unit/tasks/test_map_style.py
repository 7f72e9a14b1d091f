"""Map-style data sets as the rows of a task: of any arrays, checked, and with seeded random numbers."""

from __future__ import annotations

import random
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, WeightedRandomSampler

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.reader import Reader
from hvdtrain.datasets.row_random import Draw
from hvdtrain.datasets.rows import RowError, read_rows
from hvdtrain.errors import UserError
from hvdtrain.tasks.registry import load_target
from hvdtrain.tasks.user import make_task

X, Y = np.arange(48, dtype=np.float32).reshape(12, 4), np.arange(12)


class Rows:
    """Rows that a function makes."""

    def __init__(self, make, length=12):
        self.make, self.length = make, length

    def __len__(self):
        return self.length

    def __getitem__(self, row):
        assert type(row) is int
        return self.make(row)


def made(train, test=None, skip=False):
    """A task with these rows."""
    methods = {"data": lambda self: (train, train if test is None else test), "model": lambda self: None}
    return make_task("t.py:Task", type("Task", (), methods), skip_bad_rows=skip)


def tensors():
    return TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


@pytest.mark.parametrize(
    "rows",
    [
        tensors(),
        Subset(TensorDataset(torch.from_numpy(X[::-1].copy()), torch.from_numpy(Y[::-1].copy())), range(11, -1, -1)),
        Rows(lambda row: (X[row], Y[row])),
        Rows(lambda row: [torch.from_numpy(X[row]), int(Y[row])]),
    ],
)
def test_rows_are_those_of_arrays(rows):
    dataset = made(rows, (X, Y)).dataset
    assert len(dataset.train) == 12
    for array, expected in zip(dataset.train[np.array([7, 0, 7])], (X, Y), strict=True):
        assert np.array_equal(array, expected[[7, 0, 7]]) and array.dtype == expected.dtype


def test_a_row_of_one_array_and_the_fingerprint():
    dataset = made(Rows(lambda row: X[row])).dataset
    assert [array.shape for array in dataset.train[np.arange(3)]] == [(3, 4)]
    assert dataset.fingerprint == made(Rows(lambda row: X[row])).dataset.fingerprint
    assert dataset.fingerprint != made(Rows(lambda row: X[row] + 1)).dataset.fingerprint
    assert dataset.fingerprint != made(Rows(lambda row: X[row], 11)).dataset.fingerprint
    noise = [made(Rows(lambda row: (np.random.rand(3), Y[row]))).dataset.fingerprint for _ in range(2)]
    assert noise[0] == noise[1], "values that differ each time do not count"
    rare = [made(Rows(lambda row: X[row] + (np.random.rand() < 0.3))).dataset.fingerprint for _ in range(5)]
    assert len(set(rare)) == 1, "nor do those that seldom differ"


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"x": "a"}, "the training rows (row 0): is str; return a tuple of arrays and numbers"),
        ((X[0], None), "the training rows (row 0): is float32, NoneType; return a tuple of arrays and numbers"),
        (("a", 1), "is str, int; return a tuple"),
        ((np.ones(2, np.longdouble), 1), "int; return a tuple of arrays and numbers, of at most 64 bits"),
        ((), "is tuple; return a tuple"),
        (ValueError("no"), "the training rows (row 0): cannot be read (ValueError: no)"),
    ],
)
def test_rows_that_are_no_arrays(item, text):
    assert_refused(Rows(lambda row: fail(item) if isinstance(item, Exception) else item), text)


def fail(error):
    raise error


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ({"x": X}, "the training rows are dict; return arrays of numbers of at most 64 bits, or an object"),
        ("rows", "the training rows are str"),
        (3, "the training rows: int has no __len__ and no __getitem__; give it __len__ and __getitem__"),
        (type("Stream", (IterableDataset,), {"__iter__": iter})(), "how many rows Stream has is not known"),
        (
            DataLoader(TensorDataset(torch.ones(4)), collate_fn=list),
            "a DataLoader with list, which hvdtrain does not call",
        ),
        (
            DataLoader(TensorDataset(torch.ones(4)), sampler=WeightedRandomSampler([1, 1, 1, 1], 8)),
            "a DataLoader with WeightedRandomSampler, which decides the rows of an epoch",
        ),
        (Rows(None, 0), "the training rows: has no rows; give it at least 1"),
    ],
)
def test_objects_that_make_no_rows(rows, text):
    assert_refused(rows, text)


def assert_refused(rows, text):
    with pytest.raises(UserError) as caught:
        made(rows, (X, Y))
    assert "--model t.py:Task: " in str(caught.value) and text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["arrays", "rows"])
def test_rows_of_another_byte_order_become_those_of_this_machine(kind):
    numbers, labels = X.astype(">f4"), Y.astype(">i8")
    train = made((numbers, labels) if kind == "arrays" else Rows(lambda row: (numbers[row], labels[row])), (X, Y))
    for array, expected in zip(train.dataset.train[np.arange(3)], (X, Y), strict=True):
        assert array.dtype.isnative and np.array_equal(array, expected[:3])


def odd(row):
    """A row that is unlike the others, and one that cannot be read."""
    return fail(OSError("gone")) if row == 5 else (X[row, : 3 if row == 9 else 4], Y[row])


def test_a_row_of_another_shape_is_named():
    rows = made(Rows(odd)).dataset.train
    text = r"rows \(row 9\): is float32 \(3,\) and int64 \(\), the first row is float32 \(4,\) and int64 \(\); give all"
    with pytest.raises(RowError, match=text):
        rows[np.array([8, 9])]
    with pytest.raises(RowError, match=r"rows \(row 5\): cannot be read \(OSError: gone\)"):
        rows[np.array([5])]


def test_bad_rows_are_skipped():
    found = read_rows(made(Rows(odd), skip=True).dataset.train, np.array([5, 8, 9]))
    assert list(found.bad) == [0, 2] and np.array_equal(found.arrays[0], X[[8, 8, 8]])


class Padded:
    """A source whose rows have several lengths."""

    fingerprint = "padded"

    def __len__(self):
        return 12

    def __getitem__(self, rows):
        return np.ones((len(rows), 1 + int(rows.max())), np.float32), Y[rows]


def test_a_row_of_a_source_that_is_of_another_shape_is_named():
    source = made(Padded(), (X[:, :1], Y)).dataset.train
    assert source[np.array([0, 0])][0].shape == (2, 1)
    with pytest.raises(
        RowError, match=r"rows \(row 3\): is float32 \(4,\) and int64 \(\), the first row is float32 \(1,\)"
    ):
        source[np.array([0, 3])]


class Wrong(Padded):
    """A source that returns all rows, whichever it is asked for."""

    def __getitem__(self, rows):
        return X, Y


def test_a_source_that_returns_other_rows_than_it_was_asked_for():
    assert_refused(Wrong(), "(row 0): has arrays of shape (12, 4) and (12,) for 1 row number(s)")


FILE = """
    import random
    import numpy as np
    import torch

    class Rows:
        def __len__(self):
            return 12
        def __getitem__(self, row):
            return np.array([row, random.random(), np.random.rand(), torch.rand(()).item()], np.float32)

    class Task:
        def data(self):
            return Rows(), Rows()
        def model(self):
            return None
"""


def drawn():
    """The next random number of each global generator."""
    return random.random(), np.random.rand(), torch.rand(()).item()


@pytest.mark.guarantee("augmented-rows")
def test_global_generators_are_seeded_for_each_row_and_are_as_before_afterwards():
    rows = made(Rows(lambda row: np.array(drawn()))).dataset.train
    batches = [np.array([3, 4]), np.array([4, 3])]
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = drawn()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    first, second = (read_rows(rows, one, Draw(7, 2)).arrays[0] for one in batches)
    assert drawn() == expected
    assert np.array_equal(first, second[::-1]) and len(np.unique(first)) == 6
    for draw in (Draw(7, 3), Draw(8, 2)):
        assert not np.isin(read_rows(rows, batches[0], draw).arrays[0], first).any()


def test_rows_that_are_read_in_threads_are_not_seeded():
    made_rows = Rows(lambda row: np.array(drawn()))
    made_rows.background = "threads"
    rows = made(made_rows).dataset.train
    one, other = (read_rows(rows, np.array([3]), Draw(7, 2)).arrays[0] for _ in range(2))
    assert not np.isin(one, other).any()


@pytest.mark.guarantee("augmented-rows")
def test_processes_read_the_rows_of_the_rank(tmp_path: Path):
    (tmp_path / "random_rows.py").write_text(textwrap.dedent(FILE))
    task, dataset = load_target(Config(model=f"{tmp_path}/random_rows.py:Task"), RuntimeOptions())
    found = []
    for workers in (0, 1):
        with Reader(dataset, workers, task.loader_spec, 3) as reader:
            assert len(reader._processes) == workers
            found.append([*reader.batches("train", [np.arange(4), np.arange(4)], 1), *reader.batches("test", [Y])])
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one.arrays[0], other.arrays[0])
    assert np.array_equal(found[0][0].arrays[0], found[0][1].arrays[0])
    for module in [name for name in sys.modules if name.startswith("hvdtrain_user_random_rows")]:
        del sys.modules[module]


def test_a_loader_stands_for_its_data_set():
    rows = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    task = made(DataLoader(rows, batch_size=3, shuffle=True), DataLoader(rows))
    same = made(rows, rows)
    assert len(task.dataset.train) == len(X) and task.dataset.fingerprint == same.dataset.fingerprint


def test_rows_that_are_dictionaries_are_their_values():
    task = made(Dictionaries(), Dictionaries())
    x, y = task.dataset.train[np.array([2, 0])]
    assert np.array_equal(x, X[[2, 0]]) and np.array_equal(y, Y[[2, 0]])


class Dictionaries:
    def __len__(self):
        return len(X)

    def __getitem__(self, row):
        return {"x": X[row], "y": Y[row]}
