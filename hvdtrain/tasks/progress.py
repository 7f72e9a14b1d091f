"""Where training is, for the code of tasks, models and scripts: `hvdtrain.progress()`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple


class Progress(NamedTuple):
    """Where training is: the same on all ranks, in all shards of a step, after a resume and in a replay.

    In a graph of TensorFlow, step and epoch are tensors, int64 (), which it reads anew in each of its runs.
    """

    step: Any = 0
    """Number of steps that the run has done, as its records count them: 0 in the first step."""
    epoch: Any = 0
    """Number of complete epochs."""
    training: bool = False
    """Whether a training step is computed: False in evaluations, and after `hvdtrain.load`."""


place = SimpleNamespace(now=Progress(), asked=False, shown=lambda now: now, graph=None, is_kept=False)
"""now: of this process. asked: see `asks`. shown: what a framework makes of it. graph, is_kept: of TensorFlow."""


def asks(function: Callable[..., object], *arguments: Any) -> bool:
    """Whether a function asks for it."""
    place.asked = False
    function(*arguments)
    return place.asked


def progress() -> Progress:
    """Where training is, for forward passes, losses(), metrics() and scripts; rows are read ahead of the steps."""
    place.asked = True
    return place.shown(place.now)
