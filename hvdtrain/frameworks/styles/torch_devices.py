"""Several devices in one process in PyTorch: torch.nn.DataParallel, the same over parts of the CPU, and by hand.

By hand (`--strategy manual`, `TorchManualLearner`) is the method of "Training on Multiple GPUs" in Dive into Deep
Learning: copy the parameters to each device, split the batch, compute gradients on each device, sum them on the first
device, copy the sum back to all devices, and make the same update on each.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import nn

from hvdtrain.collectives.groups import single_process
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.frameworks.batches import count_devices, split_rows
from hvdtrain.frameworks.patterns import without_decay
from hvdtrain.frameworks.torch.network import host_array, load_module, module_weights, placed_tensors, unlisted_buffers
from hvdtrain.frameworks.torch.objective import OBJECTIVES, evaluate, evaluating, to_tensor, widened
from hvdtrain.frameworks.torch.strategies import TorchStrategy, Wrapper
from hvdtrain.interfaces.learner import Evaluated, Learner, OptimizerState
from hvdtrain.interfaces.reading import Batch
from hvdtrain.interfaces.strategy import Strategy
from hvdtrain.networks.description import Weights
from hvdtrain.system.phases import BACKWARD, FORWARD, GRADIENTS, UPDATE, phases
from hvdtrain.tasks.target import Target

Tensors = dict[str, torch.Tensor]


def _gathered(*outputs: Any) -> Any:
    """The outputs of replicas as one: tensors are concatenated, also in mappings and sequences, as by DataParallel."""
    first: Any = outputs[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(outputs)
    if isinstance(first, Mapping):  # of any class: tree_map takes those of its own list only
        return {name: _gathered(*(output[name] for output in outputs)) for name in first}
    if not isinstance(first, tuple | list):
        return first
    values = [*map(_gathered, *outputs)]
    return type(first)(*values) if hasattr(first, "_fields") else type(first)(values)


class Replicas(Wrapper, nn.DataParallel):
    """DataParallel with the methods of its module."""


class CPUReplicas(Wrapper):
    """DataParallel's four steps over parts of the CPU, for which torch.nn.DataParallel itself does not work.

    As in DataParallel, the replicas' forward passes run in separate threads. On a CPU, PyTorch runs backward in one
    thread.
    """

    _inner = "model"

    def __init__(self, model: nn.Module, devices: int) -> None:
        super().__init__()
        self.model = model
        try:
            self._bodies = [copy.deepcopy(model) for _ in range(devices)]
        except RuntimeError as error:  # of a tensor with a history, such as the old weight_norm's
            raise UserError(
                f"--strategy dataparallel: the model cannot be copied ({error!s:.100})",
                "use torch.nn.utils.parametrizations, or another strategy",
                option="strategy",
            ) from error
        self._threads = ThreadPoolExecutor(devices)

    def forward(self, *inputs: torch.Tensor) -> Any:
        if not self.training:  # the replicas do not get the modes of the modules
            return self.model(*inputs)
        scattered = list(zip(*(tensor.tensor_split(len(self._bodies)) for tensor in inputs), strict=True))
        replicas = [self._replica(number) for number in range(len(scattered))]
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        applied = self._threads.map(functools.partial(self._apply, dtype), self._bodies, replicas, scattered)
        return _gathered(*applied)

    def _replica(self, number: int) -> Tensors:
        """The tensors of a replica; the first one changes parameters and buffers, as in DataParallel.

        The gradient of a clone is added to that of the original parameter, as in DataParallel's broadcast.
        """
        places = placed_tensors(self.model)
        copies = {id(p): p.clone() if number else p.view_as(p) for p in self.model.parameters()}
        replica = {name: copies[id(tensor)] for name, tensor in places.items() if id(tensor) in copies}
        return replica if number else places | replica

    @staticmethod
    def _apply(
        dtype: torch.dtype | None, body: nn.Module, parameters: dict[str, torch.Tensor], part: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        with torch.autocast("cpu", dtype, enabled=dtype is not None):  # threads do not inherit autocast
            return torch.func.functional_call(body, parameters, part, tie_weights=False)


class TorchDataParallel(TorchStrategy):
    """torch.nn.DataParallel: scatters each batch over the GPUs of one process, or over parts of the CPU."""

    many_devices = True
    sums_shards = False

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        gpus = torch.cuda.device_count() if runtime.device != "cpu" else 0
        super().__init__(config, runtime, single_process(config.strategy), count_devices(runtime.devices, gpus))

    def wrap_model(self, model: nn.Module, device: str, finds_unused: bool = False) -> nn.Module:
        if device != "cpu":
            return Replicas(model, list(range(self.devices)))
        if not self.runtime.quiet:
            print(
                "torch.nn.DataParallel supports GPUs only: scatter, replicate, apply and gather run over "
                f"{self.devices} parts of the CPU, and backward in one thread",
                file=sys.stderr,
            )
        return CPUReplicas(model, self.devices)


class TorchManual(Strategy):
    """Hand-written allreduce and SGD over several devices of one process (GPUs, or parts of the CPU)."""

    many_devices = True

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        gpus = torch.cuda.device_count() if runtime.device != "cpu" else 0
        self.device_names = [f"cuda:{i}" if gpus else "cpu" for i in range(count_devices(runtime.devices, gpus))]
        super().__init__(config, runtime, single_process(config.strategy), len(self.device_names))


def get_params(tensors: Tensors, trainable: Collection[str], device: str) -> Tensors:
    """Copy parameters and buffers to one device; those in `trainable` get gradients."""
    return {
        name: tensor.detach().to(device, copy=True).requires_grad_(name in trainable)
        for name, tensor in tensors.items()
    }


def split_batch(devices: list[str], *batch: np.ndarray) -> list[list[torch.Tensor]]:
    """Split the arrays of a batch into equal parts, one per device, and copy them there: [device][array]."""
    parts = split_rows(len(devices), *batch)
    return [[to_tensor(rows, device) for rows in part] for part, device in zip(parts, devices, strict=True)]


def allreduce(data: list[torch.Tensor]) -> None:
    """Sum on the first device, and copy the sum back to all; `data` has one tensor per device."""
    for other in data[1:]:
        data[0] += other.to(data[0].device)
    for other in data[1:]:
        other.copy_(data[0])


class TorchManualLearner(Learner):
    """The module as a function of parameters, with a copy of parameters and buffers on each device."""

    eval_modes = (torch.no_grad, torch.enable_grad)

    def __init__(self, target: Target, weights: Weights | None, strategy: TorchManual) -> None:
        self.group, self.devices, self.skipped = strategy.group, strategy.devices, 0
        self._device_names, self._config = strategy.device_names, strategy.config
        self.device = self._device_names[0]
        self._objective = OBJECTIVES[target.kind](target, strategy.config, torch.preserve_format)
        self._objective.check_copies(strategy)
        self._model = self._objective.model
        self._check_hooks()
        tensors = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        self._names = [name for name, tensor in tensors.items() if tensor.requires_grad]
        without = without_decay(self._config.no_decay, self._names)
        self._decays = {name: 0.0 if name in without else self._config.weight_decay for name in self._names}
        # A tied parameter has several names, of which functional_call wants one.
        first = {id(tensor): name for name, tensor in reversed(tensors.items())}
        self._first_names = {
            name: first.get(id(tensor), name)
            for name, tensor in (self._model.state_dict(keep_vars=True) | unlisted_buffers(self._model)).items()
        }
        self.load(weights or module_weights(self._model))
        places = {place: first[id(tensor)] for place, tensor in placed_tensors(self._model).items()}
        self._places = {place: name for place, name in places.items() if name in self._params[0]}
        self._momentum = [{n: torch.zeros_like(params[n]) for n in self._names} for params in self._params]

    def _check_hooks(self) -> None:
        for name, parameter in self._model.named_parameters():
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                raise UserError(
                    f"--strategy manual: the model has a hook on the parameter {name}, whose copies have none",
                    "leave it out, or use another strategy",
                    option="strategy",
                )

    def _outputs(self, params: Tensors, inputs: list[torch.Tensor]) -> Any:
        placed = {place: params[name] for place, name in self._places.items()}
        arguments = self._objective.prepared(tuple(inputs))
        return widened(torch.func.functional_call(self._model, placed, arguments, tie_weights=False))

    def train_step(self, batch: Batch) -> torch.Tensor:
        phases.begin(FORWARD)
        loss = self._backward(batch)
        with torch.no_grad():
            phases.begin(GRADIENTS)
            for name in self._names:
                allreduce([params[name].grad for params in self._params])
            phases.begin(UPDATE)
            for params, momentum in zip(self._params, self._momentum, strict=True):
                self._sgd(params, momentum, batch.lr)
        return loss

    def _backward(self, batch: Batch) -> torch.Tensor:
        """Forward and backward on all devices; the loss."""
        self._objective.seed_step(batch.step, self.group.rank)
        losses, count = [], self._objective.inputs
        parts = split_batch(self._device_names, *self._objective.rows(batch))
        for params, (weights, *tensors) in zip(self._params, parts, strict=True):
            phases.begin(FORWARD)
            for name in self._names:
                params[name].grad = torch.zeros_like(params[name])
            outputs = self._outputs(params, tensors[:count])
            loss = self._objective.losses(outputs, tuple(tensors[count:])) @ weights
            phases.begin(BACKWARD)
            loss.backward()  # on GPUs this only queues the work, so the devices compute at the same time
            losses.append(loss.detach())
        return sum(loss.to(self.device) for loss in losses)

    def try_step(self, batch: Batch) -> torch.Tensor:
        return self._backward(batch)

    def _sgd(self, params: Tensors, momentum: Tensors, lr: float) -> None:
        config = self._config
        for name in self._names:
            param = params[name]
            gradient = param.grad + self._decays[name] * param
            momentum[name].mul_(config.momentum).add_(gradient)
            param -= lr * (gradient + config.momentum * momentum[name] if config.nesterov else momentum[name])

    def eval_step(self, arrays: tuple[np.ndarray, ...]) -> Evaluated:
        return evaluate(self._objective, functools.partial(self._outputs, self._params[0]), arrays, self.device)

    @torch.no_grad()
    def logits(self, images: np.ndarray) -> np.ndarray:
        with evaluating(self._model):
            return self._outputs(self._params[0], [to_tensor(images, self.device)]).cpu().numpy()

    def weights(self) -> Weights:
        arrays = {name: host_array(value) for name, value in self._params[0].items()}
        return {name: arrays[first].copy() for name, first in self._first_names.items()}

    def load(self, weights: Weights) -> None:
        load_module(self._model, weights)
        loaded = self._model.state_dict() | unlisted_buffers(self._model)
        tensors = {name: loaded[name] for name in dict.fromkeys(self._first_names.values())}
        self._params = [get_params(tensors, self._names, device) for device in self._device_names]

    def optimizer_state(self) -> OptimizerState:
        momentum: Tensors = self._momentum[0] if self._config.momentum else {}
        return OptimizerState({f"momentum/{name}": host_array(value).copy() for name, value in momentum.items()})

    def load_optimizer_state(self, state: OptimizerState) -> None:
        for momentum in self._momentum if self._config.momentum else ():
            for name, value in momentum.items():
                saved = state.arrays[f"momentum/{name}"] / np.float32(state.scale)
                value.copy_(torch.from_numpy(np.asarray(saved)))  # NumPy makes numbers of arrays without dimensions
