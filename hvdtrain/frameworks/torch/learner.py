"""The training loop's learner in PyTorch."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from hvdtrain.config.options import MAX_SHARDS
from hvdtrain.errors import UserError
from hvdtrain.frameworks.batches import choose_device, scale_of_rows
from hvdtrain.frameworks.engine import Engine
from hvdtrain.frameworks.patterns import freeze
from hvdtrain.frameworks.torch.arithmetic import DTYPES, check_gradients
from hvdtrain.frameworks.torch.batch_norm import TorchBatchNormalization
from hvdtrain.frameworks.torch.compilation import choose_cache, compile_forward
from hvdtrain.frameworks.torch.network import (
    as_real,
    buffers_by_rank,
    from_real,
    frozen_parameters,
    host_array,
    laid_out_as,
    limited_rows,
    load_buffers,
    load_module,
    module_weights,
    trained_parameters,
    unchanged,
)
from hvdtrain.frameworks.torch.objective import OBJECTIVES, evaluate, evaluating, to_tensor, widened
from hvdtrain.frameworks.torch.optimizer import (
    TorchModes,
    make_averages,
    make_optimizer,
    order_of,
    read_state,
    settings_of,
    trained_by,
    write_state,
)
from hvdtrain.frameworks.torch.shards import ShardStart
from hvdtrain.frameworks.torch.strategies import TorchStrategy
from hvdtrain.frameworks.torch.task_optimizer import TaskOptimizer
from hvdtrain.interfaces.combining import Combined, Gradients, StepLoss, Types, type_of
from hvdtrain.interfaces.learner import Evaluated, OptimizerState
from hvdtrain.interfaces.reading import Batch
from hvdtrain.networks.description import Weights
from hvdtrain.system.phases import BACKWARD, FORWARD, GRADIENTS, UPDATE, phases
from hvdtrain.tasks.progress import asks
from hvdtrain.tasks.target import Target


class TorchSteps(Engine):
    """What all learners of PyTorch share: a module, and the step of its optimizer from the losses of rows on."""

    eval_modes = (torch.no_grad, torch.enable_grad)
    _model: nn.Module
    _optimizer: Any
    _parameters: dict[str, nn.Parameter]
    """Those that are trained."""
    _waits_for_all = False
    """Whether the strategy waits in backward for a gradient of each parameter."""
    _changed: Sequence[nn.Parameter] = ()
    """With --shards: those that forward passes change."""
    _how_to_allow_unused: ClassVar[str]
    """What a user does about that."""

    def __init__(self, strategy: TorchStrategy) -> None:
        self.group = strategy.group
        self.device = choose_device(strategy, torch.cuda.device_count())
        if self.device != "cpu":
            torch.cuda.set_device(self.device)  # for streams and libraries that are not told the device
        self.devices, self.state_by_rank = strategy.devices, strategy.state_by_rank
        self._config, self._strategy = strategy.config, strategy
        self._device_type = self.device.split(":")[0]
        self._scaler = torch.amp.GradScaler(self._device_type, enabled=strategy.config.precision == "fp16")

    def _backward(self, losses: torch.Tensor, row_weights: torch.Tensor) -> torch.Tensor:
        """Add the gradients of the weighted losses, (n,), to those of the step; returns the losses' sum."""
        loss = losses @ row_weights
        phases.begin(BACKWARD)
        with self._strategy.backward():
            self._scaler.scale(loss).backward()
        return loss.detach()

    def _wrap_model(self, finds_unused: bool) -> nn.Module:
        """The module whose forward pass a step calls. finds_unused: parameters may get no gradient in a step."""
        self.limits_rows = limited_rows(self._model)
        wrapped = self._strategy.wrap_model(self._model, self.device, finds_unused)
        self._waits_for_all = self._strategy.needs_all_gradients and wrapped is not self._model and not finds_unused
        return wrapped

    def _finish_step(self) -> None:
        """Combine the gradients and update the parameters."""
        for name, parameter in self._parameters.items():
            if parameter.grad is None:  # every strategy then treats it identically
                if self._waits_for_all:
                    raise UserError(
                        f"the parameter {name} got no gradient in this step, for which DistributedDataParallel waits",
                        f"{self._how_to_allow_unused}, or use --strategy horovod",
                    )
                parameter.grad = torch.zeros_like(parameter)
        if self._strategy.waits:
            phases.begin(GRADIENTS)
        self._strategy.reduce(self._optimizer)
        self._apply()

    def _apply(self) -> None:
        """Update the parameters from the combined gradients."""
        phases.begin(UPDATE)
        self._scaler.unscale_(self._optimizer)
        if is_finite := self._clip():
            self._scaler.step(self._optimizer)
        is_skipped = self._rescale() or not is_finite
        self.skipped += is_skipped
        if self._averages and not is_skipped:
            self._averages.update(self._step)

    def settings(self) -> dict[str, Any]:
        return settings_of(self._optimizer)

    def gradient_types(self) -> Types:
        return tuple(type_of(real.dtype, real.shape) for real in map(as_real, self._combined_parameters))

    @property
    def _combined_parameters(self) -> list[nn.Parameter]:
        """The trained ones, as the optimizer has them: on the order depend the bits of a --compression."""
        return trained_by(self._optimizer)

    def keep_in_shards(self, names: list[str]) -> None:
        self._changed = [self._model.get_parameter(name) for name in names]

    def start_statistics(self) -> list[np.ndarray]:
        self._start = ShardStart(self._model, self._changed)
        return self._start.arrays

    def take_gradients(self, loss: Any) -> list[Gradients]:
        """What backward has left; the buffers have the values of the step's beginning again, if they are combined."""
        arrays = []
        for parameter in self._combined_parameters:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            arrays.append(host_array(as_real(gradient)))
            parameter.grad = None  # the array keeps the memory
        return [Gradients(loss, arrays, self._start.end_shard() if self._in_shards else [])]

    def update(self, combined: Combined) -> None:
        for parameter, gradient in zip(self._combined_parameters, combined.arrays, strict=True):
            values = from_real(torch.from_numpy(gradient).to(parameter.device), parameter.dtype)
            parameter.grad = laid_out_as(parameter.detach(), values)
        if self._in_shards:
            load_buffers(self._model, combined.statistics, self._changed)
        self._apply()

    def _clip(self) -> bool:
        """Clip the combined gradients; False if they are not finite and --on-nan skip is to skip the step.

        Combined gradients are identical on all ranks, so either all ranks skip the step or none does.
        """
        skip, clip_norm = self._config.on_nan == "skip", self._config.clip_norm
        if not (skip or clip_norm):
            return True
        norm = nn.utils.clip_grad_norm_(self._parameters.values(), clip_norm or float("inf"))
        return not skip or bool(norm.isfinite())

    def _rescale(self) -> bool:
        """Lower fp16's loss scale if gradients overflowed, else raise it; whether the scaler skipped the update."""
        if not self._scaler.is_enabled():
            return False
        before = self._scaler.get_scale()
        self._scaler.update()
        return self._scaler.get_scale() < before

    def weights(self) -> Weights:
        return module_weights(self._model)

    def load(self, weights: Weights) -> None:
        load_module(self._model, weights)

    @contextlib.contextmanager
    def unchanged(self, is_trial: bool = False) -> Iterator[None]:  # a script may set its mode as it evaluates
        with self.evaluation_mode() if is_trial else contextlib.nullcontext(), unchanged(self._model, is_trial):
            yield

    def close(self) -> None:
        self._strategy.close()
        if isinstance(self._averages, TorchModes):
            self._optimizer.eval()  # the script then has the weights that were evaluated


class TorchLearner(TorchSteps):
    """A PyTorch module, trained with one strategy; images of networks as data are in memory format channels_last."""

    _how_to_allow_unused = "give the task the attribute unused_parameters = True"

    def __init__(self, target: Target, weights: Weights | None, strategy: TorchStrategy) -> None:
        super().__init__(strategy)
        config = strategy.config
        if config.compile:
            choose_cache()
        self._objective = OBJECTIVES[target.kind](target, config, torch.channels_last)
        self._objective.check_copies(strategy)
        self._model = self._objective.model
        if weights:
            self.load(weights)
        self._model.to(self.device)
        trained, others = trained_parameters(self._model), frozen_parameters(self._model)
        self._parameters, left_out = freeze(config.freeze, trained, others)
        for parameter in left_out.values():
            parameter.requires_grad_(False)
        self.frozen = frozen_parameters(self._model)
        check_gradients(self._parameters, config.precision, self.group.size * self.devices * (config.shards or 1))
        self._load_loss_scale(self._scaler.state_dict())
        self._own = TaskOptimizer.of(target, config, self._parameters, self.group.size)
        optimizer = self._own.optimizer if self._own else make_optimizer(config, self._parameters)
        self.optimizer_order = order_of(optimizer, self._parameters)
        self._optimizer = strategy.wrap_optimizer(optimizer, self._model)
        self._training_model = self._wrap_model(self._objective.finds_unused)
        layers = [layer for layer in self._model.modules() if isinstance(layer, TorchBatchNormalization)]
        self._synchronized = layers if config.batch_norm == "sync" else []
        for layer in self._synchronized:
            layer.group = self.group
        self.local_weights = buffers_by_rank(self._model, bool(self._synchronized))
        self._begin_training()
        self._averages = make_averages(optimizer, config, self._model, self._parameters)

    def compile(self, arrays: tuple[np.ndarray, ...]) -> float:
        began, rows = time.perf_counter(), -(-len(arrays[0]) // self._config.accumulate)
        batch = Batch(tuple(array[:rows] for array in arrays), np.ones(rows, np.float32), 0.0, 0, np.arange(rows))
        _, *tensors = [to_tensor(array, self.device) for array in self._objective.rows(batch)]

        def warm_up() -> None:
            with unchanged(self._model):
                losses = self._losses(self._model, tensors)
                torch.autograd.grad(losses.sum(), list(self._parameters.values()), allow_unused=True)

        with unchanged(self._model):
            if asks(self._outputs, self._model, tensors[: self._objective.inputs]):  # each value would be compiled
                raise UserError("the model asks for hvdtrain.progress()", "ask in losses(), or leave out --compile")
        compile_forward(self._model, rows, warm_up)
        return time.perf_counter() - began

    def _outputs(self, model: nn.Module, inputs: list[torch.Tensor]) -> Any:
        arguments = self._objective.prepared(tuple(inputs))
        dtype = DTYPES[self._config.precision]
        with torch.autocast(self._device_type, dtype, enabled=dtype is not torch.float32):
            return widened(model(*arguments))

    def _losses(self, model: nn.Module, tensors: list[torch.Tensor]) -> torch.Tensor:
        """The loss of each row, from inputs and targets on the device."""
        count = self._objective.inputs
        return self._objective.losses(self._outputs(model, tensors[:count]), tuple(tensors[count:]))

    def train_step(self, batch: Batch) -> StepLoss:
        for group in () if self._own else self._optimizer.param_groups:
            group["lr"] = batch.lr
        self._optimizer.zero_grad()
        return super().train_step(batch)

    def step_by_framework(self, batch: Batch) -> StepLoss:
        loss = self._forward_backward(batch)
        self._finish_step()
        return loss

    def gradients(self, parts: Sequence[Batch]) -> Iterator[Gradients]:
        for part in parts:
            yield from self.take_gradients(self._forward_backward(part))

    def _forward_backward(self, batch: Batch) -> Any:
        self._objective.seed_step(batch.step, batch.part)
        count = min(self._config.accumulate, len(batch.rows))
        parts = (to_tensor(array, self.device).tensor_split(count) for array in self._objective.rows(batch))
        return sum(self._part(*part) for part in zip(*parts, strict=True))

    def try_step(self, batch: Batch) -> torch.Tensor:
        rows = -(-len(batch.rows) // self._config.accumulate)
        _, *arrays = self._objective.rows(batch)
        model = self._training_model if self.devices > 1 else self._model  # others combine gradients
        return self._losses(model, [to_tensor(array[:rows], self.device) for array in arrays])

    def _part(self, row_weights: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        """Forward and backward of some rows of the step."""
        phases.begin(FORWARD)
        for layer in self._synchronized:
            layer.real_rows = (row_weights > 0).float()
        return self._backward(self._losses(self._training_model, list(tensors)), row_weights)

    def _apply(self) -> None:
        if not self._own:
            super()._apply()
            return
        self._objective.seed_step(self._step, MAX_SHARDS)  # the update draws the same on any number of ranks
        self._own.update(super()._apply, self._step)

    def set_length(self, steps: int, epochs: int) -> None:
        super().set_length(steps, epochs)
        if self._own:
            self._own.set_length(steps, epochs)
            self.length = {**self.length, **self._own.given}

    @property
    def learning_rate(self) -> float | None:
        return self._own.learning_rate if self._own else None

    def settings(self) -> dict[str, Any]:
        return super().settings() if self._own else {}  # each step sets the rate of hvdtrain's own

    def seed(self, step: int, part: int) -> None:
        self._objective.seed_step(step, part)

    def eval_step(self, arrays: tuple[np.ndarray, ...]) -> Evaluated:
        return evaluate(self._objective, functools.partial(self._outputs, self._model), arrays, self.device)

    @torch.no_grad()
    def logits(self, images: np.ndarray) -> np.ndarray:
        with evaluating(self._model):
            return self._outputs(self._model, [to_tensor(images, self.device)]).cpu().numpy()

    def optimizer_state(self) -> OptimizerState:
        loss_scale = _times(self._scaler.state_dict(), scale_of_rows(self.group.size))  # that of one process
        if self._own:
            return OptimizerState(self._own.arrays(), extra={"loss_scale": loss_scale, "length": self.length})
        return read_state(self._optimizer, self._parameters, extra={"loss_scale": loss_scale})

    def accepts_state(self, state: OptimizerState) -> bool:
        return self._own.accepts_state(state.arrays) if self._own else super().accepts_state(state)

    def load_optimizer_state(self, state: OptimizerState) -> None:
        if self._own:
            self._own.load(state.arrays, self.resumed[1].step if self.has_other_length(state) else None)
        else:
            write_state(self._optimizer, self._parameters, state)
        if state.extra.get("loss_scale"):
            self._load_loss_scale(state.extra["loss_scale"])

    def _load_loss_scale(self, state: dict[str, Any]) -> None:
        """Set fp16's loss scale to that of one process in `state`, as it is on this number of ranks."""
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(_times(state, 1 / scale_of_rows(self.group.size)))


def _times(scaler: dict[str, Any], factor: float) -> dict[str, Any]:
    """The state of a GradScaler with another scale; that of one that is switched off is empty."""
    return {**scaler, "scale": scaler["scale"] * factor} if scaler else {}
