"""Rows that are read in the background: the same, in the same order, with bounded memory, and nothing left behind."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from support.jobs import ROOT, running, wait_for
from support.row_data import WRITERS, write_python

from hvdtrain.datasets.images_and_labels import ImagesAndLabels
from hvdtrain.datasets.reader import AHEAD, Reader
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.datasets.rows import ArraySource, CheckedRows, RowError
from hvdtrain.errors import TrainingError
from hvdtrain.interfaces.reading import Dataset


class Numbers(CheckedRows):
    """Rows that are drawn from their numbers, some of them bad, read after a random time."""

    fingerprint = "numbers"

    def __init__(self, length: int, bad: frozenset[int], skip: bool = True) -> None:
        super().__init__("numbers", length, skip, ImagesAndLabels(range(1000)))
        self._bad = bad
        self.taken = 0

    def read_row(self, row: int) -> tuple[np.ndarray, int]:
        time.sleep(np.random.default_rng().random() / 5000)
        self.taken += 1
        if row in self._bad and self.taken > 1:  # the first gives the form of all
            raise ValueError("bad")
        return np.full((2, 3), row % 256, np.uint8), row


def numbers(length: int, bad: frozenset[int] = frozenset(), skip: bool = True) -> Dataset:
    return Dataset("numbers", Numbers(length, bad, skip), Numbers(length, bad, skip), ("0",) * 1000)


@settings(max_examples=25)
@given(
    length=st.integers(1, 60),
    bad=st.frozensets(st.integers(0, 60), max_size=8),
    batch=st.integers(1, 9),
    seed=st.integers(0, 9),
)
@example(length=2, bad=frozenset({0}), batch=1, seed=0)  # the row that gave the forms is bad when it is read again
def test_batches_are_the_same_with_any_number_of_workers(length, bad, batch, seed):
    assume(not bad.issuperset(range(length)))  # without any good row, there is nothing to train on
    order = np.random.default_rng(seed).permutation(length)
    batches = [order[first : first + batch] for first in range(0, length, batch)]
    found = []
    for workers in (0, 1, 3):
        with Reader(numbers(length, bad), workers) as reader:
            found.append([*reader.batches("train", iter(batches)), *reader.batches("test", batches)])
    for one in found[1:]:
        for read, expected in zip(one, found[0], strict=True):
            assert all(map(np.array_equal, read.arrays, expected.arrays))
            assert read.bad.keys() == expected.bad.keys()
    for rows, read in zip(batches, found[0], strict=False):
        good = [position for position, row in enumerate(rows) if row not in bad]
        assert set(range(len(rows))) - set(good) == set(read.bad)
        assert read.arrays[1][good].tolist() == rows[good].tolist()


@pytest.mark.parametrize("kind", WRITERS)
def test_all_formats_in_the_background(kind, tmp_path):
    """With processes where the format has some."""
    loader_spec = {"data": str(WRITERS[kind](tmp_path / "data"))}
    dataset, rows = load_dataset(**loader_spec), [np.array([5, 0]), np.array([3, 3, 4])]
    with Reader(dataset, 2, loader_spec) as reader:
        assert bool(reader._processes) == (kind in ("chunks", "map_style", "source"))
        found = [one.arrays for part in ("train", "test") for one in reader.batches(part, rows)]
    expected = [source[one] for source in (dataset.train, dataset.test) for one in rows]
    for one, other in zip(found, expected, strict=True):
        assert all(map(np.array_equal, one, other))


@pytest.mark.parametrize("workers", [1, 3])
def test_few_batches_are_read_ahead(workers):
    asked = []

    def rows():
        for row in range(50):
            asked.append(row)
            yield np.array([row])

    with Reader(numbers(50), workers) as reader:
        for taken, _ in enumerate(reader.batches("train", rows()), 1):
            assert len(asked) <= taken + AHEAD * workers
    assert len(asked) == 50


def test_workers_of_auto(monkeypatch):
    images = np.zeros((2, 1, 1, 1), np.uint8)
    source = ArraySource(images, np.zeros(2, np.int64))
    assert Reader(Dataset("arrays", source, source, ("0",)), "auto").workers == 0
    for cores, workers in ((1, 1), (2, 1), (4, 3), (100, 16)):
        monkeypatch.setattr("hvdtrain.system.resources.cores_of_rank", lambda cores=cores: cores)
        assert Reader(numbers(3), "auto").workers == workers


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_row_is_raised_in_its_turn(workers):
    dataset = numbers(20, frozenset([11]), skip=False)
    with Reader(dataset, workers) as reader:
        found = reader.batches("train", (np.arange(first, first + 2) for first in range(0, 20, 2)))
        assert [next(found).arrays[1].tolist() for _ in range(5)][-1] == [8, 9]
        with pytest.raises(RowError, match=r"numbers \(row 11\): cannot be read \(bad\)"):
            next(found)
    wait_for(lambda: not [one for one in threading.enumerate() if one.name.startswith("reader")], 10)


def test_errors_of_a_process_are_those_of_the_rows(tmp_path):
    data = write_python(tmp_path / "data", "broken")
    for skip in (False, True):
        loader_spec = {"data": data, "skip_bad_rows": skip}
        with Reader(load_dataset(**loader_spec), 1, loader_spec) as reader:
            found = reader.batches("train", [np.array([3]), np.array([4, 5])])
            next(found)
            if skip:
                (error,) = next(found).bad.values()
            else:
                with pytest.raises(RowError) as caught:
                    next(found)
                error = caught.value
                assert "mine.py" in str(error.__cause__) and "ValueError: no such file" in str(error.__cause__)
        assert "mine.py:broken: train (row 4): cannot be read (ValueError: no such file)" in error.reason
        assert error.remedy


def test_process_that_is_killed_ends_training_with_a_reason(tmp_path):
    loader_spec = {"data": write_python(tmp_path / "data", "killed")}
    with Reader(load_dataset(**loader_spec), 2, loader_spec) as reader:
        reader.wait_until_loaded()
        with pytest.raises(TrainingError, match="a process that reads data was killed by SIGKILL; look for"):
            list(reader.batches("train", [np.array([row]) for row in range(9)]))
        pids = [process._process.pid for process in reader._processes]
    assert not any(map(running, pids))


PARENT = """
import sys, time
import numpy as np
from hvdtrain.datasets.reader import Reader
from hvdtrain.datasets.registry import load_dataset
loader_spec = {"data": sys.argv[1]}
with Reader(load_dataset(**loader_spec), 2, loader_spec) as reader:
    reader.wait_until_loaded()
    print(*(process._process.pid for process in reader._processes), flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_the_rank(tmp_path, number):
    data = write_python(tmp_path / "data")
    command = [sys.executable, "-c", PARENT, data]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as parent:
        assert parent.stdout
        pids = [int(pid) for pid in re.findall(r"\d+", parent.stdout.readline().decode())]
        assert len(pids) == 2 and all(map(running, pids))
        parent.send_signal(number)
    wait_for(lambda: not any(map(running, pids)), 10)
