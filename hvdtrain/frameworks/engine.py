"""A step in parts: a framework computes gradients and makes updates, and what comes between them is written once."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hvdtrain.collectives.arrays import share_arrays
from hvdtrain.collectives.mean import shape_of
from hvdtrain.config.options import Config
from hvdtrain.interfaces.combining import Combined, Combiner, Gradients, StepLoss, Types
from hvdtrain.interfaces.learner import Learner
from hvdtrain.interfaces.reading import Batch
from hvdtrain.system.phases import FORWARD, GRADIENTS, phases


class Engine(Learner):
    """A learner whose gradients are combined by its framework or Horovod, in a step of their own, or on the host.

    On the host (`Combiner`), the step is written here, and the framework has `gradients` and `update` for it.
    """

    to_matrix = staticmethod(shape_of)
    """See `collectives.combining.ToMatrix`."""
    _config: Config
    _strategy: Any
    """The framework's class of strategies."""
    _combiner: Combiner | None = None
    _step = 0
    """The number of the present step in the run."""

    def step_by_framework(self, batch: Batch) -> StepLoss:
        """A whole step, in which the framework or its library combines gradients; by default nothing does."""
        (computed,) = self.gradients((batch,))
        self.update(Combined(computed.arrays, [], computed.loss))
        return computed.loss

    def gradients(self, parts: Sequence[Batch]) -> Iterable[Gradients]:
        """Forward and backward of each part of a batch, one after the other; a script does that by itself."""
        raise NotImplementedError

    @abc.abstractmethod
    def gradient_types(self) -> Types:
        """Those of the gradients in `Gradients.arrays`."""

    @abc.abstractmethod
    def start_statistics(self) -> list[np.ndarray]:
        """Copies of the running statistics, with which each part of the step that begins here is to begin."""

    def late_gradients(self) -> list[Gradients]:
        """The gradients that the last part has left; called before the next backward pass, and before they are needed.

        A framework whose operations are queued has them here, so that it computes the next forward pass meanwhile.
        """
        return []

    @abc.abstractmethod
    def update(self, combined: Combined) -> None:
        """Set the running statistics, and update the parameters."""

    def _begin_training(self, unshared: frozenset[str] = frozenset()) -> None:
        """Let the strategy's combiner have the gradients, if it has one; all ranks begin with rank 0's weights.

        unshared: names of those that the strategy's own library does not share.
        """
        self.mean = self._strategy.mean
        if not self._strategy.make_combiner:
            share_arrays(self, unshared)
            return
        make, types = self._strategy.make_combiner, self.gradient_types()
        self._combiner = make(self._config, self.group, types, self.to_matrix)
        self.mean = self._combiner.mean
        share_arrays(self, frozenset(self.weights()))
        if self._in_shards:
            self.shared_statistics, self.local_weights = self.local_weights, frozenset()

    @property
    def _in_shards(self) -> bool:
        """Whether each part of a step begins with the same running statistics, which are combined as well."""
        return bool(self._combiner and self._combiner.sums_statistics)

    def train_step(self, batch: Batch) -> StepLoss:
        phases.begin(FORWARD)
        self._step = batch.step
        if not self._combiner:
            return self.step_by_framework(batch)
        self.begin_step(batch)
        self.add(self.gradients((batch,) if batch.shards is None else batch.shards))
        return self.end_step()

    def begin_step(self, batch: Batch) -> None:
        """Begin a step, if its gradients are combined on the host."""
        if self._combiner:
            self._combiner.begin(batch, self.start_statistics() if self._in_shards else [])

    def add(self, parts: Iterable[Gradients]) -> None:
        """Let the combiner have the gradients of parts of the step, as soon as each is there."""
        assert self._combiner
        for gradients in parts:
            self._combiner.add(gradients)

    def end_step(self) -> StepLoss:
        """Combine the gradients of all ranks, and update the parameters."""
        self.add(self.late_gradients())
        combined = self.combine()
        self.update(combined)
        return combined.loss

    def combine(self) -> Combined:
        """The gradients of all ranks."""
        assert self._combiner
        phases.begin(GRADIENTS)
        return self._combiner.combine()
