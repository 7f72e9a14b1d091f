"""Steps that each rank makes by itself, and the points at which ranks combine what these have changed (`--sync-every`).

Between two sync points each rank trains on its rows alone (local SGD: Stich, 2019). At a sync point, d is the mean over
ranks of the change of the weights w since the last one, and all ranks begin again at w + d. Whatever needs weights that
all ranks have in common happens at sync points only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvdtrain.collectives.arrays import share_arrays
from hvdtrain.collectives.mean import shape_of
from hvdtrain.interfaces.combining import Shapes
from hvdtrain.interfaces.learner import Learner
from hvdtrain.networks.description import Weights
from hvdtrain.system.phases import GRADIENTS, UPDATE, phases


@dataclass(frozen=True)
class SyncPoints:
    """The steps after which all ranks have the same weights: every so many of an epoch, its last, and the run's last.

    They depend on options and data alone, so that a run that is stopped and resumed has them at the same steps.
    """

    every: int
    steps_per_epoch: int
    last_step: int

    def has(self, step: int) -> bool:
        """Whether the ranks are in common after so many steps."""
        return step % self.steps_per_epoch % self.every == 0 or step >= self.last_step

    def is_due(self, interval: int, step: int) -> bool:
        """Whether what is done every `interval` steps (0: never) is due at this sync point: since the one before it."""
        if not interval:
            return False
        before = step - (step - 1) % self.steps_per_epoch % self.every - 1
        return step // interval > before // interval


class LocalSteps:
    """Combines what the ranks' own steps have changed; call `begin` and `combine` on every rank."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._names: list[str] = []
        """Of the weights that updates change."""
        self._shapes: Shapes = ()
        """Those of these weights in a vector."""
        self._anchor = np.empty(0, np.float32)
        """These weights at the last sync point."""
        self._step = 0
        """The last sync point."""

    def begin(self, step: int) -> None:
        """All ranks begin with rank 0's weights, after so many steps."""
        learner = self._learner
        share_arrays(learner, frozenset(learner.weights()))
        weights = learner.weights()
        fixed = learner.untrained | learner.frozen
        self._names = [name for name, value in weights.items() if name not in fixed and value.dtype.kind in "fc"]
        trained = (weights[name] for name in self._names)
        self._shapes = [shape_of((*value.shape, 2) if value.dtype.kind == "c" else value.shape) for value in trained]
        self._step, self._anchor = step, _joined(weights, self._names)

    def combine(self, step: int) -> None:
        """After so many steps, a sync point: give all ranks the same weights, unless they have them already."""
        if step == self._step or self._learner.group.size == 1:
            return
        phases.begin(UPDATE)
        weights = self._learner.weights()  # waits for the last update
        change = _joined(weights, self._names) - self._anchor
        self._step = step
        phases.begin(GRADIENTS)
        if self._learner.mean:
            self._learner.mean.average(change, self._shapes)
        phases.begin(UPDATE)
        self._learner.load(weights | _parted(self._anchor + change, weights, self._names))
        self._anchor = _joined(self._learner.weights(), self._names)  # as the learner has rounded them


def _joined(weights: Weights, names: list[str]) -> np.ndarray:
    """Weights as a vector, (n,): a copy, float32 unless one has more bits; a complex number is two values."""
    parts = [np.ascontiguousarray(weights[name]).reshape(-1) for name in names]
    real = [part.view(part.real.dtype) for part in parts]
    return np.concatenate([np.empty(0, np.float32), *real])


def _parted(vector: np.ndarray, weights: Weights, names: list[str]) -> Weights:
    """The opposite of `_joined`: by names, in the shapes and types of `weights`."""
    parts, start = {}, 0
    for name in names:
        like = weights[name]
        values = vector[start : start + like.size * (1 + (like.dtype.kind == "c"))]
        start += len(values)
        parts[name] = values.astype(like.real.dtype).view(like.dtype).reshape(like.shape)
    return parts
