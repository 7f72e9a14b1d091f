"""What the tasks of all frameworks have: rows, and all that needs no tensors."""

import numpy as np

RANDOM = np.random.default_rng(3)
NUMBERS, KINDS = RANDOM.normal(size=(160, 4)).astype(np.float32), RANDOM.integers(0, 5, 160)
SEQUENCES = np.random.default_rng(4).normal(size=(160, 7, 4)).astype(np.float32)
VALUES = (NUMBERS @ np.array([1, -2, 3, 0.5], np.float32) + KINDS).astype(np.float32)


RARE = 1.6
"""Rows whose first number is greater go through a layer that other rows do without, so some ranks have no such row."""


def add_noise(rows, generators):
    """Augmentation: noise on the first array."""
    numbers, *others = rows
    return numbers + np.array([one.normal(0, 0.1, 4) for one in generators], np.float32), *others


class RegressionRows:
    inputs = 2
    augment = staticmethod(add_noise)

    def data(self):
        rows = NUMBERS, KINDS, VALUES
        return tuple(array[:128] for array in rows), tuple(array[128:] for array in rows)

    def losses(self, outputs, values):
        return (outputs["value"] - values) ** 2


class ClassifierRows:
    augment = staticmethod(add_noise)

    def __init__(self, width=6):
        self.width = width

    def data(self):
        return (NUMBERS[:128], KINDS[:128]), (NUMBERS[128:], KINDS[128:])


class SequenceRows:
    """Sequences and their classes; batches of 32 rows, and one of 5."""

    def data(self):
        return (SEQUENCES[:133], KINDS[:133]), (SEQUENCES[133:], KINDS[133:])
