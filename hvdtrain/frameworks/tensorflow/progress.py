"""What `hvdtrain.progress()` says to the code of a task in TensorFlow's graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

from hvdtrain.errors import UserError
from hvdtrain.tasks.progress import Progress, place


def current(name: str) -> tf.Tensor:
    """A number of `hvdtrain.progress()` as a tensor, int64 (), which each run of a graph reads anew."""
    return tf.ensure_shape(tf.numpy_function(lambda: np.int64(getattr(place.now, name)), [], tf.int64), ())


def function_graph() -> Any:
    """The graph of a function that is made now, around those of its branches and loops."""
    graph: Any = ops.get_default_graph()
    while type(graph).__name__ in ("CondBranchFuncGraph", "WhileCondFuncGraph", "WhileBodyFuncGraph"):
        graph = graph.outer_graph
    return graph


@contextlib.contextmanager
def calling_task() -> Iterator[None]:
    """Inside, a task's code may ask for `hvdtrain.progress()`. Raises UserError if it did in a graph of its own."""
    before, place.graph, place.is_kept = place.graph, function_graph(), False
    try:
        yield
    finally:
        place.graph = before
    if place.is_kept:  # not where it asks, as AutoGraph makes another error of it
        problem = "a tf.function of the task asks for hvdtrain.progress(), and would keep its training as it is now"
        raise UserError(problem, "leave out @tf.function there: hvdtrain compiles losses() and the model itself")


def shown(now: Progress) -> Progress:
    """What `hvdtrain.progress()` returns."""
    if tf.executing_eagerly():
        return now
    place.is_kept |= place.graph not in (None, function_graph())
    return now._replace(step=current("step"), epoch=current("epoch"))


place.shown = shown
