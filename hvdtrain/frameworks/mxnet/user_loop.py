"""Steps of a Gluon script that has a training loop of its own."""

from __future__ import annotations

import contextlib
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from hvdtrain.errors import UserError
from hvdtrain.frameworks.mxnet.batch_norm import BlockStatistics
from hvdtrain.frameworks.mxnet.learner import LazyLoss, MXNetSteps
from hvdtrain.frameworks.mxnet.network import (
    fill_gradients,
    forget_gradients,
    load_array,
    load_parameters,
    named_parameters,
    parameter_weights,
)
from hvdtrain.frameworks.mxnet.objective import check_gradients, seed_generators, total
from hvdtrain.frameworks.mxnet.own_optimizer import OwnStates
from hvdtrain.frameworks.mxnet.strategies import MXNetStrategy
from hvdtrain.frameworks.own_optimizers import at_setup, check_optimizer
from hvdtrain.frameworks.user_code import UserLearner
from hvdtrain.interfaces.combining import StepLoss
from hvdtrain.interfaces.learner import Evaluated, OptimizerState
from hvdtrain.networks.description import Weights
from hvdtrain.system.phases import BACKWARD, phases


class MXNetUserLearner(MXNetSteps, UserLearner):
    """Makes the steps of a script in Gluon, from losses that it has recorded."""

    tensor = mx.nd.NDArray
    _seed_generators = staticmethod(seed_generators)
    _total = staticmethod(total)

    def __init__(self, strategy: MXNetStrategy) -> None:
        if strategy.devices > 1:
            problem = f"--devices {strategy.devices}: a script with its own loop has one device in MXNet"
            raise UserError(problem, "start a rank for each")
        super().__init__(strategy)
        (self._context,) = self._contexts
        self._seed = strategy.config.seed
        self._closing = contextlib.ExitStack()
        seed_generators(self._seed)  # so that all ranks make the same model

    @staticmethod
    def _array(values: mx.nd.NDArray) -> np.ndarray:
        return values.asnumpy()

    def setup(
        self, model: gluon.Block, optimizer: gluon.Trainer, unused_parameters: bool
    ) -> tuple[gluon.Block, gluon.Trainer]:
        _check(model, optimizer)
        model.collect_params().reset_ctx(self._context)
        self._block = self._called = model
        self._arrays = named_parameters(model)
        self._parameters = {name: array for name, array in self._arrays.items() if array.grad_req != "null"}
        self.local_weights = frozenset(self._arrays.keys() - self._parameters.keys())
        forget_gradients(self._parameters)
        self._refuse_updates()
        self._trainer = self._strategy.make_trainer(self._parameters, optimizer.optimizer)
        self._states = OwnStates(self, self._trainer, self._parameters, self._seed)
        untrained = {name: array for name, array in self._arrays.items() if name not in self._parameters}
        self._statistics = BlockStatistics(untrained, self._context)
        self._begin_training(self.local_weights)
        return model, self._trainer

    def _refuse_updates(self) -> None:
        """Until `close`, raise UserError where a trainer of the script updates the model: Gluon has no hook for it."""
        update, ours = gluon.Trainer._update, set(map(id, self._parameters.values()))

        def checked(trainer: gluon.Trainer, *arguments: Any) -> None:
            if not self._is_stepping and not ours.isdisjoint(map(id, trainer._params)):
                self._refuse("the trainer's step()")
            update(trainer, *arguments)

        gluon.Trainer._update = checked
        self._closing.callback(setattr, gluon.Trainer, "_update", update)

    def close(self) -> None:
        self._closing.close()

    def _refuse_own_gradients(self) -> None:
        """Raise UserError if the script has made gradients by itself."""
        if any(values._fresh_grad for parameter in self._parameters.values() for values in parameter.list_data()):
            self._refuse("backward()")

    def register(self, states: dict[str, Any]) -> None:
        if states:
            raise UserError(
                "register(): a script in MXNet has nothing to register",
                "give schedules to the optimizer, whose state is saved",
            )

    @property
    def learning_rate(self) -> float:
        return float(self._trainer.learning_rate)

    def _on_device(self, arrays: tuple[np.ndarray, ...]) -> tuple[mx.nd.NDArray, ...]:
        return tuple(load_array(np.asarray(array), self._context) for array in arrays)

    def step(self, losses: mx.nd.NDArray, ends_step: bool) -> StepLoss:
        self._check_by_row("step()", losses, len(self._row_weights))
        self._refuse_own_gradients()
        self._check_own_changes()
        self._examine_first(losses)
        self._is_stepping = True
        with autograd.pause():
            weights = load_array(self._row_weights.astype(losses.dtype), self._context)
            phases.begin(BACKWARD)
            if self._combiner:
                self.add(self.late_gradients())
            try:
                self._backward(losses, weights)
                step_loss = self._end_backward(LazyLoss([(losses.detach() * weights).sum()]), ends_step)
            finally:  # also of a step that is done again, as the ranks have changed
                forget_gradients(self._parameters)
            self._has_state, self._is_stepping = True, False
            return step_loss

    def _backward(self, losses: mx.nd.NDArray, weights: mx.nd.NDArray) -> None:
        try:
            losses.backward(weights)
        except mx.MXNetError as error:
            raise UserError(
                "step(): the losses have no gradients", "compute them with the model inside `with autograd.record():`"
            ) from error
        fill_gradients(self._parameters)

    def eval_step(self, arrays: tuple[np.ndarray, ...]) -> Evaluated:
        evaluated = super().eval_step(arrays)
        forget_gradients(self._parameters)  # those of the evaluation
        return evaluated

    def weights(self) -> Weights:
        return parameter_weights(self._arrays, self._context)

    def load(self, weights: Weights) -> None:
        load_parameters(self._arrays, weights)

    def optimizer_state(self) -> OptimizerState:
        if not self._has_state:
            return OptimizerState({})
        state = self._states.read()
        return state._replace(extra=state.extra | self._progress)

    def load_optimizer_state(self, state: OptimizerState) -> None:
        self._states.create()
        self._states.write(state)
        self._continue(state.extra)
        self._has_state = True


def _check(model: Any, trainer: Any) -> None:
    """Raise UserError unless the trainer is a new one of the parameters of the model, which are initialized."""
    if not isinstance(model, gluon.Block) or not isinstance(trainer, gluon.Trainer):
        given = f"{type(model).__name__} and {type(trainer).__name__}"
        raise at_setup(f"got {given}", "give a gluon.Block and a gluon.Trainer")
    parameters = named_parameters(model)
    for name, parameter in parameters.items():
        if parameter._data is None:
            raise at_setup(
                f"the parameter {name} has no values yet",
                "call the model's initialize(), and the model with some rows or give its layers their input sizes",
            )
        check_gradients(at_setup, f"the parameter {name}", parameter)
    if any(getattr(type(trainer), name) is not getattr(gluon.Trainer, name) for name in ("step", "update")):
        raise at_setup(
            f"{type(trainer).__name__} has a step() or update() of its own, which would not be called",
            "give a gluon.Trainer, and put what it does into its optimizer or the loop",
        )
    if any(updater.states for updater in trainer._updaters):
        raise at_setup("the trainer has already made steps", "give a new one")
    trained = {id(parameter) for parameter in trainer._params if parameter.grad_req != "null"}
    names = {id(parameter): name for name, parameter in parameters.items() if parameter.grad_req != "null"}
    check_optimizer(at_setup, "trainer", trained, names, "model.collect_params()", "grad_req='null'")
