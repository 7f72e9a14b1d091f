"""What a PyTorch learner trains: a module, the loss and metrics of each row, and the rows of a step on the device."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map

from hvdtrain.config.options import Config
from hvdtrain.errors import UserError
from hvdtrain.frameworks.batches import network_rows
from hvdtrain.frameworks.row_checks import not_trained
from hvdtrain.frameworks.torch.network import (
    TorchNetwork,
    attribute_numbers,
    empty_buffers,
    scale_pixels,
    unchanged,
    why_not_saved,
)
from hvdtrain.frameworks.user_code import TaskOutputs, failing_model, no_gradient, no_model, nothing_to_train
from hvdtrain.interfaces.learner import Evaluated
from hvdtrain.interfaces.reading import Batch
from hvdtrain.interfaces.strategy import Strategy
from hvdtrain.tasks.target import NetworkTarget, step_seed
from hvdtrain.tasks.user import UserTask

Tensors = tuple[torch.Tensor, ...]
ALIGNMENT = 64
"""Bytes: addresses of tensors that PyTorch allocates on a CPU are multiples of it (c10's gAlignment)."""


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Of each row, (n,), from logits (n, classes) and labels, int64 (n,)."""
    return nn.functional.cross_entropy(logits, labels, reduction="none")


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Of each row, (n,), from outputs (n, 1) and targets, float32 (n,)."""
    return (outputs[:, 0] - targets).square()


def is_right(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Whether the greatest logit of each row is that of its label."""
    return logits.argmax(1) == labels


def widened(outputs: Any) -> Any:
    """The outputs of a module, with bfloat16 and float16 as float32."""
    half, kind = (torch.bfloat16, torch.float16), torch.Tensor
    return tree_map(lambda one: one.float() if isinstance(one, kind) and one.dtype in half else one, outputs)


class TorchObjective:
    """A module, and what its outputs are worth. Arrays and tensors have one row each for n samples."""

    model: nn.Module
    inputs: int
    """Number of the arrays of `rows` that the module gets; the losses get the others."""
    eval_inputs: int
    """Number of a source's arrays that the module gets in an evaluation."""
    assigned: Sequence[str] = ()
    """Buffers that the module replaces by other tensors."""
    finds_unused = False
    """Whether parameters may get no gradient."""

    def eval_rows(self, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """The rows of an evaluation, and others where the model takes no smaller number."""
        return arrays

    def rows(self, batch: Batch) -> tuple[np.ndarray, ...]:
        """The weights of the rows, the module's inputs, and the targets."""
        return batch.weights, *batch.arrays

    def check_copies(self, strategy: Strategy) -> None:
        """Raise UserError if copies of the module on several devices would lose what it assigns."""
        if strategy.many_devices and self.assigned:
            raise UserError(
                f"--strategy {strategy.config.strategy}: the model assigns its buffer {self.assigned[0]}, which its "
                "copies on devices would forget",
                "let it change the buffer in place, by copy_(), or use another strategy",
                option="strategy",
            )

    def seed_step(self, step: int, part: int) -> None:
        """Seed the generators for a part of a step, so that a resumed run draws the same random numbers."""

    def prepared(self, inputs: Tensors) -> Tensors:
        """The module's arguments from inputs on the device."""
        return inputs

    def losses(self, outputs: Any, targets: Tensors) -> torch.Tensor:
        """The loss of each row, (n,)."""
        raise NotImplementedError

    def metrics(self, outputs: Any, targets: Tensors) -> dict[str, torch.Tensor]:
        """The metrics of each row, (n,), by name."""
        raise NotImplementedError

    def predicted(self, outputs: Any) -> torch.Tensor | None:
        """Classes, int64 (n,), of a classifier with the default loss; numbers, float32 (n,), of a network as data."""
        return None


class TorchNetworkObjective(TorchObjective):
    """Classify images, or predict a number for each, with a network as data. layout: the memory format of images."""

    eval_inputs = 1

    def __init__(self, target: NetworkTarget, config: Config, layout: torch.memory_format) -> None:
        network = target.network
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
        loss = squared_error if self._network.is_regression else cross_entropy
        return loss(outputs, targets[0])

    def metrics(self, outputs: torch.Tensor, targets: Tensors) -> dict[str, torch.Tensor]:
        return {} if self._network.is_regression else {"accuracy": is_right(outputs, targets[0])}

    def predicted(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs[:, 0] if self._network.is_regression else outputs.argmax(1)


class TorchTaskObjective(TaskOutputs, TorchObjective):
    """A task of the user's own. Its module is made with seeded generators, so all ranks begin with the same weights.

    Raises UserError for methods that do not return what they must, found out on the first rows.
    """

    tensor, int64 = torch.Tensor, torch.int64
    _cross_entropy, _is_right = staticmethod(cross_entropy), staticmethod(is_right)

    def __init__(self, task: UserTask, config: Config, layout: torch.memory_format | None = None) -> None:
        self._task, self._seed = task, config.seed
        self.inputs = self.eval_inputs = task.inputs
        seed_generators(config.seed)
        model = task.call("model")
        if not isinstance(model, nn.Module):
            raise no_model(task, model, "torch")
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise nothing_to_train(task)
        self.model: nn.Module = model
        self._begin_training()
        self.finds_unused = task.try_out(self._try_out) or task.has_unused_parameters

    def _try_out(self, rows: tuple[np.ndarray, ...]) -> bool:
        """Compute losses, metrics and gradients once; whether there are parameters without gradients."""
        inputs, targets = self._split(tuple(map(to_tensor, rows)))
        self._complete(inputs)
        problem, remedy = why_not_saved(self.model)
        if problem:
            raise self._task.error("model", f"returned a model whose {problem}", remedy)
        buffers, numbers = dict(self.model.named_buffers()), attribute_numbers(self.model)
        with unchanged(self.model):
            outputs = self._first_outputs(inputs)
            losses = self.losses(outputs, targets)
            self.metrics(outputs, targets)
            if not losses.requires_grad:
                raise no_gradient(self._task)
            if used := other_leaves(losses, self.model):  # some are made in each call
                again = other_leaves(self.losses(self._first_outputs(inputs), targets), self.model)
                for leaf in used.keys() & again.keys() - set(map(id, (*inputs, *targets))):
                    raise not_trained(f"--model {self._task.name}", used[leaf], "requires_grad_(False)")
            losses.sum().backward()  # unlike torch.autograd.grad, it works with reentrant checkpoints
            self._examine(outputs, targets, losses)  # calls losses() again, which may change what backward() needs
            gradients = [parameter.grad for parameter in self.model.parameters() if parameter.requires_grad]
            self.assigned = [name for name, buffer in self.model.named_buffers() if buffer is not buffers.get(name)]
            counted = attribute_numbers(self.model).items() - numbers.items()
        if made := set(self.assigned) - buffers.keys() - empty_buffers(self.model):
            problem = f"returned a model that makes its buffer {min(made)} when it is called"
            raise self._task.error("model", problem, "register it before, as None where it has no values yet")
        if any(gradient is not None and gradient.is_sparse for gradient in gradients):
            raise self._task.error("model", "returned a model with sparse gradients", "leave out sparse=True")
        if counted:
            self._task.advice.append(
                f"--model {self._task.name}: the model changes {min(counted)[0]}, which no checkpoint has: let it be a "
                "buffer, by register_buffer(), so that a resumed run continues with it"
            )
        return any(gradient is None for gradient in gradients)

    def _complete(self, inputs: Tensors) -> None:
        """Give lazy modules their shapes."""
        if any(map(is_lazy, (*self.model.parameters(), *self.model.buffers()))):
            with evaluating(self.model):
                self._first_outputs(inputs)
        if lazy := [name for name, tensor in self.model.named_parameters() if is_lazy(tensor)]:
            problem = f"returned a model that does not use {lazy[0]} of a lazy module"
            raise self._task.error("model", problem, "leave that module out, or give it its shape")

    def _begin_training(self) -> None:
        """Set training mode; modules that model() left in evaluation mode keep it, unless it left all in it."""
        modules = list(self.model.modules())
        evaluated = [module for module in modules if not module.training]
        set_training(self.model, True)
        for module in evaluated if len(evaluated) < len(modules) else ():
            module.training = False

    def _first_outputs(self, inputs: Tensors) -> Any:
        try:
            return widened(self.model(*inputs))
        except Exception as error:
            raise failing_model(self._task, inputs, error) from error

    def losses(self, outputs: Any, targets: Tensors) -> torch.Tensor:
        return self._losses_of(outputs, targets).float()

    def metrics(self, outputs: Any, targets: Tensors) -> dict[str, torch.Tensor]:
        return self._metrics_of(outputs, targets)

    def predicted(self, outputs: Any) -> torch.Tensor | None:
        return None if self._task.has("losses") else outputs.argmax(1)

    def seed_step(self, step: int, part: int) -> None:
        seed_generators(step_seed(self._seed, step, part))


def other_leaves(losses: torch.Tensor, model: nn.Module) -> dict[int, torch.Tensor]:
    """By identity, the tensors in which backward() leaves gradients, besides the model's parameters."""
    nodes, seen, ours = [losses.grad_fn], set[Any](), set(map(id, model.parameters()))
    for node in nodes:  # which grow
        new = {before for before, _ in getattr(node, "next_functions", ()) if before} - seen
        seen |= new
        nodes += new
    leaves = [node.variable for node in nodes if type(node).__name__ == "AccumulateGrad"]
    return {id(leaf): leaf for leaf in leaves if id(leaf) not in ours}


def to_tensor(array: np.ndarray, device: str = "cpu") -> torch.Tensor:
    """The array on a device, from page-locked memory, so that the copy waits for nothing the device still has to do.

    On the CPU, at an address as PyTorch's own memory has: libraries may compute different bits at other ones.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device == "cpu":
        return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor
    return tensor.pin_memory().to(device, non_blocking=True)  # PyTorch keeps the memory until the copy is done


def seed_generators(seed: int) -> None:
    """Seed the generators that a user's code draws from: Python's, NumPy's and PyTorch's. seed: below 2^64."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)


def set_training(model: nn.Module, mode: bool) -> None:
    """Set training or evaluation mode, also of models that torch.export made, which have no such methods."""
    try:
        model.train(mode)
    except NotImplementedError:
        for module in model.modules():
            module.training = mode


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; after it, each module has its own mode again: a user may have frozen some."""
    modes = [(module, module.training) for module in model.modules()]
    set_training(model, False)
    try:
        yield
    finally:
        if any(training for _, training in modes):
            set_training(model, True)  # by the model's own method: LoRA takes out of the weights what it has put in
        for module, training in modes:
            module.training = training


def evaluate(
    objective: TorchObjective,
    outputs_of: Callable[[list[torch.Tensor]], Any],
    arrays: tuple[np.ndarray, ...],
    device: str,
) -> Evaluated:
    """Evaluate rows of a source. outputs_of: the module's outputs for inputs on the device."""
    tensors, count = [to_tensor(array, device) for array in objective.eval_rows(arrays)], objective.eval_inputs
    with evaluating(objective.model):
        outputs, targets = outputs_of(tensors[:count]), tuple(tensors[count:])
        losses, metrics = objective.losses(outputs, targets), objective.metrics(outputs, targets)
    by_row = [value.detach()[: len(arrays[0])].double() for value in (losses, *metrics.values())]
    loss, *sums = (float(values.sum()) for values in by_row)
    predicted = objective.predicted(outputs)
    classes = None if predicted is None else predicted[: len(arrays[0])].cpu().numpy()
    return Evaluated(loss, dict(zip(metrics, sums, strict=True)), classes, lambda: by_row[0].cpu().numpy())


OBJECTIVES: dict[str, Callable[[Any, Config, torch.memory_format], TorchObjective]] = {
    "network": TorchNetworkObjective,
    "task": TorchTaskObjective,
}
"""By kind of target; the last argument is the memory format of images."""
