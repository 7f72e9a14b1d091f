"""Rows of a task: map-style data sets, and training rows that it augments, by seed, epoch and row only."""

from __future__ import annotations

import itertools
import random
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from support.errors import refused
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.images_and_labels import ImagesAndLabels
from hvdtrain.datasets.reader import Reader
from hvdtrain.datasets.row_random import Draw, row_generators
from hvdtrain.datasets.rows import CheckedRows, RowError
from hvdtrain.errors import UserError
from hvdtrain.tasks.registry import load_target
from hvdtrain.tasks.rows import AugmentedRows
from hvdtrain.tasks.user import make_task

X, Y = np.arange(48, dtype=np.float32).reshape(12, 4), np.arange(12)


class Rows:
    def __init__(self, make, length=12):
        self.make, self.length = make, length

    def __len__(self):
        return self.length

    def __getitem__(self, row):
        assert type(row) is int
        return self.make(row)


def made(train, test=None, skip=False):
    methods = {"data": lambda self: (train, train if test is None else test), "model": lambda self: None}
    return make_task("t.py:Task", type("Task", (), methods), skip_bad_rows=skip)


def tensors():
    return TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


def in_batches(sampler):
    return DataLoader(tensors(), batch_sampler=BatchSampler(sampler, 2, drop_last=False))


SWAPPED = X.astype(">f4"), Y.astype(">i8")
SAME = {
    "tensors": tensors(),
    "loader": DataLoader(tensors(), batch_size=3, shuffle=True),
    "loader of batches": in_batches(RandomSampler(X)),
    "subset": Subset(TensorDataset(*(torch.flip(each, (0,)) for each in tensors().tensors)), range(11, -1, -1)),
    "tuples": Rows(lambda row: (X[row], Y[row])),
    "lists": Rows(lambda row: [torch.from_numpy(X[row]), int(Y[row])]),
    "dictionaries": Rows(lambda row: {"x": X[row], "y": Y[row]}),
    "other byte order": Rows(lambda row: (SWAPPED[0][row], SWAPPED[1][row])),
    "arrays of other byte order": SWAPPED,
}


@pytest.mark.parametrize("rows", SAME.values(), ids=SAME)
def test_rows_are_those_of_arrays(rows):
    dataset = made(rows, (X, Y)).dataset
    assert len(dataset.train) == 12
    for array, expected in zip(dataset.train[np.array([7, 0, 7])], (X, Y), strict=True):
        assert np.array_equal(array, expected[[7, 0, 7]]) and array.dtype == expected.dtype and array.dtype.isnative


@pytest.mark.parametrize(("rows", "told"), [(3, 1), (1, 0), (None, 0)])
def test_a_batch_size_that_is_not_used_is_told(rows, told):
    advice = made(DataLoader(tensors(), batch_size=rows)).dataset.train.advice
    assert [f"batch_size {rows} is not used: --batch-size is" in text for text in advice] == [True] * told


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


WIDE = np.arange(36, dtype=np.float32).reshape(12, 3)
NESTED = {
    "tuples of arrays": Rows(lambda row: ((X[row], WIDE[row]), Y[row])),
    "tuples of tensors": Rows(lambda row: ((torch.from_numpy(X[row]), torch.from_numpy(WIDE[row])), Y[row])),
    "a source": type(
        "Source",
        (),
        {"fingerprint": "1", "__len__": lambda _: 12, "__getitem__": lambda _, rows: ((X[rows], WIDE[rows]), Y[rows])},
    )(),
    "arrays in memory": ((X, WIDE), Y),
    "a list of arrays in memory": ([X, WIDE], Y),
}
"""Rows of two inputs and a label, as Keras' fit and PyTorch's loaders take them."""


@pytest.mark.parametrize("rows", NESTED.values(), ids=NESTED)
def test_arrays_in_a_tuple_of_a_row_are_several(rows):
    train = made(rows, rows).dataset.train
    for array, expected in zip(train[np.array([7, 0])], (X, WIDE, Y), strict=True):
        assert np.array_equal(array, expected[[7, 0]])


@pytest.mark.parametrize(
    ("rows", "shape"),
    [
        (Rows(lambda row: ([1.0, 2.0], Y[row])), (2,)),
        (Rows(lambda row: ((np.float32(1), np.float32(2)), Y[row])), (2,)),
        (Rows(lambda row: ([[1.0, 2.0], [3.0, 4.0]], Y[row])), (2, 2)),
        (Rows(lambda row: ([X[row], X[row]], Y[row])), (2, *X.shape[1:])),
        (([*X], Y), X.shape[1:]),
        ((tuple(X), [*Y]), X.shape[1:]),
    ],
)
def test_numbers_in_a_tuple_or_list_are_one_array(rows, shape):
    assert [array.shape for array in made(rows, rows).dataset.train[np.arange(2)]] == [(2, *shape), (2,)]


def fail(error):
    raise error


class Padded:
    """A source whose rows have several lengths."""

    fingerprint = "padded"

    def __len__(self):
        return 12

    def __getitem__(self, rows):
        return np.ones((len(rows), 1 + int(rows.max())), np.float32), Y[rows]


class Wrong(Padded):
    """A source that returns all rows, whichever it is asked for."""

    def __getitem__(self, rows):
        return X, Y


def items(item):
    """Rows which all are this one."""
    return Rows(lambda row: fail(item) if isinstance(item, Exception) else item)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (items({"x": "a"}), "the training rows (row 0): is str; return arrays of numbers"),
        (items((["a", "b"], 0)), "the training rows (row 0): is list, int; return arrays of numbers"),
        (items((b"a", 0)), "the training rows (row 0): is bytes, int; return arrays of numbers"),
        (
            (np.array(["a"] * 12), Y),
            "makes rows of these (docs/own.md); let data() turn texts into numbers, as by StringLookup",
        ),
        ((["a"] * 12, Y), "the training rows are list, int64; return arrays of numbers"),
        (items((None, 0)), "the training rows (row 0): is NoneType, int; return arrays"),
        (items((X[0], None)), "the training rows (row 0): is float32, NoneType; return arrays"),
        (items((np.ones(2, np.longdouble), 1)), "int; return arrays of numbers of at most 64 bits"),
        (items(()), "is nothing; return arrays"),
        (items(ValueError("no")), "the training rows (row 0): cannot be read (ValueError: no)"),
        ({"x": X}, "the training rows are dict; return arrays of numbers of at most 64 bits, or an object"),
        (3, "the training rows: int has no rows that have numbers; give it __len__"),
        (type("Stream", (IterableDataset,), {"__iter__": iter})(), "how many rows Stream has is not known"),
        (DataLoader(tensors(), collate_fn=list), "a DataLoader with list, which hvdtrain does not call"),
        (DataLoader(tensors(), sampler=WeightedRandomSampler([1] * 12, 8)), "a DataLoader with WeightedRandomSampler"),
        (in_batches(SubsetRandomSampler(range(4))), "a DataLoader with SubsetRandomSampler"),
        (in_batches(SequentialSampler(range(4))), "a DataLoader with SequentialSampler of 4 rows"),
        (in_batches(RandomSampler(X, num_samples=5)), "a DataLoader with RandomSampler of 5 rows"),
        (Rows(None, 0), "the training rows: Rows has no rows that have numbers"),
        (Wrong(), "(row 0): has arrays of shape (12, 4) and (12,) for 1 row(s)"),
    ],
)
def test_objects_that_make_no_rows(rows, text):
    refused(lambda: made(rows, (X, Y)), "--model t.py:Task: ", text)


def odd(row):
    """A row that is unlike the others, and one that cannot be read."""
    return fail(OSError("gone")) if row == 5 else (X[row, : 3 if row == 9 else 4], Y[row])


def test_a_row_of_another_shape_is_named_or_skipped():
    rows = made(Rows(odd)).dataset.train
    text = r"rows \(row 9\): is float32 \(3,\) and int64 \(\), the first row is float32 \(4,\) and int64 \(\); give all"
    with pytest.raises(RowError, match=text):
        rows[np.array([8, 9])]
    with pytest.raises(RowError, match=r"rows \(row 5\): cannot be read \(OSError: gone\)"):
        rows[np.array([5])]
    with pytest.raises(RowError, match=r"\(row 3\): is float32 \(4,\) and int64 \(\), the first row is float32 \(1,\)"):
        made(Padded(), (X[:, :1], Y)).dataset.train[np.array([0, 3])]
    found = made(Rows(odd), skip=True).dataset.train.read(np.array([5, 8, 9]))
    assert list(found.bad) == [0, 2] and np.array_equal(found.arrays[0], X[[8, 8, 8]])


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
    first, second = (rows.read(one, Draw(7, 2)).arrays[0] for one in batches)
    assert drawn() == expected
    assert np.array_equal(first, second[::-1]) and len(np.unique(first)) == 6
    for draw in (Draw(7, 3), Draw(8, 2)):
        assert not np.isin(rows.read(batches[0], draw).arrays[0], first).any()


def test_rows_that_are_read_in_threads_are_not_seeded():
    made_rows = Rows(lambda row: np.array(drawn()))
    made_rows.background = "threads"
    rows = made(made_rows).dataset.train
    one, other = (rows.read(np.array([3]), Draw(7, 2)).arrays[0] for _ in range(2))
    assert not np.isin(one, other).any()


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


CALLS = itertools.count()
"""Numbers, of which two that follow each other are as good as equal as floats."""


def augmented(augment=Task.augment, **methods):
    return make_task("t.py:Task", type("Own", (Task,), {"augment": augment, **methods}))


def expected(rows, seed, epoch):
    noise = [one.normal() for one in row_generators(Draw(seed, epoch), rows)]
    return X[rows] + np.array(noise, np.float32)[:, None]


@pytest.mark.guarantee("augmented-rows")
def test_training_rows_are_augmented_by_seed_epoch_and_row_and_others_are_not():
    dataset = augmented().dataset
    for seed, epoch in ((0, 0), (3, 0), (3, 1)):
        with Reader(dataset, 0, None, seed) as reader:
            for rows, found in zip(ROWS, reader.batches("train", ROWS, epoch), strict=True):
                assert np.array_equal(found.arrays[0], expected(rows, seed, epoch))
                assert np.array_equal(found.arrays[1], rows)
            (found,) = reader.batches("test", [np.array([1, 0])])
            assert np.array_equal(found.arrays[0], X[[1, 0]])
    assert np.array_equal(X, np.arange(48).reshape(12, 4)), "the task's own arrays stay as they are"


FILE = """
    import os, random
    import numpy as np

    class Rows:
        fingerprint = "rows"
        def __len__(self):
            return 12
        def __getitem__(self, rows):
            return X[rows], Y[rows]

    X, Y = np.arange(48, dtype=np.float32).reshape(12, 4), np.arange(12)

    class MapStyle:
        def __len__(self):
            return 12
        def __getitem__(self, row):
            import torch
            return np.append(X[row], [np.float32(np.random.rand()), random.random(), torch.rand(()).item()]), Y[row]

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

    class Random(InMemory):
        def data(self):
            return MapStyle(), MapStyle()

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
@pytest.mark.parametrize("name", ["InMemory", "Source", "Random"])
def test_processes_augment_as_the_rank_does(task, name):
    trained, dataset = task(name, arg=("scale=2.0",))
    found = []
    for workers in (0, 2):
        with Reader(dataset, workers, trained.loader_spec, 7) as reader:
            assert len(reader._processes) == workers
            found.append([read.arrays for read in reader.batches("train", [*ROWS, *ROWS], 3)])
    for one, other in zip(*found, strict=True):
        assert all(map(np.array_equal, one, other))
    assert all(map(np.array_equal, found[0][0], found[0][3])), "the same rows of an epoch"
    assert not np.array_equal(found[0][1][0][:, :4], X[[11]])


def test_a_task_that_other_processes_cannot_load_is_read_in_its_rank():
    with Reader(augmented().dataset, 2) as reader:
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


class Broken(CheckedRows):
    fingerprint = "broken"

    def __init__(self, bad):
        super().__init__("broken", 6, True, ImagesAndLabels(range(10)))
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
    rows = AugmentedRows("task", Broken({0, 1, 2, 3, 5}), brighter)
    found = rows.read(np.array([3, 4]), Draw(0, 0))
    assert list(found.bad) == [0] and found.arrays[0].min() == 1
    found = rows.read(np.array([3, 5]), Draw(0, 0))
    assert list(found.bad) == [0, 1] and found.arrays[0].min() == 1 and found.arrays[1].tolist() == [4, 4]
    assert [(one.shape, one.dtype) for one in found.arrays] == [((2, 1, 2, 2), np.float64), ((2,), np.int64)]


@pytest.mark.parametrize(
    ("augment", "text"),
    [
        (lambda self, rows, generators: None, "returned NoneType; return a tuple of arrays"),
        (
            lambda self, rows, generators: (rows[0][1:], rows[1]),
            "arrays of shape (3, 4) and (4,) for 4 row(s)",
        ),
        (lambda self, rows: rows, "failed (TypeError: "),
        (lambda self, rows, generators: (rows[0] + np.random.rand(), rows[1]), "returned other values when it was"),
        (lambda self, rows, generators: (rows[0], rows[1] + 10**9 + next(CALLS)), "returned other values when it was"),
        (lambda self, rows, generators: (rows[0].astype("f8"), rows[1]), "; augment() returned float64 (4,) and int64"),
    ],
)
def test_mistakes_are_found_before_training(augment, text):
    refused(lambda: augmented(augment), "--model t.py:Task: ", text)


def test_a_row_that_depends_on_its_batch_is_a_warning():
    (warning,) = augmented(lambda self, rows, generators: (rows[0] - rows[0].mean(0), rows[1])).dataset.train.advice
    assert "augment() gives a row values that depend on the other rows of its batch" in warning
    assert augmented().dataset.train.advice == ()


def test_shape_and_type_may_change_but_not_between_rows():
    smaller = augmented(
        lambda self, rows, generators: (rows[0][:, 1:3].astype(np.float64), rows[1]),
        data=lambda self: ((X, Y), (X[:, 1:3].astype(np.float64), Y)),
    )
    assert smaller.dataset.train[np.array([3])][0].tolist() == [[13, 14]]
    task = augmented(lambda self, rows, generators: (rows[0][:, : 4 if rows[1][0] < 4 else 3], rows[1]))
    text = r"returned float32 \(3,\) and int64 \(\), but float32 \(4,\) and int64 \(\) for the first rows"
    with pytest.raises(UserError, match=text):
        task.dataset.train[np.array([9])]
