"""LeNet in PyTorch."""

from __future__ import annotations

import copy
import functools
import sys
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import nn

from hvdtrain.collectives import groups, ring
from hvdtrain.config.options import Config
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.frameworks.registry import choose_device, count_devices
from hvdtrain.interfaces import Group, OptimizerState
from hvdtrain.networks.description import Conv, Dense, Flatten, Layer, Network, Pool, Relu, Weights

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def module(network: Network) -> nn.Sequential:
    """The network, with state_dict() in canonical names."""
    return nn.Sequential(
        OrderedDict(
            (layer.name if isinstance(layer, Conv | Dense) else f"layer{i}", _layer(layer))
            for i, layer in enumerate(network.layers)
        )
    )


def _layer(layer: Layer) -> nn.Module:
    match layer:
        case Conv():
            return nn.Conv2d(layer.inputs, layer.outputs, layer.kernel)
        case Dense():
            return nn.Linear(layer.inputs, layer.outputs)
        case Pool(kind="average"):
            return AveragePool(layer.size)
        case Pool():
            return nn.MaxPool2d(layer.size)
        case Relu():
            return nn.ReLU()
        case Flatten():
            return nn.Flatten()


class AveragePool(nn.AvgPool2d):
    """PyTorch's own, but on a CPU the gradient is copied to the pixels: the same bits, and 6 % less for a bf16 step."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.device.type != "cpu":
            return super().forward(images)
        return CopiedGradient.apply(images, self.kernel_size)


class CopiedGradient(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, images: torch.Tensor, size: int) -> torch.Tensor:
        context.size = size
        context.save_for_backward(images)
        return nn.functional.avg_pool2d(images, size)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (images,), (gradient,), size = context.saved_tensors, gradients, context.size
        height, width = gradient.shape[2:]
        covered = images.shape[2:] == (height * size, width * size)
        result = torch.empty_like(images) if covered else torch.zeros_like(images)
        pixels = result[:, :, : height * size, : width * size]
        windows = pixels.unflatten(3, (width, size)).unflatten(2, (height, size))
        windows.copy_((gradient / size**2)[:, :, :, None, :, None])
        return result, None


class Single:
    """One process: gradients meet nobody."""

    needs: tuple[str, ...] = ()
    lacks: tuple[tuple[str, Any, str], ...] = ()
    many_devices = False
    devices = 1

    def __init__(self, config: Config, runtime: RuntimeOptions, group: Group | None = None) -> None:
        self.config = config
        self.group = group or groups.single_process(config.strategy)

    def wrap_model(self, model: nn.Module, device: str) -> nn.Module:
        """What training calls forward of."""
        return model

    def wrap(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> Any:
        """The optimizer that training uses; parameters and state are rank 0's after that."""
        return optimizer

    def reduce(self, optimizer: Any) -> None:
        """Wait until the gradients are those of all ranks."""

    def update(self, optimizer: Any, scaler: torch.amp.GradScaler) -> None:
        scaler.step(optimizer)


class Horovod(Single):
    """Horovod's DistributedOptimizer: each gradient's allreduce starts as soon as backward has made it."""

    needs = ("horovod.torch",)

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        import horovod.torch as hvd

        self._hvd, self.config = hvd, config
        self.group = groups.HorovodGroup(hvd, torch.from_numpy, lambda tensor: tensor.numpy())
        if config.op == "adasum":
            groups.check_adasum(hvd)

    def wrap(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> Any:
        hvd, config = self._hvd, self.config
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        if optimizer.state:  # of an empty state, Horovod would make one by a step that decays the weights
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        distributed = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=getattr(hvd.Compression, config.compression),
            backward_passes_per_step=config.accumulate,
            op=getattr(hvd, config.op.capitalize()),
        )
        distributed.state.update(optimizer.state)  # Horovod's copy starts with an empty one
        return distributed

    def reduce(self, optimizer: Any) -> None:
        optimizer.synchronize()

    def update(self, optimizer: Any, scaler: torch.amp.GradScaler) -> None:
        if self.config.op == "adasum":  # joins updates, not gradients: nothing was reduced before
            optimizer.step()
            return
        with optimizer.skip_synchronize():
            scaler.step(optimizer)


class Ddp(Single):
    """torch.nn.parallel.DistributedDataParallel: gradients meet in buckets while backward still runs."""

    lacks = (("accumulate", 1, "DistributedDataParallel joins gradients in each backward pass"),)

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        on_gpu = runtime.device != "cpu" and torch.cuda.is_available()
        self.group = groups.TorchDistributedGroup(torch.distributed, "cpu:gloo,cuda:nccl" if on_gpu else "gloo")

    def wrap_model(self, model: nn.Module, device: str) -> nn.Module:
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)


class Replicas(nn.Module):
    """DataParallel's four steps over parts of the CPU, where torch.nn.DataParallel itself takes GPUs only.

    As there, the replicas' forward passes run in threads of their own; PyTorch runs backward on the CPU in one.
    """

    def __init__(self, model: nn.Module, devices: int) -> None:
        super().__init__()
        self.model = model
        self._bodies = [copy.deepcopy(model) for _ in range(devices)]
        self._threads = ThreadPoolExecutor(devices)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scattered = images.tensor_split(len(self._bodies))
        # A clone's gradient is added to that of the parameter it was made of, as DataParallel's broadcast does it.
        replicas = [{name: p.clone() for name, p in self.model.named_parameters()} for _ in scattered]
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        applied = self._threads.map(functools.partial(self._apply, dtype), self._bodies, replicas, scattered)
        return torch.cat(list(applied))

    @staticmethod
    def _apply(
        dtype: torch.dtype | None, body: nn.Module, parameters: dict[str, torch.Tensor], part: torch.Tensor
    ) -> torch.Tensor:
        with torch.autocast("cpu", dtype, enabled=dtype is not None):  # a thread does not inherit it
            return torch.func.functional_call(body, parameters, part)


class DataParallel(Single):
    """torch.nn.DataParallel: one process scatters a batch over its GPUs; without GPUs, over parts of the CPU."""

    many_devices = True

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        self.group, self._quiet = groups.single_process(config.strategy), runtime.quiet
        self.devices = count_devices(runtime.devices, torch.cuda.device_count() if runtime.device != "cpu" else 0)

    def wrap_model(self, model: nn.Module, device: str) -> nn.Module:
        if device == "cpu":
            if not self._quiet:
                print(
                    "torch.nn.DataParallel takes GPUs only: the same scatter, replicate, apply and gather run over "
                    f"{self.devices} parts of the CPU, and backward in one thread",
                    file=sys.stderr,
                )
            return Replicas(model, self.devices)
        return nn.DataParallel(model, list(range(self.devices)))


class Ring(Single):
    """Our own ring allreduce over TCP, all gradients in one message."""

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        self.group: Any = ring.start()

    def wrap(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> Any:
        own = {name: value.cpu().numpy() for name, value in model.state_dict().items()}
        for name, value in self.group.broadcast(own).items():
            model.state_dict()[name].copy_(torch.from_numpy(value))
        return optimizer

    def reduce(self, optimizer: Any) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        flat = torch.cat([gradient.flatten() for gradient in gradients]).cpu()
        self.group.allreduce(flat.numpy())
        parts = flat.div_(self.group.size).split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


class MPI(Ring):
    """MPI.Allreduce on one buffer of all gradients, by mpi4py."""

    needs = ("mpi4py.MPI",)

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        self.group = groups.MPIGroup()


STRATEGIES = {
    "single": Single,
    "horovod": Horovod,
    "ddp": Ddp,
    "dataparallel": DataParallel,
    "ring": Ring,
    "mpi": MPI,
}


def build(
    config: Config, network: Network, weights: Weights, strategy: Single, runtime: RuntimeOptions
) -> TorchLearner:
    """The learner of `config`, at its first weights."""
    return TorchLearner(config, network, weights, strategy, runtime.device)


class TorchLearner:
    """A PyTorch network whose activations lie channels_last, trained by one strategy."""

    def __init__(self, config: Config, network: Network, weights: Weights, strategy: Single, device: str) -> None:
        self.group = strategy.group
        self.device = choose_device(device, torch.cuda.is_available(), torch.cuda.device_count(), self.group)
        self.devices = strategy.devices
        self.skipped = 0
        self._config, self._strategy = config, strategy
        self._kind = self.device.split(":")[0]
        self._model = module(network)
        self.load(weights)
        self._model.to(self.device)
        self._parameters = dict(self._model.named_parameters())
        self._scaler = torch.amp.GradScaler(self._kind, enabled=config.precision == "fp16")
        self._optimizer = strategy.wrap(optimizer(config, list(self._parameters.values())), self._model)
        self._training = strategy.wrap_model(self._model, self.device)

    def _forward(self, model: nn.Module, images: np.ndarray) -> torch.Tensor:
        pixels = torch.from_numpy(images).to(self.device, non_blocking=True)
        # Only activations are channels_last: Horovod takes no gradient that is not contiguous. empty() and copy,
        # for contiguous(memory_format=...) leaves a tensor of one channel as it is.
        x = torch.empty(images.shape, device=self.device, memory_format=torch.channels_last).copy_(pixels)
        x = x.div_(255) if pixels.dtype == torch.uint8 else x
        dtype = DTYPES[self._config.precision]
        with torch.autocast(self._kind, dtype, enabled=dtype is not torch.float32):
            return model(x).float()

    def train_step(self, images: np.ndarray, labels: np.ndarray, weights: np.ndarray, lr: float) -> torch.Tensor:
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.zero_grad()
        parts = zip(
            *(np.array_split(rows, self._config.accumulate) for rows in (images, labels, weights)),
            strict=True,
        )
        loss = sum(self._backward(*part) for part in parts)
        self._strategy.reduce(self._optimizer)
        self._scaler.unscale_(self._optimizer)
        if self._clip_or_skip():
            self._strategy.update(self._optimizer, self._scaler)
        self._rescale()
        return loss

    def _backward(self, images: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> torch.Tensor:
        target = torch.from_numpy(labels).to(self.device, non_blocking=True)
        losses = nn.functional.cross_entropy(self._forward(self._training, images), target, reduction="none")
        loss = losses @ torch.from_numpy(weights).to(self.device, non_blocking=True)
        self._scaler.scale(loss).backward()
        return loss.detach()

    def _clip_or_skip(self) -> bool:
        """Clip the joined gradients; False where they are not finite and the step is to be skipped.

        Joined gradients are equal on all ranks, so all of them skip or none does.
        """
        skip = self._config.on_nan == "skip"
        if not (skip or self._config.clip_norm):
            return True
        limit = self._config.clip_norm or float("inf")
        norm = nn.utils.clip_grad_norm_(self._parameters.values(), limit)
        finite = not skip or bool(norm.isfinite())
        self.skipped += not finite
        return finite

    def _rescale(self) -> None:
        """Lower fp16's loss scale where gradients overflowed (the scaler skipped that update), else raise it."""
        if not self._scaler.is_enabled():
            return
        before = self._scaler.get_scale()
        self._scaler.update()
        self.skipped += self._scaler.get_scale() < before

    @torch.no_grad()
    def logits(self, images: np.ndarray) -> np.ndarray:
        return self._forward(self._model, images).cpu().numpy()

    @torch.no_grad()
    def eval_step(self, images: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        logits = self._forward(self._model, images)
        target = torch.from_numpy(labels).to(self.device)
        loss = nn.functional.cross_entropy(logits, target, reduction="sum")
        return float(loss), logits.argmax(1).cpu().numpy()

    def weights(self) -> Weights:
        return {name: value.detach().cpu().numpy().copy() for name, value in self._model.named_parameters()}

    def load(self, weights: Weights) -> None:
        state = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in weights.items()}
        try:
            self._model.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(str(error)) from None

    def optimizer_state(self) -> OptimizerState:
        arrays, updates = {}, 0
        for name, parameter in self._parameters.items():
            for key, value in self._optimizer.state[parameter].items():
                if key == "step":
                    updates = int(value)
                else:
                    arrays[f"{CANONICAL[key]}/{name}"] = value.cpu().numpy().copy()
        return OptimizerState(arrays, updates=updates, extra={"loss_scale": self._scaler.state_dict()})

    def load_optimizer_state(self, state: OptimizerState) -> None:
        for name, parameter in self._parameters.items():
            for key, value in self._optimizer.state[parameter].items():
                if key == "step":
                    value.fill_(state.updates)
                else:
                    value.copy_(torch.from_numpy(state.arrays[f"{CANONICAL[key]}/{name}"] / np.float32(state.scale)))
        if state.extra.get("loss_scale"):
            self._scaler.load_state_dict(state.extra["loss_scale"])


# PyTorch's names of an optimizer's memory: ours
CANONICAL = {"momentum_buffer": "momentum", "exp_avg": "mean", "exp_avg_sq": "square"}


def optimizer(config: Config, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """PyTorch's optimizer with a state of zeros from the start, so that it can be broadcast and restored."""
    if config.optimizer == "adam":
        made: torch.optim.Optimizer = torch.optim.Adam(parameters, config.lr, weight_decay=config.weight_decay)
        for parameter in parameters:
            made.state[parameter] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        return made
    made = torch.optim.SGD(
        parameters, config.lr, config.momentum, weight_decay=config.weight_decay, nesterov=config.nesterov
    )
    for parameter in parameters if config.momentum else ():
        made.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
    return made
