"""The initial loss scale of fp16, the same for PyTorch and TensorFlow."""

from __future__ import annotations


def scale_of_rows(ranks: int) -> float:
    """The power of two by which a row weighs more on one of several ranks than in one process, rounded up.

    fp16's loss scale is divided by it at the start: several ranks would skip other first steps than one process.
    """
    return float(1 << (ranks - 1).bit_length())
