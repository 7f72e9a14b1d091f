"""Dividing rows into parts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.datasets.rows import ArraySource
from hvdtrain.datasets.splitting import Subset, divide, split_rows, subset
from hvdtrain.errors import UserError


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


def test_one_row_is_one_line():
    with pytest.raises(UserError, match="cannot be divided"):
        split_rows(None, 1, 0.5, 0)


class Squares:
    fingerprint = "squares"

    def __len__(self):
        return 10

    def __getitem__(self, rows):
        return (rows**2,)


def test_a_subset_reads_its_rows_of_the_source():
    rows = np.array([7, 2, 3])
    for source in (Squares(), ArraySource(np.arange(10) ** 2)):
        part = subset(source, rows)
        assert len(part) == 3 and part[np.array([2, 0])][0].tolist() == [9, 49]
        assert part.fingerprint != subset(source, rows[::-1]).fingerprint
    assert isinstance(subset(Squares(), rows), Subset)


def test_numbers_to_predict_are_not_divided_by_class():
    rows = ArraySource(np.arange(400.0), np.repeat(np.arange(200), 2))
    train, test = divide("data", rows, None, None, 0.8, 0)
    assert (len(train), len(test)) == (320, 80)
    assert train.fingerprint != divide("data", rows, None, None, 0.8, 1)[0].fingerprint, "another seed"
