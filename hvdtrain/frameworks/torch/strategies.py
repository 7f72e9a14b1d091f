"""Strategies of the training loop in PyTorch: how the gradients of ranks or devices are combined."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from hvdtrain.collectives.groups import TorchDistributedGroup
from hvdtrain.collectives.horovod import HorovodGroup, gradient_groups
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.frameworks.torch import late_dynamo
from hvdtrain.frameworks.torch.network import (
    TorchNetwork,
    as_real,
    from_real,
    is_plain,
    laid_out_as,
    trained_parameters,
    unlisted_buffers,
)
from hvdtrain.frameworks.torch.optimizer import parameters_of
from hvdtrain.interfaces.strategy import Group, Strategy

SENT_BY_HOROVOD = (torch.float16, torch.float32, torch.float64)
"""Types whose tensors Horovod broadcasts as they are: in messages of so many elements, and not bytes."""


class TorchStrategy(Strategy):
    """What the training loop calls; by default gradients are not combined."""

    takes_optimizer = True
    waits = False
    """Whether `reduce` waits for the gradients of other ranks."""
    needs_all_gradients = False
    """Whether each step must compute a gradient of each parameter, if the model was not wrapped for unused ones."""
    sums_shards = True

    def __init__(self, config: Config, runtime: RuntimeOptions, group: Group, devices: int = 1) -> None:
        super().__init__(config, runtime, group, devices)
        self.unhook: list[Callable[[], None]] = []
        """Removes the hooks at the parameters."""
        if not config.compile:
            late_dynamo.postpone()  # before a learner, or a script, makes an optimizer

    def wrap_model(self, model: nn.Module, device: str, finds_unused: bool = False) -> nn.Module:
        """The module whose forward pass training calls. finds_unused: parameters may get no gradient."""
        return model

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> Any:
        """The optimizer that training uses; also broadcasts parameters and optimizer state from rank 0."""
        return optimizer

    def backward(self) -> contextlib.AbstractContextManager[None]:
        """The context of a backward pass. Raises UserError for a model that the strategy cannot train."""
        return contextlib.nullcontext()

    def reduce(self, optimizer: Any) -> None:
        """Return when the gradients are those of the global batch."""

    def close(self) -> None:
        """Combine no more gradients of the model."""
        for unhook in self.unhook:
            unhook()


class TorchHorovod(TorchStrategy):
    """Horovod's DistributedOptimizer: allreduces groups of gradients as soon as backward made them."""

    requires = ("horovod.torch",)
    conversions = (torch.from_numpy, torch.Tensor.numpy)
    waits = True

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        import horovod.torch as hvd

        self._hvd = hvd
        super().__init__(config, runtime, HorovodGroup(hvd, *self.conversions))
        self._distributed: Any = None
        """Horovod's optimizer."""

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> Any:
        hvd, config = self._hvd, self.config
        _broadcast(hvd, model.state_dict() | unlisted_buffers(model) | _state_tensors(optimizer))
        # Horovod makes its object from the parameters alone, without other attributes of the optimizer. So it makes one
        # that only combines gradients, and the optimizer itself makes the updates.
        parameters = trained_parameters(model)
        sizes = {name: parameter.numel() for name, parameter in parameters.items()}
        groups = gradient_groups(config, sizes, self.group.size)
        self._distributed = hvd.DistributedOptimizer(
            torch.optim.SGD(parameters.values(), lr=0.0),
            named_parameters=model.named_parameters(),
            compression=_Compression(getattr(hvd.Compression, config.compression)),
            backward_passes_per_step=config.accumulate,
            groups=[[parameters[name] for name in names] for names in groups],
        )
        return optimizer

    def reduce(self, optimizer: Any) -> None:
        if self._distributed:
            _send_incomplete_groups(self._distributed)
            self._distributed.synchronize()

    def close(self) -> None:
        super().close()
        if self._distributed:  # its hooks stay at the parameters
            self._distributed.set_backward_passes_per_step(math.inf)


class _Compression:
    """Horovod's compression by --compression, and before it gradients in types and layouts that Horovod has."""

    def __init__(self, compression: Any) -> None:
        self._compression = compression

    def compress(self, gradient: torch.Tensor) -> tuple[torch.Tensor, Any]:
        real = as_real(gradient).contiguous()
        sent, context = self._compression.compress(real.float() if real.dtype is torch.bfloat16 else real)
        return sent, (context, gradient)

    def decompress(self, received: torch.Tensor, context: Any) -> torch.Tensor:
        inner, gradient = context
        return laid_out_as(gradient, from_real(self._compression.decompress(received, inner), gradient.dtype))


def _state_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The tensors in the state of an optimizer, by names that are the same on all ranks."""
    states = (optimizer.state.get(parameter, {}) for parameter in parameters_of(optimizer))
    named = ((f"state.{number}.{key}", value) for number, state in enumerate(states) for key, value in state.items())
    return {name: value for name, value in named if isinstance(value, torch.Tensor)}


def _broadcast(hvd: Any, tensors: dict[str, torch.Tensor]) -> None:
    """Give all ranks rank 0's values, in contiguous memory: Horovod sends bytes where it lacks the type, as bool.

    Of tensors whose elements share memory, to which nothing can be written, each rank keeps its own.
    """
    dense = {name: t.detach().resolve_conj().resolve_neg().contiguous() for name, t in tensors.items() if t.numel()}
    sent = {n: t if t.dtype in SENT_BY_HOROVOD else t.view(-1).view(torch.uint8) for n, t in dense.items()}
    hvd.broadcast_parameters(sent, root_rank=0)
    for name, values in dense.items():
        if values.data_ptr() != tensors[name].data_ptr() and is_plain(tensors[name]):
            tensors[name].copy_(values)


def _send_incomplete_groups(optimizer: Any) -> None:
    """Send the groups for which backward has not made all gradients on this rank, as ranks do where it has.

    Horovod's optimizer would send these gradients one by one, and wait forever for ranks that have sent the group.
    """
    handles = optimizer._handles
    for group in optimizer._group_counts:
        if group not in handles:
            for parameter in group:
                handles.pop(parameter, None)
            handles[group] = optimizer._grouped_allreduce_grad_async(group)


class Wrapper(nn.Module):
    """A module around another one whose methods and attributes it has too, as the models of other strategies."""

    _inner = "module"
    """The name of the other one."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__(self._inner), name)


class Distributed(Wrapper, nn.parallel.DistributedDataParallel):
    """DistributedDataParallel that knows whether it was called."""

    is_called = False
    """Whether gradients of a forward pass are to be combined."""

    def forward(self, *inputs: Any, **options: Any) -> Any:
        self.is_called |= torch.is_grad_enabled()
        return super().forward(*inputs, **options)


class TorchDDP(TorchStrategy):
    """torch.nn.parallel.DistributedDataParallel: allreduces buckets of gradients while backward runs."""

    needs_all_gradients = True
    group: TorchDistributedGroup

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        on_gpu = runtime.device != "cpu" and torch.cuda.is_available()
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        super().__init__(config, runtime, TorchDistributedGroup(torch, backend))
        self._wrapped: Distributed | None = None
        self._last_gradient = 0.0
        """When backward made the latest gradient; `time.perf_counter`."""

    def wrap_model(self, model: nn.Module, device: str, finds_unused: bool = False) -> nn.Module:
        for parameter in model.parameters():
            if _is_also_channels_last(parameter, isinstance(model, TorchNetwork)):
                # DDP compares strides with those of the gradient, which PyTorch makes from images in channels_last.
                parameter.data = torch.empty_like(parameter, memory_format=torch.channels_last).copy_(parameter)
        self._watch_gradients(model, device)
        with warnings.catch_warnings():
            # Buffers: an evaluation gives rank 0's to all ranks when they are needed. PyTorch's new option
            # instead of this one would also give them at the start.
            warnings.filterwarnings("ignore", ".*broadcast_buffers", FutureWarning)
            self._wrapped = Distributed(
                model, broadcast_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=finds_unused
            )
        self.unhook.append(self._wrapped._remove_autograd_hooks)
        return self._wrapped

    def _watch_gradients(self, model: nn.Module, device: str) -> None:
        """Note the time of each gradient: backward, which also combines them, ends later by what that takes alone."""
        if device != "cpu":  # where backward returns before the device has computed the gradients
            self.group.cannot_time_gradients()
            return

        def note_time(_: torch.Tensor) -> None:
            self._last_gradient = time.perf_counter()

        for parameter in model.parameters():
            if parameter.requires_grad:
                self.unhook.append(parameter.register_post_accumulate_grad_hook(note_time).remove)

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if "marked as ready twice" not in str(error):
                raise
            # Where the model is freed, it waits for a thread of Gloo that ends an allreduce and needs the interpreter
            # that the model then has: both would wait for ever. Now it is free.
            time.sleep(0.1)
            raise UserError(
                "DistributedDataParallel got the gradient of a parameter twice, as with reentrant checkpoints where it "
                "also looks for unused parameters",
                "use checkpoint(..., use_reentrant=False), or --strategy horovod",
                option="strategy",
            ) from error

    def reduce(self, optimizer: Any) -> None:
        if self._wrapped and not self._wrapped.is_called:  # else ranks would drift apart without a word
            raise UserError(
                "the losses were not computed by the model that setup() returned, so no gradients were combined",
                "call that model, not its methods or its module; or use --strategy horovod",
            )
        if self._wrapped:
            self._wrapped.is_called = False
        if self.group.size > 1:
            self.group.communicating.add(time.perf_counter() - self._last_gradient)


def _is_also_channels_last(parameter: nn.Parameter, has_such_images: bool) -> bool:
    """Whether a convolution's kernel lies in memory as in channels_last, although its strides are others.

    has_such_images: whether the network's images are in channels_last, which then decides the strides for 1x1 kernels.
    """
    one_pixel = has_such_images and parameter.shape[2:] == (1, 1)
    return parameter.dim() == 4 and (parameter.shape[1] == 1 or one_pixel)
