"""MXNet's optimizers, and their state in canonical names."""

from __future__ import annotations

import itertools
from typing import Any

import mxnet as mx
import numpy as np

from hvdtrain.config.options import Config
from hvdtrain.interfaces import ADAM_BETAS, ADAM_EPSILON, OptimizerState


def make_optimizer(config: Config) -> mx.optimizer.Optimizer:
    """MXNet's optimizer; NAG is its SGD with Nesterov's momentum."""
    options = {"learning_rate": config.lr, "wd": config.weight_decay}
    if config.optimizer == "adam":
        return mx.optimizer.Adam(beta1=ADAM_BETAS[0], beta2=ADAM_BETAS[1], epsilon=ADAM_EPSILON, **options)
    sgd = mx.optimizer.NAG if config.nesterov else mx.optimizer.SGD
    return sgd(momentum=config.momentum, **options)


class OptimizerStates:
    """The state of an optimizer for each parameter on each device, and its learning rate.

    MXNet's SGD keeps the momentum times minus the learning rate, so its state is rescaled if that changes.
    """

    def __init__(self, config: Config, optimizer: mx.optimizer.Optimizer, contexts: list[mx.Context]) -> None:
        self._config, self._optimizer, self._contexts, self._lr = config, optimizer, contexts, config.lr
        self._is_sgd = config.optimizer == "sgd"
        self._kinds = ("momentum",) if self._is_sgd else ("mean", "square")
        self._arrays: list[dict[str, tuple[mx.nd.NDArray, ...]]] = [{} for _ in contexts]
        self._indices: list[list[int]] = [[] for _ in contexts]

    def create(self, updater: Any, device: int, index: int, name: str, parameter: mx.nd.NDArray) -> None:
        """Create the state of a parameter on a device now; by default `updater` would do that in the first update.

        index: the updater's number of this parameter on this device.
        """
        state = self._optimizer.create_state_multi_precision(index, parameter)
        updater.states[index], updater.states_synced[index] = state, True
        arrays = () if state is None else state
        self._arrays[device][name] = arrays if isinstance(arrays, tuple) else (arrays,)
        self._indices[device].append(index)

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next update."""
        if lr != self._lr:
            for arrays in self._arrays if self._is_sgd else ():
                for array in itertools.chain(*arrays.values()):
                    array *= lr / self._lr if self._lr else 0.0
            self._lr = lr
        self._optimizer.set_learning_rate(lr)
        if not self._is_sgd:  # MXNet adds "epsilon hat" instead of epsilon: Kingma and Ba (2015), section 2
            self._optimizer.epsilon = ADAM_EPSILON * (1 - self._optimizer.beta2 ** (self._updates + 1)) ** 0.5

    @property
    def _updates(self) -> int:
        """Number of updates made so far."""
        return max(self._optimizer._index_update_count.values(), default=0)

    def read(self) -> OptimizerState:
        """The state on the first device."""
        arrays = {
            f"{kind}/{name}": array.asnumpy()
            for name, state in self._arrays[0].items()
            for kind, array in zip(self._kinds, state, strict=False)
        }
        return OptimizerState(arrays, scale=-self._lr if self._is_sgd else 1.0, updates=self._updates)

    def write(self, state: OptimizerState) -> None:
        """Set the state on all devices. Raises KeyError if `state` lacks an array of this optimizer."""
        if self._is_sgd and state.scale < 0:  # written by MXNet: restored bit for bit
            self._lr, factor = -state.scale, 1.0
        else:
            factor = (-self._lr if self._is_sgd else 1.0) / state.scale
        for arrays, indices, context in zip(self._arrays, self._indices, self._contexts, strict=True):
            for name, of_parameter in arrays.items():
                for kind, array in zip(self._kinds, of_parameter, strict=False):
                    array[:] = state.arrays[f"{kind}/{name}"] * np.float32(factor)
            self._optimizer._set_current_context(context.device_id)  # the optimizer counts updates per device
            self._optimizer._index_update_count.update(dict.fromkeys(indices, state.updates))
        self._optimizer.num_update = state.updates
