"""Dividing rows into parts; test and validation rows that a run takes from its data."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.datasets.division import Division, Subset, split_rows
from hvdtrain.datasets.registry import load_dataset
from hvdtrain.datasets.rows import ArraySource
from hvdtrain.errors import UserError
from hvdtrain.tasks.user import make_task

X, Y = np.arange(200, dtype=np.float32).reshape(100, 2), np.repeat([0, 1, 2, 3], [70, 20, 9, 1])


def divide(validation, split=0.0, seed=0, arrays=(X, Y), test=True):
    tested = ArraySource(X[:5], Y[:5]) if test else None
    return Division(split, validation, seed).of("t", ArraySource(*arrays), tested)


def test_each_class_has_its_share_and_each_row_is_in_one_part():
    train, test, validation = divide(0.2)
    assert np.bincount(validation.arrays[1], minlength=4).tolist() == [14, 4, 2, 0]
    rows = np.concatenate([train.arrays[0], validation.arrays[0]])
    assert sorted(rows[:, 0]) == X[:, 0].tolist() and len(test) == 5
    assert train.arrays[0][:, 0].tolist() == sorted(train.arrays[0][:, 0])  # in their order


def test_seed_and_share_alone_decide_the_rows():
    rows = {(share, seed): divide(share, seed=seed)[2].fingerprint for share in (0.1, 0.2) for seed in (0, 1)}
    assert len(set(rows.values())) == 4
    assert divide(0.1, seed=1)[2].fingerprint == rows[0.1, 1]


def test_numbers_that_are_no_classes_do_not_decide():
    """Two rows of each number: dividing each number would take half of all rows."""
    _, _, validation = divide(0.1, arrays=(X, np.repeat(np.arange(50), 2)))
    assert len(validation) == 10
    assert len(divide(0.1, arrays=(X, X[:, 0]))[2]) == 10


def test_validation_rows_are_taken_after_test_rows():
    train, test, validation = divide(0.25, split=0.8, test=False)
    parts = [set(part.arrays[0][:, 0]) for part in (train, test, validation)]
    assert sum(map(len, parts)) == 100 == len(set.union(*parts))
    assert len(parts[1]) == pytest.approx(20, abs=2) and len(parts[2]) == pytest.approx(20, abs=2)


def test_a_subset_of_a_source_in_files_has_its_labels(tmp_path):
    for part in ("train", "test"):
        np.save(tmp_path / f"{part}-images.npy", np.zeros((40, 1, 4, 4), np.uint8))
        np.save(tmp_path / f"{part}-labels.npy", np.repeat([0, 1], [30, 10]))
    dataset = load_dataset(str(tmp_path), split="0.8/0.2")
    assert isinstance(dataset.validation, Subset) and dataset.evaluated == "validation"
    assert np.bincount(dataset.validation.labels(1)).tolist() == [6, 2]
    assert dataset.validation[np.arange(8)][1].tolist() == dataset.validation.labels(1).tolist()
    assert np.bincount(dataset.train.labels(1)).tolist() == [24, 8]
    whole = load_dataset(str(tmp_path))
    assert whole.evaluated == "test" and whole.fingerprint != dataset.fingerprint


@pytest.mark.parametrize("share", [0.001, 0.999])
def test_a_share_that_leaves_a_part_empty_is_one_line(share):
    with pytest.raises(UserError, match=r"--split: one of two parts of the 100 row\(s\) of t would be empty"):
        divide(share)


def task(*parts, **methods):
    return make_task("t.py:Task", type("Task", (), {"data": lambda self: parts, "model": len, **methods}))


def test_a_task_may_return_three_parts():
    dataset = task((X[:50], Y[:50]), (X[50:70], Y[50:70]), (X[70:], Y[70:])).dataset
    assert {part: len(rows) for part, rows in dataset.parts.items()} == {"train": 50, "validation": 20, "test": 30}
    in_dictionary = {"train": (X[:50], Y[:50]), "validation": (X[50:70], Y[50:70]), "test": (X[70:], Y[70:])}
    other = make_task("t.py:Task", type("Task", (), {"data": lambda self: in_dictionary, "model": len})).dataset
    assert other.fingerprint == dataset.fingerprint


def test_validation_rows_are_like_training_rows_and_are_not_there_twice():
    with pytest.raises(UserError, match="validation rows float32"):
        task((X[:50], Y[:50]), (X[50:70, :1], Y[50:70]), (X[70:], Y[70:]))
    kind = type("Task", (), {"data": lambda self: ((X, Y), (X, Y), (X, Y)), "model": len})
    with pytest.raises(UserError, match=r"--split: --model t gives validation rows by itself"):
        make_task("t", kind, division=Division(0, 0.1, 0))
    with pytest.raises(UserError, match=r"data\(\) returned tuple of length 4"):
        task(X, X, X, X)


def test_validation_rows_are_not_augmented():
    class Task:
        def data(self):
            return (X, Y), (X[:5], Y[:5])

        model = len

        def augment(self, rows, generators):
            return rows[0] + 1000, rows[1]

    dataset = make_task("t", Task, division=Division(0, 0.2, 0)).dataset
    assert dataset.train[np.arange(5)][0].min() >= 1000 and dataset.validation[np.arange(5)][0].max() < 1000


@given(
    labels=st.lists(st.integers(0, 3), min_size=2, max_size=40),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 5),
    by_class=st.booleans(),
)
def test_each_row_is_in_one_part_and_each_class_in_both(labels, share, seed, by_class):
    given_labels = np.array(labels) if by_class else None
    first, second = split_rows(given_labels, len(labels), share, seed)
    again = split_rows(given_labels, len(labels), share, seed)
    assert first.tolist() == again[0].tolist() and second.tolist() == again[1].tolist()
    assert sorted([*first, *second]) == list(range(len(labels)))
    assert len(first) and len(second)
    if by_class and len(set(labels)) < len(labels):
        for label in set(labels):
            has = [sum(labels[row] == label for row in part) for part in (first, second)]
            assert has[0] >= 1 and (has[1] >= 1 or sum(has) == 1), (labels, first, second)
            assert abs(has[0] - share * sum(has)) <= 1
