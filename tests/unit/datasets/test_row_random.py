"""Random numbers of rows."""

from __future__ import annotations

import itertools

import numpy as np

from hvdtrain.datasets.row_random import Draw, row_generators


def numbers(seed: int, epoch: int, row: int) -> list[int]:
    (generator,) = row_generators(Draw(seed, epoch), np.array([row]))
    return generator.integers(0, 1 << 63, 4).tolist()


def test_generators_depend_on_seed_epoch_and_row_only() -> None:
    batch = row_generators(Draw(5, 2), np.array([7, 3, 7]))
    for row, generator in zip((7, 3, 7), batch, strict=True):
        assert generator.integers(0, 1 << 63, 4).tolist() == numbers(5, 2, row)
    places = list(itertools.product((0, 5, 2**63 - 1), (0, 1, 2), (0, 1, 2, 2**40)))
    assert len({tuple(numbers(*place)) for place in places}) == len(places)


def test_generators_are_those_of_numpy_with_this_key_and_counter() -> None:
    key = np.random.SeedSequence([5, 3, 2]).generate_state(2, np.uint64)
    expected = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, 9]))
    assert numbers(5, 2, 9) == expected.integers(0, 1 << 63, 4).tolist()


def test_numbers_of_neighboring_rows_are_uniform_and_not_correlated() -> None:
    rows = np.array([one.random(2) for one in row_generators(Draw(1, 0), np.arange(4000))])
    assert np.abs(rows.mean(0) - 0.5).max() < 0.02
    both = np.stack([rows[:-1, 0], rows[1:, 0], rows[:-1, 1]])
    assert np.abs(np.corrcoef(both) - np.eye(3)).max() < 0.06
