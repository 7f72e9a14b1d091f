"""Rows of Python objects: dictionaries go by their keys, and data sets are told the epoch."""

import numpy as np
import pytest

from hvdtrain.datasets.division import UNDIVIDED, Division
from hvdtrain.datasets.formats.python_objects import load_parts
from hvdtrain.datasets.reader import Reader
from hvdtrain.datasets.row_random import Draw
from hvdtrain.datasets.rows import RowError
from hvdtrain.datasets.streams import Stream
from hvdtrain.datasets.weights import Weighted
from hvdtrain.errors import UserError

ROWS = 8


class Dictionaries:
    """Rows a, b and y of which odd ones, or with a shift even ones, have another order of keys."""

    def __init__(self, shift=0, **odd):
        self.shift, self.odd = shift, odd

    def __len__(self):
        return ROWS

    def __getitem__(self, number):
        if (number + self.shift) % 2:
            row = {"y": number % 3, "b": np.float32([number, 1]), "a": np.float32([number, 0])}
        else:
            row = {"a": np.float32([number, 0]), "b": np.float32([number, 1]), "y": number % 3}
        return {**row, **self.odd} if number == 5 else row


FORMS = {
    "map-style": lambda data: data,
    "a list": lambda data: [data[number] for number in range(ROWS)],
    "a tuple": lambda data: tuple(data[number] for number in range(ROWS)),
    "a stream": lambda data: Stream(lambda epoch: (data[number] for number in range(ROWS)), ROWS),
    "with weights": lambda data: Weighted(data, np.ones(ROWS)),
}


def load(train, test, division=UNDIVIDED, skip=False):
    return load_parts("here", train, None, test, skip, division, labels_at=2)


def is_right(source, numbers):
    a, b, y = source[np.array(numbers)]
    return a.tolist() == [[n, 0] for n in numbers] and b.tolist() == [[n, 1] for n in numbers] and y.dtype == np.int64


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shift", [0, 1])
def test_dictionaries_go_by_the_keys_of_the_first_training_row(form, shift):
    """Also in test rows whose own first row has another order, and that are read first, as a process may do."""
    made = FORMS[form]
    data = load(made(Dictionaries()), made(Dictionaries(shift)))
    assert is_right(data.test, [0, 1, 5, 6]) and is_right(data.train, [0, 1, 5, 6])


def test_dictionaries_go_by_keys_in_parts_that_are_divided():
    data = load(Dictionaries(), None, Division(0.5, 0.25, 0))
    for source in data.parts.values():
        a, b, _ = source[np.arange(len(source))]
        assert not a[:, 1].any() and b[:, 1].all()


@pytest.mark.parametrize("form", FORMS)
def test_other_keys_are_an_error_that_names_the_row(form):
    data = load(FORMS[form](Dictionaries(c=1)), Dictionaries())
    with pytest.raises(RowError, match=r"\(row 5\): its keys are .*c.*, and those of the first row a, b, y"):
        data.train[np.arange(ROWS)]
    skipped = load(FORMS[form](Dictionaries(c=1)), Dictionaries(), skip=True)
    assert [*skipped.train.read(np.arange(ROWS)).bad] == [5]


def test_a_row_that_is_no_dictionary_among_those_that_are():
    rows = [Dictionaries()[number] for number in range(4)] + [(np.zeros(2, np.float32), np.zeros(2, np.float32), 1)]
    with pytest.raises(RowError, match=r"\(row 4\): its keys are none"):
        load(rows, rows[:4]).train[np.arange(5)]
    with pytest.raises(RowError, match="those of the first row none"):
        load(rows[::-1], rows[:4]).train[np.arange(5)]


class Epochs:
    """Rows of the epoch that it was told last."""

    def __init__(self, background="processes"):
        self.epoch, self.told, self.background = -1, [], background

    def set_epoch(self, epoch):
        self.epoch = epoch
        self.told.append(epoch)

    def __len__(self):
        return ROWS

    def __getitem__(self, number):
        return np.float32([number]), self.epoch


class Subset:
    """As PyTorch's: a data set that has no set_epoch() around one that has it."""

    def __init__(self, dataset, first):
        self.dataset, self.first = dataset, first

    def __len__(self):
        return ROWS // 2

    def __getitem__(self, number):
        return self.dataset[self.first + number]


class Concatenated(Subset):
    def __init__(self, *datasets):
        self.datasets, self.dataset, self.first = datasets, None, 0

    def __getitem__(self, number):
        return self.datasets[number % 2][number]


class BySource(Epochs):
    """One that returns many rows at a time."""

    fingerprint = "its own"

    def __getitem__(self, numbers):
        return numbers.astype(np.float32)[:, None], np.full(len(numbers), self.epoch)


AROUND = {
    "itself": (Epochs(), lambda one: one),
    "in threads": (Epochs("threads"), lambda one: one),
    "source": (BySource(), lambda one: one),
    "subset": (Epochs(), lambda one: Subset(one, 4)),
    "subset of a subset": (Epochs(), lambda one: Subset(Subset(one, 2), 2)),
    "concatenated": (Epochs(), lambda one: Concatenated(one, one)),
}


@pytest.mark.parametrize("around", AROUND)
def test_a_data_set_is_told_the_epoch_before_its_rows_are_read(around):
    one, wrap = AROUND[around]
    data = load(wrap(one), [(np.float32([0]), 0)])
    one.told.clear()
    for epoch in (0, 1, 2, 1):  # back, as after a resume
        for rows in ([0, 1], [2, 3]):
            assert data.train.read(np.array(rows), Draw(7, epoch)).arrays[1].tolist() == [epoch, epoch]
    assert sorted({*one.told}) == [1, 2] and len(one.told) <= 6  # and not for each row


def test_parts_of_one_data_set_each_have_their_epoch():
    one = Epochs("threads")
    data = load(Subset(one, 0), Subset(one, 4))
    with Reader(data, workers=2) as reader:
        for epoch in range(3):
            trained = [rows.arrays[1] for rows in reader.batches("train", np.split(np.arange(4), 2), epoch)]
            tested = [rows.arrays[1] for rows in reader.batches("test", np.split(np.arange(4), 2))]
            assert np.all(np.array(trained) == epoch) and not np.any(tested)


def of(package, name, **attributes):
    """An object of a class of the user's own that derives from one with this name."""
    base = type(name, (), {"__module__": f"{package}.src.utils", "__len__": lambda self: 3, **attributes})
    return type("Own", (base,), {"__module__": "mine"})()


def with_items(package, name):
    return of(package, name, __getitem__=lambda self, number: (np.zeros((2, 4)), np.zeros(2)))


def iterated(package, name, **attributes):
    return of(package, name, __iter__=lambda self: iter([(np.zeros((2, 4)), np.zeros(2))] * 3), **attributes)


def of_tf_data(*names):
    """A data set of tf.data that was made by these steps, the last one first."""
    inputs = [of_tf_data(*names[1:])] if names[1:] else []
    methods = {"_inputs": lambda self: inputs, "__iter__": lambda self: iter([(0.0, 1)])}
    return type(f"_{names[0]}Dataset", (), {"__module__": "tensorflow.python.data.ops", **methods})()


BATCHES = {
    "Sequence": with_items("keras", "Sequence"),
    "Sequence of tf_keras": with_items("tf_keras", "Sequence"),
    "PyDataset": with_items("keras", "PyDataset"),
    "DataLoader of MXNet": iterated("mxnet", "DataLoader"),
    "DataIter of MXNet": iterated("mxnet", "DataIter"),
    "DataLoader of PyTorch": Stream(iterated("torch", "DataLoader", batch_size=2), 6),
    "a function": Stream(lambda epoch: iterated("torch", "DataLoader", batch_size=2), 6),
    "batch()": Stream(of_tf_data("Batch", "TensorSlice"), 6),
    "prefetched": Stream(of_tf_data("Prefetch", "Map", "ParallelBatch", "Shuffle", "TensorSlice"), 6),
}
ROWS_OF = {
    "DataLoader without a batch size": Stream(iterated("torch", "DataLoader", batch_size=None), 3),
    "unbatch()": Stream(of_tf_data("Unbatch", "Batch", "TensorSlice"), 1),
    "from a generator": Stream(of_tf_data("Shuffle", "FlatMap", "Batch"), 1),
    "another class of this name": with_items("mine", "Sequence"),
    "with a method _inputs of its own": type(
        "MyBatches", (Dictionaries,), {"_inputs": lambda self, row: row, "column_names": np.array(["a", "b"])}
    )(),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_a_data_set_of_batches_is_refused(kind):
    for parts in ((BATCHES[kind], Dictionaries()), (Dictionaries(), BATCHES[kind])):
        with pytest.raises(UserError, match=r"the items of \w+ are batches, .*; .* unbatch\(\)"):
            data = load(*parts)
            _ = data.test[np.arange(1)]


@pytest.mark.parametrize("kind", ROWS_OF)
def test_a_data_set_of_rows_is_not_taken_for_one_of_batches(kind):
    load(ROWS_OF[kind], ROWS_OF[kind]).train[np.arange(1)]


@pytest.mark.parametrize("form", FORMS)
def test_rows_may_be_complex_numbers_of_64_bits(form):
    for kind in (np.complex64, np.complex128):
        rows = Dictionaries()
        rows.__class__ = type("Complex", (Dictionaries,), {"__getitem__": lambda self, n, k=kind: (np.ones(2, k), 1)})
        if kind is np.complex64:
            assert load(FORMS[form](rows), rows).train[np.arange(3)][0].dtype == kind
            continue
        with pytest.raises(RowError, match=r"is complex128, \w+; return arrays of numbers of at most 64 bits"):
            load(FORMS[form](rows), rows)
    arrays = np.ones((3, 2), np.complex64), np.zeros(3, np.int64)
    assert load(arrays, arrays).train[np.arange(2)][0].dtype == np.complex64
