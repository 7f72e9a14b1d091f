"""What a PyTorch learner trains: a module, and the loss and metrics of each row."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from hvdtrain.config.options import Config
from hvdtrain.frameworks.batches import network_rows
from hvdtrain.frameworks.torch.network import TorchNetwork, scale_pixels
from hvdtrain.interfaces import Batch, Evaluated
from hvdtrain.networks.description import STATISTICS, ShapedNetwork, Weights, check_weights
from hvdtrain.tasks import errors
from hvdtrain.tasks.registry import Target
from hvdtrain.tasks.seeds import step_seeds
from hvdtrain.tasks.user import UserTask

Tensors = tuple[torch.Tensor, ...]


class Objective(Protocol):
    """A module, and what its outputs are worth. Arrays and tensors have one row each for n samples."""

    model: nn.Module
    inputs: int
    """Number of the arrays of `rows` that the module gets; the losses get the others."""
    eval_inputs: int
    """Number of a source's arrays that the module gets in an evaluation."""
    finds_unused: bool
    """Whether parameters may get no gradient."""

    def rows(self, batch: Batch) -> tuple[np.ndarray, ...]:
        """The weights of the rows, the module's inputs, and the targets."""
        ...

    def prepared(self, inputs: Tensors) -> Tensors:
        """The module's arguments from inputs on the device."""
        ...

    def losses(self, outputs: Any, targets: Tensors) -> torch.Tensor:
        """The loss of each row, (n,)."""
        ...

    def metrics(self, outputs: Any, targets: Tensors) -> dict[str, torch.Tensor]:
        """The metrics of each row, (n,), by name."""
        ...

    def predicted(self, outputs: Any) -> np.ndarray | None:
        """Classes, int64 (n,), of a network as data."""
        ...

    def seed_step(self, step: int, rank: int) -> None:
        """Seed the generators for a step of a rank, so that a resumed run draws the same random numbers."""
        ...


class NetworkObjective:
    """Classify images with a network as data. layout: the memory format of images."""

    eval_inputs, finds_unused = 1, False

    def __init__(self, network: ShapedNetwork, config: Config, layout: torch.memory_format) -> None:
        self.model: nn.Module = TorchNetwork(network)
        self.inputs = 1 + len(network.dropouts)
        self._network, self._seed, self._layout = network, config.seed, layout

    def rows(self, batch: Batch) -> tuple[np.ndarray, ...]:
        weights, labels, *inputs = network_rows(self._network, self._seed, batch)
        return weights, *inputs, labels

    def prepared(self, inputs: Tensors) -> Tensors:
        images, *masks = inputs
        height, width = self._network.used_pixels
        # Parameters keep their layout, because Horovod requires contiguous gradients.
        return scale_pixels(images[:, :, :height, :width], self._layout), *masks

    def losses(self, outputs: torch.Tensor, targets: Tensors) -> torch.Tensor:
        return cross_entropy(outputs, targets)

    def metrics(self, outputs: torch.Tensor, targets: Tensors) -> dict[str, torch.Tensor]:
        return {"accuracy": outputs.argmax(1) == targets[0]}

    def predicted(self, outputs: torch.Tensor) -> np.ndarray | None:
        return outputs.argmax(1).cpu().numpy()

    def seed_step(self, step: int, rank: int) -> None:
        pass  # dropout's masks come with the rows


class TaskObjective:
    """A task of the user's own. Its module is made with seeded generators, so all ranks begin with the same weights.

    Raises UserError for methods that do not return what they must, found out on the first rows.
    """

    def __init__(self, task: UserTask, config: Config) -> None:
        self._task, self._seed = task, config.seed
        self.inputs = self.eval_inputs = task.inputs
        seed_generators(config.seed)
        model = task.call("model")
        if not isinstance(model, nn.Module):
            raise errors.no_model(task, model, "torch")
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise errors.nothing_to_train(task)
        self.model: nn.Module = model
        self.finds_unused = self._try_out()

    def _try_out(self) -> bool:
        """Compute losses, metrics and gradients once; whether there are parameters without gradients."""
        arrays = self._task.first_rows()
        before = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.model.train()
        inputs, targets = arrays[: self.inputs], arrays[self.inputs :]
        tensors, target_tensors = (tuple(map(to_tensor, some)) for some in (inputs, targets))
        outputs = self._first_outputs(tensors)
        losses = self.losses(outputs, target_tensors)
        self.metrics(outputs, target_tensors)
        if not losses.requires_grad:
            raise errors.no_gradient(self._task)
        trainable = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(losses.sum(), trainable, allow_unused=True)
        self.model.load_state_dict(before)
        return any(gradient is None for gradient in gradients)

    def _first_outputs(self, inputs: Tensors) -> Any:
        try:
            return self.model(*inputs)
        except Exception as error:
            raise errors.failing_model(self._task, inputs, error) from error

    def rows(self, batch: Batch) -> tuple[np.ndarray, ...]:
        return batch.weights, *batch.arrays

    def prepared(self, inputs: Tensors) -> Tensors:
        return inputs

    def losses(self, outputs: Any, targets: Tensors) -> torch.Tensor:
        if not self._task.has("losses"):
            return self._default_losses(outputs, targets)
        return self._of_rows("losses", self._task.call("losses", outputs, *targets), targets, outputs).float()

    def _default_losses(self, outputs: Any, targets: Tensors) -> torch.Tensor:
        logits = isinstance(outputs, torch.Tensor) and outputs.dim() == 2
        if logits and len(targets) == 1 and targets[0].dtype is torch.int64 and targets[0].dim() == 1:
            self._task.labels.expect(outputs.shape[1])
            return cross_entropy(outputs, targets)
        raise errors.no_default_loss(self._task, outputs, targets)

    def metrics(self, outputs: Any, targets: Tensors) -> dict[str, torch.Tensor]:
        if not self._task.has("metrics"):
            return {} if self._task.has("losses") else {"accuracy": outputs.argmax(1) == targets[0]}
        found = errors.named_metrics(self._task, outputs, targets)
        return {name: self._of_rows("metrics", value, targets, outputs) for name, value in found.items()}

    def _of_rows(self, method: str, values: Any, targets: Tensors, outputs: Any) -> torch.Tensor:
        rows = len(targets[0]) if targets else _length(outputs)
        is_tensor = isinstance(values, torch.Tensor)
        if not is_tensor or values.shape != (rows,):
            raise errors.not_per_row(self._task, method, values, is_tensor, rows)
        return values

    def predicted(self, outputs: Any) -> np.ndarray | None:
        return None

    def seed_step(self, step: int, rank: int) -> None:
        torch.manual_seed(int(step_seeds(self._seed, step, rank).generate_state(1, np.uint64)[0]))


def _length(outputs: Any) -> int:
    """Number of rows of a module's outputs."""
    if isinstance(outputs, Mapping):
        return _length(next(iter(outputs.values())))
    return len(outputs) if isinstance(outputs, torch.Tensor) else _length(outputs[0])


def cross_entropy(outputs: torch.Tensor, targets: Tensors) -> torch.Tensor:
    """Of logits (n, classes) and labels, int64 (n,)."""
    (labels,) = targets
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


def to_tensor(array: np.ndarray, device: str = "cpu") -> torch.Tensor:
    """The array on a device, from page-locked memory, so that the copy waits for nothing the device still has to do."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)  # PyTorch keeps the memory until the copy is done


def seed_generators(seed: int) -> None:
    """Seed the generators that a user's code draws from: Python's, NumPy's and PyTorch's. seed: below 2^64."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; after it, each module has its own mode again: a user may have frozen some."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@torch.no_grad()
def evaluate(
    objective: Objective, outputs_of: Callable[[list[torch.Tensor]], Any], arrays: tuple[np.ndarray, ...], device: str
) -> Evaluated:
    """Evaluate rows of a source. outputs_of: the module's outputs for inputs on the device."""
    tensors, count = [to_tensor(array, device) for array in arrays], objective.eval_inputs
    with evaluating(objective.model):
        outputs, targets = outputs_of(tensors[:count]), tuple(tensors[count:])
        losses, metrics = objective.losses(outputs, targets), objective.metrics(outputs, targets)
    sums = {name: float(value.double().sum()) for name, value in metrics.items()}
    return Evaluated(float(losses.double().sum()), sums, objective.predicted(outputs))


def make_objective(target: Target, config: Config, layout: torch.memory_format = torch.channels_last) -> Objective:
    """The objective of a network or task. Raises UserError for a task that does not work."""
    return TaskObjective(target, config) if isinstance(target, UserTask) else NetworkObjective(target, config, layout)


def module_weights(model: nn.Module) -> Weights:
    """Copies of parameters and buffers, by name; bfloat16, which NumPy lacks, as float32."""
    state = {
        name: (value.float() if value.dtype is torch.bfloat16 else value).detach()
        for name, value in model.state_dict().items()
    }
    on_device = {name: value for name, value in state.items() if value.is_cuda and value.dtype is torch.float32}
    state |= _copied_at_once(on_device)
    return {name: value.numpy() if name in on_device else value.cpu().numpy().copy() for name, value in state.items()}


def _copied_at_once(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors, all of one type and device, on the host: each copy by itself would wait for the device."""
    if not tensors:
        return {}
    flat = torch.cat([value.flatten() for value in tensors.values()]).cpu()
    parts = flat.split([value.numel() for value in tensors.values()])
    return {name: part.view(tensors[name].shape) for name, part in zip(tensors, parts, strict=True)}


def load_module(model: nn.Module, weights: Weights) -> None:
    """Set parameters and buffers. Raises ValueError if names or shapes differ."""
    check_weights(weights, {name: value.shape for name, value in model.state_dict().items()})
    # Without a copy of all at once; PyTorch warns of arrays that it may not write to, although it only reads here.
    writable = {name: np.require(value, requirements="W") for name, value in weights.items()}
    model.load_state_dict({name: torch.from_numpy(value) for name, value in writable.items()})


def buffers_by_rank(model: nn.Module, synchronized: bool) -> frozenset[str]:
    """Names of the buffers in its state_dict(), of which each rank has its own unless they are synchronized."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    buffers = frozenset(model.state_dict().keys() - parameters)
    return frozenset(name for name in buffers if not (synchronized and name.endswith(STATISTICS)))
