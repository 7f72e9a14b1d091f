"""Steps that each rank makes by itself, and the points at which ranks combine what these have changed (`--sync-every`).

Between two sync points each rank trains on its rows alone (local SGD: Stich, 2019). At a sync point, d is the mean over
ranks of the change of the weights w since the last one, and all ranks begin again at

    w + d                           with --outer average
    w + 0.7 (d + 0.9 v)             with --outer nesterov, where v becomes 0.9 v + d before

The second is the outer step of DiLoCo (Douillard et al., 2023): SGD with Nesterov momentum, as PyTorch has it, for the
gradient -d. Whatever needs weights that all ranks have in common happens at sync points only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvdtrain.collectives.arrays import share_arrays
from hvdtrain.collectives.mean import shape_of
from hvdtrain.config.options import Config
from hvdtrain.interfaces import Learner, Shapes
from hvdtrain.networks.description import Weights
from hvdtrain.system.phases import GRADIENTS, UPDATE, phases

OUTER_LR, OUTER_MOMENTUM = np.float32(0.7), np.float32(0.9)
"""Of DiLoCo's outer step: the best of the paper's, section 3.1."""


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
        before = step - (step - 1) % self.steps_per_epoch % self.every - 1
        return interval > 0 and step // interval > before // interval


class LocalSteps:
    """Combines what the ranks' own steps have changed; call `begin` and `combine` on every rank."""

    def __init__(self, config: Config, learner: Learner) -> None:
        self._outer, self._learner = config.outer, learner
        self._names: list[str] = []
        """Of the weights that updates change."""
        self._shapes: Shapes = ()
        """Those of these weights in a vector."""
        self._anchor = np.empty(0, np.float32)
        """These weights at the last sync point."""
        self._momentum: np.ndarray | None = None
        self._step = 0
        """The last sync point."""

    def begin(self, step: int, momentum: Weights) -> None:
        """All ranks begin with rank 0's weights, after so many steps. momentum: what `momentum` was, or nothing."""
        learner = self._learner
        share_arrays(learner, frozenset(learner.weights()))
        weights = learner.weights()
        fixed = learner.untrained | learner.frozen
        self._names = [name for name, value in weights.items() if name not in fixed and value.dtype.kind in "fc"]
        trained = (weights[name] for name in self._names)
        self._shapes = [shape_of((*value.shape, 2) if value.dtype.kind == "c" else value.shape) for value in trained]
        self._step, self._anchor = step, _joined(weights, self._names)
        self._momentum = None
        if self._outer == "nesterov":
            zeros = {name: np.zeros_like(weights[name]) for name in self._names}
            self._momentum = _joined(zeros | momentum, self._names)

    @property
    def momentum(self) -> Weights:
        """The momentum of the outer step by names of weights; empty where it has none."""
        return {} if self._momentum is None else _parted(self._momentum, self._learner.weights(), self._names)

    def combine(self, step: int) -> None:
        """After so many steps, a sync point: give all ranks the same weights, unless they have them already."""
        alone = self._learner.group.size == 1 and self._momentum is None
        if step == self._step or alone:
            return
        phases.begin(UPDATE)
        weights = self._learner.weights()  # waits for the last update
        change = _joined(weights, self._names) - self._anchor
        self._step = step
        phases.begin(GRADIENTS)
        if self._learner.mean:
            self._learner.mean.average(change, self._shapes)
        phases.begin(UPDATE)
        if self._momentum is not None:
            change = outer_step(change, self._momentum)
            # As checkpoints have it, in the types of the weights: one of float64 has made the vector float64.
            self._momentum = _joined(_parted(self._momentum, weights, self._names), self._names)
        self._learner.load(weights | _parted(self._anchor + change, weights, self._names))
        self._anchor = _joined(self._learner.weights(), self._names)  # as the learner has rounded them


def outer_step(change: np.ndarray, momentum: np.ndarray) -> np.ndarray:
    """The change that DiLoCo's outer step makes of the mean change of the ranks; replaces the momentum by the next."""
    momentum *= OUTER_MOMENTUM
    momentum += change
    return OUTER_LR * (change + OUTER_MOMENTUM * momentum)


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
