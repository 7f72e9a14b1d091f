"""Steps of a PyTorch script that has a training loop of its own."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hvdtrain.errors import UserError
from hvdtrain.frameworks.own_optimizers import at_setup
from hvdtrain.frameworks.torch.arithmetic import check_gradients
from hvdtrain.frameworks.torch.learner import TorchSteps
from hvdtrain.frameworks.torch.network import (
    buffers_by_rank,
    frozen_parameters,
    sparse_parameters,
    trained_parameters,
    why_not_saved,
)
from hvdtrain.frameworks.torch.objective import evaluating, seed_generators, to_tensor
from hvdtrain.frameworks.torch.optimizer import (
    TorchModes,
    from_arrays,
    make_averages,
    order_of,
    parameters_of,
    saved_states,
)
from hvdtrain.frameworks.torch.strategies import TorchStrategy
from hvdtrain.frameworks.torch.task_optimizer import OPTIMIZER, check_brought, load_states
from hvdtrain.frameworks.user_code import UserLearner
from hvdtrain.interfaces.combining import StepLoss
from hvdtrain.interfaces.learner import Evaluated, OptimizerState
from hvdtrain.networks.description import Weights


class TorchUserLearner(TorchSteps, UserLearner):
    """Makes the steps of a script in PyTorch."""

    _how_to_allow_unused = "call setup() with unused_parameters=True"
    tensor = torch.Tensor
    _seed_generators = staticmethod(seed_generators)

    def __init__(self, strategy: TorchStrategy) -> None:
        super().__init__(strategy)
        self._kept: dict[str, Any] = {}
        self._seed = strategy.config.seed
        seed_generators(self._seed)  # so that all ranks make the same model

    def begin_training(self) -> None:
        if isinstance(self._averages, TorchModes):
            self._optimizer.train()

    def setup(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, unused_parameters: bool
    ) -> tuple[nn.Module, Any]:
        _check(model, optimizer)
        self._model = model.to(self.device)
        self.local_weights = buffers_by_rank(model, synchronized=False)
        self._names = self.local_weights | dict(model.named_parameters(remove_duplicate=False)).keys()
        self._parameters, self.frozen = trained_parameters(model), frozen_parameters(model)
        check_gradients(self._parameters, self._config.precision, self.group.size * (self._config.shards or 1))
        self._strategy.unhook += self._hook_gradients()
        self._trained = _trained(optimizer, model)
        self.optimizer_order = order_of(optimizer, self._parameters)
        self._optimizer = self._kept[OPTIMIZER] = self._strategy.wrap_optimizer(optimizer, model)
        self._training_model = self._called = self._wrap_model(unused_parameters)
        self._begin_training(self.local_weights)
        self._averages = make_averages(optimizer, self._config, model, self._parameters)
        return self._training_model, self._optimizer

    def _hook_gradients(self) -> list[Any]:
        """Raise UserError for the script's own updates, and for gradients that no strategy may get, its own or sparse.

        Returns what ends the hooks.
        """
        strategy, checked = self._strategy, set(self._parameters)
        if strategy.needs_all_gradients:  # DistributedDataParallel asks the layers
            known = sparse_parameters(self._model)
            checked = {name for name, parameter in self._parameters.items() if id(parameter) not in known}
        elif not (strategy.waits or strategy.make_combiner):
            checked = set()

        def check(name: str, parameter: torch.Tensor) -> None:
            self._refuse("backward()")
            if name in checked and parameter.grad.layout is not torch.strided:
                problem = f"the gradient of {name} is sparse, which --strategy {self._config.strategy} does not send"
                remedy = "leave out sparse=True, or use --strategy single, or ddp with nn.Embedding, without --shards"
                raise UserError(problem, remedy)

        def check_update(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            if not self._is_stepping and not ours.isdisjoint(map(id, parameters_of(optimizer))):
                self._refuse("the optimizer's step()")

        ours = set(map(id, self._parameters.values()))
        hooks = [register_optimizer_step_pre_hook(check_update)]  # also of a second optimizer of the same parameters
        for name, parameter in self._parameters.items():
            hooks.append(parameter.register_post_accumulate_grad_hook(functools.partial(check, name)))
        return [hook.remove for hook in hooks]

    def register(self, states: dict[str, Any]) -> None:
        for name, state in states.items():
            if not name.isidentifier():
                raise UserError(f"register(): {name!r} is not a name", "give a name as of a variable")
            if name in self._kept or not (hasattr(state, "state_dict") and hasattr(state, "load_state_dict")):
                problem = "is there already" if name in self._kept else "has no state_dict() and load_state_dict()"
                raise UserError(
                    f"register(): {name} {problem}", "give schedulers and the like, each by a name of its own"
                )
            optimizer = getattr(state, "optimizer", None)
            if isinstance(optimizer, torch.optim.Optimizer) and optimizer is not self._optimizer:
                raise UserError(
                    f"register(): {name} belongs to another optimizer",
                    "make it with the optimizer that setup() returns",
                )
        saved_states(states)
        self._kept |= states

    def weights(self) -> Weights:
        weights = super().weights()
        if made := weights.keys() - self._names:
            raise UserError(
                f"the model makes its buffer {min(made)} when it is called, which no resumed run could load",
                "register it before setup(), as None where it has no values yet",
            )
        return weights

    def schedule_steps(self) -> dict[str, int]:
        steps = {name: getattr(kept, "last_epoch", None) for name, kept in self._kept.items()}
        return {name: count for name, count in steps.items() if isinstance(count, int)}

    def settings(self) -> dict[str, Any]:
        schedules = {f"steps of {name}": count for name, count in self.schedule_steps().items()}
        return super().settings() | schedules

    @property
    def learning_rate(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])

    def _on_device(self, arrays: tuple[np.ndarray, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(to_tensor(array, self.device) for array in arrays)

    @staticmethod
    def _total(values: torch.Tensor) -> float:
        return float(values.detach().double().sum())

    @staticmethod
    def _array(values: torch.Tensor) -> np.ndarray:
        return values.detach().double().cpu().numpy()

    def step(self, losses: torch.Tensor, ends_step: bool) -> StepLoss:
        self._check_by_row("step()", losses, len(self._row_weights))
        self._check_own_changes()
        self._examine_first(losses)
        if not losses.requires_grad:
            raise UserError("step(): the losses do not depend on the model's parameters", "compute them with gradients")
        if _trained(self._optimizer, self._model) != self._trained:
            raise UserError(
                "step(): the parameters that require gradients are not those of setup()",
                "freeze and unfreeze before it, in a run of its own for each phase",
            )
        self._is_stepping = True
        self._optimizer.zero_grad()
        loss = self._backward(losses.float(), to_tensor(self._row_weights, self.device))
        step_loss = self._end_backward(loss, ends_step)
        self._is_stepping = False
        self._has_state = True
        return step_loss

    def eval_step(self, arrays: tuple[np.ndarray, ...]) -> Evaluated:
        with evaluating(self._training_model):
            return super().eval_step(arrays)

    def optimizer_state(self) -> OptimizerState:
        if not self._has_state:
            return OptimizerState({})
        return OptimizerState(saved_states(self._kept), extra=self._progress)

    def load_optimizer_state(self, state: OptimizerState) -> None:
        if missing := self._kept.keys() ^ {name.partition("/")[0] for name in state.arrays}:
            raise ValueError(f"{', '.join(sorted(missing))} is not in both the script and the checkpoint")
        states = {name: from_arrays(name, state.arrays) for name in self._kept}
        load_states(self._kept, states, self._moved_schedules(states) if self.has_other_length(state) else {})
        self._continue(state.extra)
        self._has_state = True

    def _moved_schedules(self, states: dict[str, Any]) -> dict[str, int]:
        """By name, the steps that new schedules have to make; not those by a score, which no length decides."""
        saved, now = self.resumed
        known: dict[Any, int] = {saved.epoch + 1: now.epoch + 1, saved.epoch: now.epoch, saved.step: now.step}
        counts, own = {}, self._optimizer
        schedules = {name: kept for name, kept in self._kept.items() if getattr(kept, "optimizer", None) is own}
        by_score = {name for name, kept in schedules.items() if isinstance(kept, ReduceLROnPlateau)}
        for name in schedules.keys() - by_score:
            # ChainedScheduler has no count of its own.
            made = {**states[name].get("_schedulers", [{}])[0], **states[name]}.get("last_epoch")
            counts[name] = known.get(made, -1 if made is None or saved.step != now.step else made)
            if counts[name] < 0 or by_score:  # what those by a score have reduced are no steps of this one
                problem = f"--resume: this run's steps, and thus those of {name}, are not the checkpoint's"
                raise UserError(problem, "resume with its batch size, ranks and --epochs")
        return counts


def _trained(optimizer: Any, model: nn.Module) -> list[int]:
    """The parameters that are trained: combining their gradients was arranged in setup()."""
    parameters = itertools.chain(model.parameters(), parameters_of(optimizer))
    return [id(parameter) for parameter in parameters if parameter.requires_grad]


def _check(model: Any, optimizer: Any) -> None:
    """Raise UserError unless the optimizer trains the parameters of the model, and no others."""
    if not isinstance(model, nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
        given = f"{type(model).__name__} and {type(optimizer).__name__}"
        raise at_setup(f"got {given}", "give a torch.nn.Module and a torch.optim.Optimizer")
    problem, remedy = why_not_saved(model)
    if problem:
        raise at_setup(f"the model's {problem}", remedy)
    check_brought(at_setup, optimizer, trained_parameters(model), "model.parameters()")
