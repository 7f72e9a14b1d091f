"""Copies from NumPy to MXNet's arrays."""

from __future__ import annotations

import mxnet as mx
import numpy as np


def load_array(values: np.ndarray, context: mx.Context) -> mx.nd.NDArray:
    """A copy on the device: MXNet would free NumPy's memory from its own threads if they shared it."""
    array = mx.nd.empty(values.shape, context, values.dtype)
    copy_into(array, values)
    return array


def copy_into(array: mx.nd.NDArray, values: np.ndarray) -> None:
    """Copy values of the same shape, as `array[:] = values` does after 50 microseconds spent on the index."""
    array._sync_copyfrom(values)
