"""The step of training as a CUDA graph (`--cuda-graph`): one launch instead of one for each operation.

A graph repeats operations on the same memory. So all that differs between steps is in tensors that exist as long as the
graph: each step first copies its weights, rows and learning rate there. Parameters, optimizer state and running
statistics are read and written in place, also where a checkpoint is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn

from hvdtrain.errors import UserError
from hvdtrain.frameworks.torch.objective import StepInputs
from hvdtrain.frameworks.torch.strategies import TorchStrategy

WARM_UP = 3
"""Steps with the same number of rows that run operation by operation before they are captured: libraries choose their
kernels and reserve memory in the first ones."""
MAX_GRAPHS = 4
"""Numbers of rows per step that get a graph; others, of which a run has few steps, run operation by operation."""

SLOTS = 4
"""Buffers on the host: the host may be this number of steps ahead of the device."""
ALIGNMENT = 256
"""Bytes; what vectorized kernels need at most."""

Result = TypeVar("Result")


class Captured(NamedTuple):
    """A graph, and what the captured function returned: tensors that each replay writes anew."""

    replay: Callable[[], None]
    result: Any


class CudaCapture:
    """How operations become a CUDA graph of one device: on a stream of its own, as PyTorch requires it."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._stream = torch.cuda.Stream(self._device)

    def warm_up(self, function: Callable[[], Result]) -> Result:
        """Run the function as it will be captured."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = function()
        current.wait_stream(self._stream)
        return result

    def capture(self, function: Callable[[], Any]) -> Captured:
        """Record the operations of the function, without their effects. Raises RuntimeError for what cannot be."""
        graph = torch.cuda.CUDAGraph()
        # thread_local: the threads of Horovod and NCCL may call CUDA meanwhile.
        with (
            torch.cuda.device(self._device),
            torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"),
        ):
            result = function()
        return Captured(graph.replay, result)


CAPTURES: dict[str, type[CudaCapture]] = {"cuda": CudaCapture}
"""By type of device."""


class StaticCopies:
    """Arrays of fixed shapes and types on a device, all written by one copy from page-locked memory.

    arrays: examples of them.
    """

    def __init__(self, arrays: tuple[np.ndarray, ...], device: str) -> None:
        self._is_cuda = torch.device(device).type == "cuda"
        ends = np.cumsum([-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays]).tolist()
        places = list(zip(arrays, [0, *ends[:-1]], strict=True))
        self._device_bytes = torch.zeros(ends[-1], dtype=torch.uint8, device=device)
        self.tensors = [_view(self._device_bytes, array, first) for array, first in places]
        """The arrays on the device."""
        self._slots = [torch.zeros(ends[-1], dtype=torch.uint8, pin_memory=self._is_cuda) for _ in range(SLOTS)]
        self._parts = [[_view(slot, array, first).numpy() for array, first in places] for slot in self._slots]
        self._copied = [torch.cuda.Event() for _ in range(SLOTS)] if self._is_cuda else []
        self._next = 0

    def copy(self, arrays: tuple[np.ndarray, ...]) -> None:
        """Copy these arrays to the device, after all that its current stream has to do so far."""
        slot, self._next = self._next, (self._next + 1) % SLOTS
        if self._is_cuda:
            self._copied[slot].synchronize()  # the copy from this slot, SLOTS steps ago
        for part, array in zip(self._parts[slot], arrays, strict=True):
            part[...] = array
        self._device_bytes.copy_(self._slots[slot], non_blocking=True)
        if self._is_cuda:
            self._copied[slot].record(torch.cuda.current_stream(self._device_bytes.device))


def _view(buffer: torch.Tensor, array: np.ndarray, first: int) -> torch.Tensor:
    """A tensor like the array in this memory, from byte `first` on."""
    dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    return buffer[first : first + array.nbytes].view(dtype).view(array.shape)


class _Shape:
    """Steps of one number of rows: where their arrays lie on the device, and their graph."""

    def __init__(self, arrays: tuple[np.ndarray, ...], device: str) -> None:
        self.inputs = StaticCopies(arrays, device)
        self.steps = 0
        self.graph: Captured | None = None


class StepGraphs:
    """Calls a function of tensors on a device, by graphs of it: one for each combination of shapes.

    function: called with the same tensors for the same shapes. device: its type must be in CAPTURES.
    """

    def __init__(self, function: Callable[[list[torch.Tensor]], Any], device: str) -> None:
        self._function, self._device = function, device
        self._capture = CAPTURES[torch.device(device).type](device)
        self._shapes: dict[tuple[Any, ...], _Shape] = {}

    def __call__(self, arrays: tuple[np.ndarray, ...]) -> Any:
        """What the function returns for these arrays; a graph's own tensors, which the next call writes anew.

        Raises UserError if the function cannot be captured.
        """
        key = tuple((array.shape, array.dtype) for array in arrays)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = _Shape(arrays, self._device)
        shape.inputs.copy(arrays)
        if shape.graph is None:
            shape.steps += 1
            if shape.steps <= WARM_UP or self._graphs >= MAX_GRAPHS:
                return self._capture.warm_up(lambda: self._function(shape.inputs.tensors))
            shape.graph = self._captured(shape)
        shape.graph.replay()
        return shape.graph.result

    @property
    def _graphs(self) -> int:
        return sum(shape.graph is not None for shape in self._shapes.values())

    def _captured(self, shape: _Shape) -> Captured:
        try:
            return self._capture.capture(lambda: self._function(shape.inputs.tensors))
        except (RuntimeError, UserError) as error:  # the latter is what an error in a task's method becomes
            text = error.reason if isinstance(error, UserError) else str(error)
            reason = (text.strip().splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"--cuda-graph: the step cannot be captured ({reason})",
                "leave it out; the forward pass and losses of a task must not wait for the device, as .item() does",
            ) from error


class GraphedStep:
    """The steps of a learner by graphs: of forward, backward and update, or of what the strategy and options allow.

    losses: from inputs and targets on the device to the loss of each row. finish: combines the gradients and updates
    the parameters; called where that is not in the graph. sets_lr: whether the optimizer gets each step's learning
    rate; one that a task brings has its own, and its update may do what no graph can.
    """

    def __init__(
        self,
        strategy: TorchStrategy,
        device: str,
        parameters: list[nn.Parameter],
        optimizer: Any,
        scaler: torch.amp.GradScaler,
        inputs: StepInputs,
        losses: Callable[[list[torch.Tensor]], torch.Tensor],
        finish: Callable[[], None],
        sets_lr: bool = True,
    ) -> None:
        config = strategy.config
        self._parameters, self._optimizer, self._scaler, self._inputs = parameters, optimizer, scaler, inputs
        self._losses, self._finish, self._clip_norm, self._sets_lr = losses, finish, config.clip_norm, sets_lr
        # The host decides by the gradients whether there is an update with loss scaling and --on-nan skip.
        is_host_free = config.precision != "fp16" and config.on_nan == "stop"
        self.whole = strategy.captures == "step" and is_host_free and sets_lr
        """Whether the update is in the graph."""
        self._graphs = StepGraphs(self._step if self.whole else self._gradients, device)
        if self.whole:
            self._lr = torch.zeros((), device=device)
            for group in optimizer.param_groups:
                group["lr"] = self._lr
                if "capturable" in group:
                    group["capturable"] = True
            optimizer._warned_capturable_if_run_uncaptured = True  # the first steps are not captured

    def train_step(self, arrays: tuple[np.ndarray, ...], lr: float) -> torch.Tensor:
        """One step; returns its loss. arrays: of `StepInputs.host_arrays`."""
        if self.whole:
            return self._graphs((*arrays, np.array(lr, np.float32))).clone()
        for group in self._optimizer.param_groups if self._sets_lr else ():
            group["lr"] = lr
        loss, gradients = self._graphs(arrays)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient.detach()  # Horovod may give what it returns other memory
        loss = loss.clone()
        self._finish()
        return loss

    def _step(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        *copied, lr = tensors
        self._lr.copy_(lr)
        loss, gradients = self._gradients(copied)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        if self._clip_norm:
            nn.utils.clip_grad_norm_(self._parameters, self._clip_norm)
        self._optimizer.step()
        return loss

    def _gradients(self, copied: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The loss, and the gradients of the parameters. No hook on a parameter is called, as those of Horovod."""
        sums: list[torch.Tensor] = []
        losses = []
        for weights, *rows in self._inputs.parts(self._inputs.on_device(copied)):
            loss = self._losses(rows) @ weights
            gradients = torch.autograd.grad(self._scaler.scale(loss), self._parameters, allow_unused=True)
            if sums:
                pairs = [pair for pair in zip(sums, gradients, strict=True) if pair[1] is not None]
                torch._foreach_add_(*map(list, zip(*pairs, strict=True)))
            else:
                sums = _like_backward(self._parameters, gradients)
            losses.append(loss.detach())
        return sum(losses[1:], losses[0]), sums


def _like_backward(parameters: list[nn.Parameter], computed: tuple[torch.Tensor | None, ...]) -> list[torch.Tensor]:
    """Gradients as backward() leaves them: zeros where there is none, the parameter's strides, memory of its own."""
    taken: set[int] = set()
    gradients = []
    for parameter, gradient in zip(parameters, computed, strict=True):
        if gradient is None:
            gradient = torch.zeros_like(parameter)
        elif gradient.stride() != parameter.stride() or gradient.untyped_storage().data_ptr() in taken:
            gradient = torch.empty_like(parameter).copy_(gradient)
        taken.add(gradient.untyped_storage().data_ptr())
        gradients.append(gradient)
    return gradients
