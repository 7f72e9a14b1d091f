"""What the tasks of all frameworks have: rows, and all that needs no tensors."""

import numpy as np

RANDOM = np.random.default_rng(3)
NUMBERS, KINDS = RANDOM.normal(size=(160, 4)).astype(np.float32), RANDOM.integers(0, 5, 160)
VALUES = (NUMBERS @ np.array([1, -2, 3, 0.5], np.float32) + KINDS).astype(np.float32)


class RegressionRows:
    inputs = 2

    def data(self):
        rows = NUMBERS, KINDS, VALUES
        return tuple(array[:128] for array in rows), tuple(array[128:] for array in rows)

    def losses(self, outputs, values):
        return (outputs["value"] - values) ** 2


class ClassifierRows:
    def __init__(self, width=6):
        self.width = width

    def data(self):
        return (NUMBERS[:128], KINDS[:128]), (NUMBERS[128:], KINDS[128:])
