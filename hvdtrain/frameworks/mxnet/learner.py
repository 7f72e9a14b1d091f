"""The training loop's learner in MXNet: Gluon."""

from __future__ import annotations

import abc
import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from hvdtrain.config.options import MAX_SHARDS, Config
from hvdtrain.frameworks.batches import choose_device, device_number, parts_of, statistics_by_rank
from hvdtrain.frameworks.engine import Engine
from hvdtrain.frameworks.mxnet.arithmetic import compute_in
from hvdtrain.frameworks.mxnet.batch_norm import BlockStatistics, RunningStatistics, Statistics
from hvdtrain.frameworks.mxnet.network import (
    Forward,
    Parameters,
    channel_multiple,
    copy_into,
    kept_graphs,
    load_array,
    scale_pixels,
)
from hvdtrain.frameworks.mxnet.objective import OBJECTIVES, MXNetNetworkObjective, evaluate
from hvdtrain.frameworks.mxnet.optimizer import MXNetAverages, OptimizerStates, make_optimizer
from hvdtrain.frameworks.mxnet.own_optimizer import OwnStates, settings_of, task_optimizer
from hvdtrain.frameworks.mxnet.strategies import MXNetStrategy
from hvdtrain.frameworks.own_optimizers import KIND, is_of_kind, with_kind, with_optimizer
from hvdtrain.interfaces.combining import Combined, Gradients, StepLoss, Types, type_of
from hvdtrain.interfaces.learner import Evaluated, Learner, OptimizerState
from hvdtrain.interfaces.reading import Batch
from hvdtrain.interfaces.strategy import Strategy
from hvdtrain.networks.description import ShapedNetwork, Weights
from hvdtrain.system.phases import FORWARD, GRADIENTS, UPDATE, phases
from hvdtrain.tasks.target import Target

CLIP_EPSILON = 1e-6
"""Added to the norm that gradients are divided by, as in PyTorch's clip_grad_norm_."""


class LazyLoss:
    """The sum of all devices' losses, which the engine may still be computing; MXNet's arrays have no float()."""

    def __init__(self, values: Sequence[mx.nd.NDArray]) -> None:
        self._values = values

    def __float__(self) -> float:
        return sum(float(value.asscalar()) for value in self._values)


class ContextLearner(Learner):
    """What all learners in MXNet share: the contexts of this process, which are its GPUs or parts of the CPU."""

    def __init__(self, strategy: Strategy) -> None:
        compute_in(strategy.config.precision)
        self.group, self._config, devices = strategy.group, strategy.config, strategy.devices
        self.state_by_rank = strategy.state_by_rank
        gpus = mx.context.num_gpus()
        self.device, self.devices = "gpu", devices
        chosen = choose_device(strategy, gpus)
        if chosen == "cpu":
            self.device, self._contexts = "cpu", [mx.cpu(i) for i in range(devices)]
        else:
            self._contexts = [mx.gpu(i) for i in range(devices)] if devices > 1 else [mx.gpu(device_number(chosen))]


class OperatorLearner(ContextLearner):
    """What learners of networks as data without Gluon share: running statistics, and an evaluation by operators."""

    def __init__(self, network: ShapedNetwork, strategy: Strategy) -> None:
        super().__init__(strategy)
        self._network, self._statistics = network, RunningStatistics(network)
        self.local_weights = statistics_by_rank(network, self._config)
        self._multiple = channel_multiple(self.device, self._config.precision)

    @abc.abstractmethod
    def _first_parameters(self) -> dict[str, mx.nd.NDArray]:
        """The parameters on the first device, by canonical name."""

    def _arrays(self) -> dict[str, mx.nd.NDArray]:
        """Parameters and running statistics on the first device."""
        return self._first_parameters() | self._statistics.copies(self._contexts[0])

    def _logits(self, images: np.ndarray) -> mx.nd.NDArray:
        forward = Forward(mx.nd, self._network, self._arrays(), multiple=self._multiple)
        return forward(load_array(scale_pixels(images), self._contexts[0]))

    def logits(self, images: np.ndarray) -> np.ndarray:
        return self._logits(images).asnumpy()

    def eval_step(self, arrays: tuple[np.ndarray, ...]) -> Evaluated:
        images, labels = arrays
        return evaluate(self._network, self._logits(images), labels)

    def weights(self) -> Weights:
        return {name: array.asnumpy() for name, array in self._arrays().items()}


class MXNetSteps(ContextLearner, Engine):
    """What Gluon's learners share: parameters, and the update of their trainer once backward has begun."""

    eval_modes = (contextlib.nullcontext, functools.partial(autograd.record, train_mode=False))
    _block: gluon.Block
    _parameters: Parameters
    """Those that are trained."""
    _arrays: Parameters
    """Also those that are frozen."""
    _trainer: gluon.Trainer
    _statistics: Statistics
    _start: list[np.ndarray]
    """With --shards, the statistics at the beginning of the step."""
    _computed: LazyLoss | None = None
    """The loss of a part of the step of which the engine has, or still computes, gradients that were not read."""

    def __init__(self, strategy: MXNetStrategy) -> None:
        super().__init__(strategy)
        self._strategy = strategy
        self._is_checked = bool(self._config.clip_norm) or self._config.on_nan == "skip"

    @contextlib.contextmanager
    def unchanged(self, is_trial: bool = False) -> Iterator[None]:
        with kept_graphs(self._block), super().unchanged(is_trial):
            yield

    def _finish_step(self) -> None:
        """Combine the gradients, and update the parameters."""
        if self._strategy.waits:
            phases.begin(GRADIENTS)
        self._trainer.allreduce_grads()
        self._apply(self._strategy.gradient_divisor)

    def _apply(self, divisor: float) -> None:
        """Update the parameters from the combined gradients, divided by `divisor`.

        Not if they are not finite and --on-nan skips the step.
        """
        phases.begin(UPDATE)
        if self._is_checked and not self._clip(self._trainer._scale / divisor):
            self.skipped += 1
            return
        self._update(divisor)
        if self._averages:
            self._averages.update(self._step)

    def _update(self, divisor: float) -> None:
        """Let the trainer update the parameters from the combined gradients, divided by `divisor`."""
        self._trainer.update(divisor)

    def settings(self) -> dict[str, Any]:
        return settings_of(self._trainer)

    def gradient_types(self) -> Types:
        return tuple(type_of(parameter.dtype, parameter.shape) for parameter in self._trainer._params)

    def keep_in_shards(self, names: list[str]) -> None:
        assert isinstance(self._statistics, BlockStatistics)
        self._statistics.parameters |= {name: self._arrays[name] for name in names}

    def start_statistics(self) -> list[np.ndarray]:
        self._start, self._computed = self._statistics.read(), None
        return self._start

    def take_gradients(self, loss: LazyLoss) -> list[Gradients]:
        """See `UserLearner`. Copies of gradients cost 4 % of LeNet's step where nothing is computed meanwhile."""
        self._computed = loss
        if not (self._in_shards and self._start):
            return []
        gradients = self.late_gradients()  # the next forward pass begins with these statistics, so it must wait
        self._statistics.write(self._start)
        return gradients

    def late_gradients(self) -> list[Gradients]:
        if self._computed is None:
            return []
        loss, self._computed = self._computed, None
        arrays = [parameter.list_grad()[0].asnumpy() for parameter in self._trainer._params]
        return [Gradients(loss, arrays, self._statistics.read() if self._in_shards else [])]

    def update(self, combined: Combined) -> None:
        for parameter, gradient in zip(self._trainer._params, combined.arrays, strict=True):
            copy_into(parameter.list_grad()[0], gradient)
            parameter.list_data()[0]._fresh_grad = True  # else a trainer refuses to update it on a rank without shards
        if self._in_shards:
            self._statistics.write(combined.statistics)
        self._apply(1)

    def _clip(self, scale: float) -> bool:
        """Clip the combined gradients; False if they are not finite and the step is to be skipped.

        Combined gradients are identical on all ranks, so either all ranks skip the step or none does. scale: what the
        update multiplies them by.
        """
        config, parameters = self._config, self._parameters.values()
        squares = sum((parameter.list_grad()[0].astype("float64") ** 2).sum() for parameter in parameters)
        norm = scale * float(np.sqrt(squares.asscalar()))
        if not np.isfinite(norm) and config.on_nan == "skip":
            return False
        if config.clip_norm and norm > config.clip_norm:
            for parameter in parameters:
                for gradient in parameter.list_grad():
                    gradient *= config.clip_norm / (norm + CLIP_EPSILON)
        return True


class MXNetLearner(MXNetSteps):
    """A Gluon block, trained with one strategy."""

    def __init__(self, target: Target, weights: Weights | None, strategy: MXNetStrategy) -> None:
        config = strategy.config
        super().__init__(strategy)
        self._objective = OBJECTIVES[target.kind](target, weights, strategy, self._contexts)
        self._block = self._objective.block
        self._parameters, self.local_weights = self._objective.parameters, self._objective.local_weights
        self._statistics, self.frozen = self._objective.statistics, frozenset(self._objective.frozen)
        self._arrays = self._parameters | self._objective.frozen
        self._own_task = with_optimizer(target)
        self._states = self._make_states(config)
        self._begin_training(self.frozen)
        if config.ema:
            self._averages = MXNetAverages(config.ema, self._parameters)

    def _make_states(self, config: Config) -> OptimizerStates | OwnStates:
        """Make the trainer, and the state of its optimizer."""
        if self._own_task:
            self._objective.seed_step(0, MAX_SHARDS)  # so that all ranks make the same optimizer
            optimizer = task_optimizer(self._own_task, self._parameters)
            self._trainer = self._strategy.make_trainer(self._parameters, optimizer)
            own = OwnStates(self, self._trainer, self._parameters, config.seed)
            own.create()
            return own
        optimizer = make_optimizer(config)
        self._trainer = self._strategy.make_trainer(self._parameters, optimizer)
        states = OptimizerStates(config, optimizer, self._contexts, self._parameters)
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        for device, (updater, context) in enumerate(zip(self._trainer._updaters, self._contexts, strict=True)):
            for index, parameter in enumerate(self._trainer._params):
                states.create(updater, device, index, names[id(parameter)], parameter.data(context))
        return states

    @property
    def learning_rate(self) -> float | None:
        return float(self._trainer.learning_rate) if self._own_task else None

    def settings(self) -> dict[str, Any]:
        return super().settings() if self._own_task else {}  # each step sets the rate of hvdtrain's own

    def accepts_state(self, state: OptimizerState) -> bool:
        return (not self._own_task or is_of_kind(state, self.optimizer_state())) and super().accepts_state(state)

    def _update(self, divisor: float) -> None:
        if not self._own_task:
            super()._update(divisor)
            return
        self._objective.seed_step(self._step, MAX_SHARDS)  # the update draws the same on any number of ranks
        self._own_task.guard("the optimizer's update()", super()._update, divisor)

    def train_step(self, batch: Batch) -> StepLoss:
        self._states.set_lr(batch.lr)
        return super().train_step(batch)

    def step_by_framework(self, batch: Batch) -> StepLoss:
        losses: list[mx.nd.NDArray] = []
        for _ in self._forward_backward(batch, losses):
            pass
        self._finish_step()
        return LazyLoss(losses)

    def gradients(self, parts: Sequence[Batch]) -> Iterator[Gradients]:
        for part in parts:
            losses: list[mx.nd.NDArray] = []
            yield from self._forward_backward(part, losses)
            yield from self.take_gradients(LazyLoss(losses))

    def _forward_backward(self, batch: Batch, losses: list[mx.nd.NDArray]) -> Iterator[Gradients]:
        """The passes of a batch, whose losses are appended; gives the gradients that its own take the place of."""
        self._objective.seed_step(batch.step, batch.part)
        for number, part in enumerate(parts_of(batch, self._config.accumulate)):
            phases.begin(FORWARD)
            of_part = self._objective.forward(part)
            yield from self.late_gradients()
            parameters = self._trainer._params if number else ()
            gradients = [gradient for parameter in parameters for gradient in parameter.list_grad()]
            earlier = [gradient.copy() for gradient in gradients]
            self._objective.backward(of_part, part)
            for gradient, total in zip(gradients, earlier, strict=True):
                gradient += total
            losses += of_part

    def seed(self, step: int, part: int) -> None:
        self._objective.seed_step(step, part)

    def logits(self, images: np.ndarray) -> np.ndarray:
        assert isinstance(self._objective, MXNetNetworkObjective)
        return self._objective.logits(images).asnumpy()

    def eval_step(self, arrays: tuple[np.ndarray, ...]) -> Evaluated:
        return self._objective.evaluate(arrays)

    def try_step(self, batch: Batch) -> np.ndarray:
        losses = self._objective.forward(parts_of(batch, self._config.accumulate)[0])
        mx.nd.waitall()
        return np.array([loss.asscalar() for loss in losses])

    def weights(self) -> Weights:
        return self._objective.weights()

    def load(self, weights: Weights) -> None:
        self._objective.load(weights)

    def optimizer_state(self) -> OptimizerState:
        state = self._states.read()
        return with_kind(state, self._trainer.optimizer) if self._own_task else state

    def load_optimizer_state(self, state: OptimizerState) -> None:
        self._states.write(state.without(KIND))
