"""MXNet's optimizers, their state in canonical names, and averages of weights (--ema)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import mxnet as mx
import numpy as np

from hvdtrain.config.forms import Betas
from hvdtrain.config.options import Config
from hvdtrain.frameworks.averages import share_of_weights
from hvdtrain.frameworks.mxnet.network import Parameters
from hvdtrain.frameworks.patterns import without_decay
from hvdtrain.interfaces.learner import OptimizerState
from hvdtrain.networks.description import Weights


def make_optimizer(config: Config) -> mx.optimizer.Optimizer:
    """MXNet's optimizer."""
    options = {"learning_rate": config.lr, "wd": config.weight_decay}
    if config.optimizer != "sgd":
        kind = AdamW if config.optimizer == "adamw" else mx.optimizer.Adam
        betas = Betas.parse(config.betas)
        return kind(beta1=betas.beta1, beta2=betas.beta2, epsilon=config.epsilon, **options)
    sgd = Nesterov if config.nesterov else mx.optimizer.SGD
    return sgd(momentum=config.momentum, **options)


class Nesterov(mx.optimizer.NAG):
    """SGD with Nesterov's momentum, as in PyTorch; MXNet's operator decays the momentum by the updated weight."""

    def _update_impl(
        self, index: int, weight: mx.nd.NDArray, grad: mx.nd.NDArray, state: Any, multi_precision: bool = False
    ) -> None:
        decay, rescale = self._get_wd(index), self.rescale_grad
        if decay:
            grad, rescale = rescale * grad + decay * weight, 1.0
        self._update_count(index)
        mx.nd.nag_mom_update(
            weight, grad, state, out=weight, lr=self._get_lr(index),
            momentum=self.momentum, rescale_grad=rescale, wd=0.0,
        )  # fmt: skip


class AdamW(mx.optimizer.Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as in PyTorch: lr scales the decay, too.

    MXNet's own operator adamw_update expects gradients that it has not to divide on the device, and skips an update
    without a word where they are not finite.
    """

    def update(self, index: int, weight: mx.nd.NDArray, grad: mx.nd.NDArray, state: Any) -> None:
        """Update one parameter in place. state: means of its gradients and of their squares."""
        self._update_count(index)
        lr, count, (mean, square) = self._get_lr(index), self._index_update_count[index], state
        if decay := self._get_wd(index):
            weight *= 1 - lr * decay
        mx.nd.adam_update(
            weight, grad, mean, square, out=weight, lazy_update=self.lazy_update,
            lr=lr * math.sqrt(1 - self.beta2**count) / (1 - self.beta1**count),
            beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon, rescale_grad=self.rescale_grad, wd=0.0,
        )  # fmt: skip


class OptimizerStates:
    """The state of an optimizer for each parameter on each device, and its learning rate.

    MXNet's SGD keeps the momentum times minus the learning rate, so its state is rescaled if that changes. names: of
    all parameters. Raises UserError for a pattern of --no-decay that matches none.
    """

    def __init__(
        self, config: Config, optimizer: mx.optimizer.Optimizer, contexts: list[mx.Context], names: Iterable[str]
    ) -> None:
        self._without_decay = without_decay(config.no_decay, names)
        self._config, self._optimizer, self._contexts, self._lr = config, optimizer, contexts, config.lr
        self._is_sgd = config.optimizer == "sgd"
        self._kinds = ("momentum",) if self._is_sgd else ("mean", "square")
        self._arrays: list[dict[str, tuple[mx.nd.NDArray, ...]]] = [{} for _ in contexts]
        self._indices: list[list[int]] = [[] for _ in contexts]

    def create(self, updater: Any, device: int, index: int, name: str, parameter: mx.nd.NDArray) -> None:
        """Create the state of a parameter on a device now; by default `updater` would do that in the first update.

        index: the updater's number of this parameter on this device.
        """
        if name in self._without_decay:
            if index in self._optimizer.param_dict:  # Gluon's parameters have their factors of weight decay themselves
                self._optimizer.param_dict[index].wd_mult = 0.0
            else:
                self._optimizer.wd_mult[index] = 0.0
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
            self._optimizer.epsilon = self._config.epsilon * (1 - self._optimizer.beta2 ** (self._updates + 1)) ** 0.5

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


class MXNetAverages:
    """The average of the weights after each update, on the first device; none before the first one."""

    def __init__(self, decay: float, parameters: Parameters) -> None:
        self._decay, self._parameters, self._averages = decay, parameters, dict[str, mx.nd.NDArray]()

    def update(self, step: int) -> None:
        """Take the weights after the update of this step, whose number counts from 0."""
        weights = {name: parameter.list_data()[0] for name, parameter in self._parameters.items()}
        if not self._averages:
            self._averages = {name: weight.copy() for name, weight in weights.items()}
            return
        share = share_of_weights(self._decay, step)
        for name, average in self._averages.items():
            average += share * (weights[name] - average)

    def arrays(self) -> Weights:
        """The averages by name; empty before the first update."""
        return {name: average.asnumpy() for name, average in self._averages.items()}

    def load(self, arrays: Weights) -> None:
        """Set what `arrays` returned."""
        self._averages = {}
        for name, parameter in self._parameters.items() if arrays else ():
            weight = parameter.list_data()[0]
            self._averages[name] = mx.nd.array(arrays[name], ctx=weight.context, dtype=weight.dtype)
