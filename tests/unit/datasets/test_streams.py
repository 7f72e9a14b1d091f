"""Iterable data sets: rows by their place in the stream, read once where they are in order; random numbers of rows."""

import random

import numpy as np
import pytest

from hvdtrain.datasets.division import Division
from hvdtrain.datasets.reader import Reader
from hvdtrain.datasets.row_random import Draw, row_generators
from hvdtrain.datasets.rows import RowChecks, RowError
from hvdtrain.datasets.streams import KEPT, Stream, StreamRows
from hvdtrain.errors import UserError
from hvdtrain.tasks.user import make_task

ROWS = 100


class Numbers:
    """Rows of their number, the epoch, and what the global generators give."""

    rows = ROWS

    def __init__(self, length=ROWS, bad=(), noise=False):
        self.length, self.bad, self.noise, self.begun, self.taken, self.epoch = length, bad, noise, 0, 0, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        self.begun += 1
        for row in range(self.length):
            self.taken += 1
            value = np.array([row, self.epoch, (random.random() + np.random.rand()) * self.noise])
            yield value if row not in self.bad else value[:1], row % 2


def source(numbers=None, skip=False):
    return StreamRows("the rows", numbers or Numbers(), skip, RowChecks())


def read(rows, which, epoch=0):
    return rows.read(np.array(which), Draw(7, epoch)).arrays[0]


def test_rows_in_order_are_read_in_one_iteration():
    rows = source()
    assert read(rows, [2, 5, 6])[:, 0].tolist() == [2, 5, 6]
    begun, taken = rows._dataset.begun, rows._dataset.taken
    assert read(rows, [6, 7, 30])[:, 0].tolist() == [6, 7, 30]  # one again, of those that are kept
    assert (rows._dataset.begun, rows._dataset.taken) == (begun, taken + 24)
    assert read(rows, [1])[:, 0].tolist() == [1] and rows._dataset.begun == begun + 1


def test_each_epoch_is_an_iteration_that_knows_its_number():
    rows = source()
    assert [read(rows, [3], epoch)[0, :2].tolist() for epoch in (0, 1, 4)] == [[3, 0], [3, 1], [3, 4]]
    made = []
    stream = Stream(lambda epoch: made.append(epoch) or iter([(np.array([epoch, row]), 0) for row in range(9)]), 9)
    assert read(source(stream), [8], 5).tolist() == [[5, 8]] and made[-1] == 5


@pytest.mark.parametrize("step", [1, 7, 40])
def test_random_numbers_depend_on_seed_epoch_and_row_alone(step):
    """Whichever rows a rank takes, and after a resume."""
    whole = read(source(Numbers(noise=True)), range(ROWS), 3)
    rows = source(Numbers(noise=True))
    for first in range(step, ROWS, step):
        assert read(rows, [first], 3).tolist() == whole[[first]].tolist()
    assert not np.array_equal(whole, read(rows, range(ROWS), 4))
    before = random.getstate()
    read(rows, [1], 5)
    assert random.getstate() == before


def test_so_many_rows_are_kept_as_a_global_batch_has():
    rows = source()
    rows.kept = 50
    read(rows, [60])
    begun = rows._dataset.begun
    read(rows, [11])
    assert rows._dataset.begun == begun and KEPT < 50
    read(rows, [10])
    assert rows._dataset.begun == begun + 1


def test_a_stream_that_ends_early_is_one_line():
    with pytest.raises(UserError, match="the rows: the stream ended after 40 of 100 rows"):
        read(source(Numbers(40), skip=True), [39, 41])
    assert len(read(source(Numbers(1000)), [99])) == 1  # more rows are not read


def test_a_bad_row_is_that_of_the_rank_that_has_it():
    rows = source(Numbers(bad=[5]))
    assert read(rows, [4, 6])[:, 0].tolist() == [4, 6]
    with pytest.raises(RowError, match=r"\(row 5\): is"):
        read(source(Numbers(bad=[5])), [4, 5])
    assert source(Numbers(bad=[5]), skip=True).read(np.array([4, 5]), Draw(0, 0)).bad.keys() == {1}


def test_the_fingerprint_tells_streams_apart():
    assert source().fingerprint == source().fingerprint
    others = [source(Stream(Numbers(), 50)), source(Stream(lambda epoch: ((row, 1) for row in range(ROWS)), ROWS))]
    assert len({source().fingerprint, *(other.fingerprint for other in others)}) == 3


class Random(Numbers):
    def __iter__(self):
        generator = np.random.default_rng()
        return iter([(generator.random(3), 0) for _ in range(ROWS)])


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (Random(), "gives other rows when it is read again"),
        (Stream((row for row in np.zeros((9, 2))), 9), "generator can be iterated over only once"),
        ((row for row in np.zeros((9, 2))), "how many rows generator has is not known; give hvdtrain.Stream"),
        (type("Unknown", (), {"__iter__": lambda self: iter(())})(), "how many rows Unknown has is not known"),
        (type("Wrong", (Numbers,), {"rows": -1})(), r"is not known \(rows: -1\)"),
        (Stream(Numbers(), 0), r"is not known \(rows: 0\)"),
        (Stream(Numbers(0), 9), "ended after 0 of 9 rows"),
    ],
)
def test_what_cannot_be_trained_on_is_one_line(stream, text):
    kind = type("Task", (), {"data": lambda self: (stream, (np.zeros((4, 3)), np.zeros(4, int))), "model": len})
    with pytest.raises(UserError, match=text):
        make_task("t", kind).dataset.fingerprint  # noqa: B018


def test_a_task_augments_a_stream_which_the_rank_reads_itself():
    class Task:
        model = len

        def data(self):
            return Numbers(), (np.zeros((4, 3)), np.zeros(4, int))

        def augment(self, rows, generators):
            return rows[0] + 1000, rows[1]

    dataset = make_task("t", Task).dataset
    assert dataset.train.is_stream and not dataset.test.is_stream
    with Reader(dataset, 4) as reader:
        batches = list(reader.batches("train", [np.array([0, 1]), np.array([4, 5])]))
        assert not reader.reads_ahead
    assert [batch.arrays[0][:, 0].tolist() for batch in batches] == [[1000, 1001], [1004, 1005]]
    for test, division in ((None, Division(0.5, 0, 0)), (dataset.test, Division(0, 0.5, 0))):
        with pytest.raises(UserError, match=r"--split: .* is a stream"):
            division.of("t", dataset.train, test)


def numbers(seed: int, epoch: int, row: int) -> list[int]:
    (generator,) = row_generators(Draw(seed, epoch), np.array([row]))
    return generator.integers(0, 1 << 63, 4).tolist()


def test_generators_are_those_of_numpy_with_this_key_and_counter():
    key = np.random.SeedSequence([5, 3, 2]).generate_state(2, np.uint64)
    expected = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, 9]))
    assert numbers(5, 2, 9) == expected.integers(0, 1 << 63, 4).tolist()
