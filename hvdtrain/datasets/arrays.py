"""Images and labels in memory."""

from __future__ import annotations

import functools
import hashlib

import numpy as np


class ArraySource:
    """Rows of arrays in memory (see `interfaces.Source`); the arrays are writable, contiguous and equally long."""

    in_memory = True

    def __init__(self, *arrays: np.ndarray) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(array.take(rows, axis=0) for array in self.arrays)  # faster than array[rows]

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 over shapes, types and bytes of the arrays, in hexadecimal digits."""
        digest = hashlib.sha256()
        for array in self.arrays:
            digest.update(f"{array.shape}{array.dtype}".encode())
            digest.update(array.data)
        return digest.hexdigest()
