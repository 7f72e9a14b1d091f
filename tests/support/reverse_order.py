"""Another way to combine gradients, as a user would add one: in the order of ranks from the last to the first.

usage: python reverse_order.py FRAMEWORK [OPTIONS of training]; with it, each framework has the strategy `reverse`
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvdtrain.cli.train import main
from hvdtrain.collectives import ring
from hvdtrain.frameworks.registry import ON_HOST, GroupEntry
from hvdtrain.interfaces.combining import Combined, Gradients
from hvdtrain.interfaces.reading import Batch


class ReverseOrder:
    """A `Combiner`: the mean of the ranks' gradients, summed from the last rank to the first."""

    mean = None
    sums_statistics = False

    def __init__(self, config: Any, group: Any, shapes: Any, to_matrix: Any) -> None:
        self._group = group

    def begin(self, step: Batch, statistics: Sequence[np.ndarray]) -> None:
        pass

    def add(self, gradients: Gradients) -> None:
        self._gradients = gradients

    def combine(self) -> Combined:
        of_ranks = self._group.gather([np.array(array) for array in self._gradients.arrays])
        totals = [functools.reduce(np.add, arrays) for arrays in zip(*reversed(of_ranks), strict=True)]
        means = [total / np.float32(self._group.size) for total in totals]
        return Combined(means, [], self._gradients.loss)


ON_HOST["reverse"] = GroupEntry(
    lambda config, runtime: ring.start(runtime.hang_timeout), "Sums from the last rank on.", combiner=ReverseOrder
)

if __name__ == "__main__":
    framework, *options = sys.argv[1:]
    main(framework, argv=["--strategy", "reverse", *options])
