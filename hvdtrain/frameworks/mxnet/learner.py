"""LeNet in MXNet (Gluon)."""

from __future__ import annotations

import contextlib
import io
import itertools
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.contrib import amp
from mxnet.gluon import nn

from hvdtrain.collectives import groups, ring
from hvdtrain.config.options import Config
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.frameworks.mxnet import servers
from hvdtrain.frameworks.registry import choose_device, count_devices
from hvdtrain.interfaces import Group, OptimizerState
from hvdtrain.networks.description import Conv, Dense, Flatten, Layer, Network, Pool, Relu, Weights

ADAM_EPSILON = 1e-8


def block(network: Network) -> nn.HybridSequential:
    """The network; all shapes are given, so its parameters exist before the first batch."""
    chain = nn.HybridSequential(prefix="")
    chain.add(*(_layer(layer) for layer in network.layers))
    return chain


def _layer(layer: Layer) -> nn.HybridBlock:
    match layer:
        case Conv():
            return nn.Conv2D(layer.outputs, layer.kernel, in_channels=layer.inputs, prefix=f"{layer.name}_")
        case Dense():
            return nn.Dense(layer.outputs, in_units=layer.inputs, flatten=False, prefix=f"{layer.name}_")
        case Pool(kind="average"):
            return nn.AvgPool2D(layer.size)
        case Pool():
            return nn.MaxPool2D(layer.size)
        case Relu():
            return nn.Activation("relu")
        case Flatten():
            return nn.Flatten()


class WeightedLoss(nn.HybridBlock):
    """Network and loss in one graph: sum(weights * cross entropy)."""

    def __init__(self, chain: nn.HybridSequential) -> None:
        super().__init__()
        self.chain = chain
        self.loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def hybrid_forward(self, F: Any, images: Any, labels: Any, weights: Any) -> Any:
        return F.sum(self.loss(self.chain(images), labels) * weights)


class Single:
    """One process: gradients meet nobody."""

    needs: tuple[str, ...] = ()
    lacks: tuple[tuple[str, Any, str], ...] = ()
    many_devices = False
    devices = 1
    sum_of: float = 1
    """How many times the average over ranks the trainer's joined gradient is."""

    def __init__(self, config: Config, runtime: RuntimeOptions, group: Group | None = None) -> None:
        self.group: Any = group or groups.single_process(config.strategy)

    def trainer(self, parameters: dict[str, gluon.Parameter], optimizer: mx.optimizer.Optimizer) -> gluon.Trainer:
        """What joins gradients and updates; parameters are rank 0's after that."""
        return gluon.Trainer(parameters, optimizer, kvstore=None)


class Horovod(Single):
    """Horovod's DistributedTrainer: each gradient is queued for its allreduce as the engine finishes it."""

    needs = ("horovod.mxnet",)

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        import horovod.mxnet as hvd

        self._hvd, self._compression = hvd, getattr(hvd.Compression, config.compression)
        self.group = groups.HorovodGroup(
            hvd, lambda values: mx.nd.array(values, dtype="float64"), mx.nd.NDArray.asnumpy
        )
        # The trainer averages, and divides by the batch size that it is told: by less for a sum.
        self.sum_of = 1 / self.group.size if config.op == "sum" else 1

    def trainer(self, parameters: dict[str, gluon.Parameter], optimizer: mx.optimizer.Optimizer) -> gluon.Trainer:
        self._hvd.broadcast_parameters(parameters, root_rank=0)
        return self._hvd.DistributedTrainer(parameters, optimizer, compression=self._compression)


class KVStore(Single):
    """MXNet's KVStore: over this process's devices (--kvstore device, local), or over ranks (dist_*)."""

    many_devices = True

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        self._store = config.kvstore
        if config.kvstore.startswith("dist"):
            self.group = ring.start()
            self.devices, self.sum_of = runtime.devices or 1, self.group.size
            servers.start(self.group)
        else:
            self.group = groups.single_process(config.strategy)
            self.devices = count_devices(runtime.devices, mx.context.num_gpus() if runtime.device != "cpu" else 0)

    def trainer(self, parameters: dict[str, gluon.Parameter], optimizer: mx.optimizer.Optimizer) -> gluon.Trainer:
        made = gluon.Trainer(parameters, optimizer, kvstore=self._store, update_on_kvstore=False)
        # The trainer pulls rank 0's weights from the servers in its first step, and the engine may send the first
        # gradients before that: a slow rank then pulled gradients as its weights. So all ranks pull first.
        made._init_kvstore()
        made._init_params()
        mx.nd.waitall()
        self.group.sum(np.zeros(1))
        return made


class RingTrainer(gluon.Trainer):
    """Joins all gradients as one array, by `group.allreduce`."""

    def __init__(self, parameters: dict[str, gluon.Parameter], optimizer: mx.optimizer.Optimizer, group: Any) -> None:
        super().__init__(parameters, optimizer, kvstore=None)
        self._group = group

    def _allreduce_grads(self) -> None:
        gradients = [parameter.grad() for parameter in self._params]
        flat = np.concatenate([gradient.asnumpy().ravel() for gradient in gradients])
        self._group.allreduce(flat)
        flat /= self._group.size
        parts = np.split(flat, np.cumsum([gradient.size for gradient in gradients])[:-1])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient[:] = part.reshape(gradient.shape)


class Ring(Single):
    """Our own ring allreduce over TCP, all gradients in one message."""

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        self.group = ring.start()

    def trainer(self, parameters: dict[str, gluon.Parameter], optimizer: mx.optimizer.Optimizer) -> gluon.Trainer:
        own = {name: parameter.data().asnumpy() for name, parameter in parameters.items()}
        for name, value in self.group.broadcast(own).items():
            parameters[name].set_data(mx.nd.array(value))
        return RingTrainer(parameters, optimizer, self.group)


class MPI(Ring):
    """MPI.Allreduce on one buffer of all gradients, by mpi4py."""

    needs = ("mpi4py.MPI",)

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        self.group = groups.MPIGroup()


STRATEGIES = {"single": Single, "horovod": Horovod, "kvstore": KVStore, "ring": Ring, "mpi": MPI}


def build(
    config: Config, network: Network, weights: Weights, strategy: Single, runtime: RuntimeOptions
) -> MXNetLearner:
    """The learner of `config`, at its first weights."""
    if config.precision == "bf16":
        with contextlib.redirect_stdout(io.StringIO()):
            amp.init(target_dtype="bfloat16")  # for all graphs of this process, so before the first is made
    return MXNetLearner(config, network, weights, strategy, runtime.device)


def contexts(device: str, devices: int, group: Group) -> list[mx.Context]:
    """The contexts of this process: its GPU, several, or parts of the CPU. See `choose_device` for what it raises."""
    gpus = mx.context.num_gpus()
    if choose_device(device, gpus > 0, gpus, group) == "cpu":
        return [mx.cpu(i) for i in range(devices)]
    return [mx.gpu(i) for i in range(devices)] if devices > 1 else [mx.gpu(group.local_rank)]


class LazyLoss:
    """The sum of all devices' losses, which the engine may still be computing; MXNet's arrays have no float()."""

    def __init__(self, values: list[mx.nd.NDArray]) -> None:
        self._values = values

    def __float__(self) -> float:
        return sum(float(value.asscalar()) for value in self._values)


class MXNetLearner:
    """A hybridized Gluon network, trained by one strategy."""

    def __init__(self, config: Config, network: Network, weights: Weights, strategy: Single, device: str) -> None:
        self.group = strategy.group
        self._contexts = contexts(device, strategy.devices, self.group)
        self.device, self.devices = str(self._contexts[0]).partition("(")[0], len(self._contexts)
        self.skipped = 0
        self._config = config
        self._network = block(network)
        self._network.initialize(ctx=self._contexts)
        # Canonical name: Gluon's parameter. Gluon's own layout is the canonical one.
        self._parameters = {
            name.replace("_", "."): parameter for name, parameter in self._network.collect_params().items()
        }
        self.load(weights)
        self._loss = WeightedLoss(self._network)
        self._loss.hybridize(static_alloc=True, static_shape=True)
        self._network.hybridize()
        self._optimizer = optimizer(config)
        self._trainer = strategy.trainer(self._parameters, self._optimizer)
        self._states = self._make_states()
        self._lr = config.lr
        self._sum_of = strategy.sum_of

    def _make_states(self) -> list[dict[str, tuple[mx.nd.NDArray, ...]]]:
        """The optimizer's memory on each device, made at once: momentum, or Adam's mean and square; else nothing."""
        made = []
        for updater, context in zip(self._trainer._updaters, self._contexts, strict=True):
            states = {}
            for index, parameter in enumerate(self._trainer._params):
                state = self._optimizer.create_state_multi_precision(index, parameter.data(context))
                updater.states[index], updater.states_synced[index] = state, True
                kept = () if state is None else state
                states[parameter.name.replace("_", ".")] = kept if isinstance(kept, tuple) else (kept,)
            made.append(states)
        return made

    def _array(self, values: np.ndarray, context: mx.Context) -> mx.nd.NDArray:
        """On the device. A copy: MXNet's arrays around NumPy's memory are freed from its own threads."""
        return mx.nd.array(values, ctx=context, dtype=values.dtype)

    def _classes(self, labels: np.ndarray, context: mx.Context) -> mx.nd.NDArray:
        """Labels as float32, MXNet's custom: its bf16 mode does not take integers."""
        return self._array(labels.astype(np.float32), context)

    def _pixels(self, images: np.ndarray, context: mx.Context) -> mx.nd.NDArray:
        # In NumPy: ten times faster than MXNet's cast and division on the CPU.
        return self._array(np.divide(images, 255, dtype=np.float32) if images.dtype == np.uint8 else images, context)

    def train_step(self, images: np.ndarray, labels: np.ndarray, weights: np.ndarray, lr: float) -> LazyLoss:
        self._set_lr(lr)
        parts = zip(*(np.array_split(rows, self.devices) for rows in (images, labels, weights)), strict=True)
        with autograd.record():
            losses = [self._device_loss(part, context) for part, context in zip(parts, self._contexts, strict=True)]
        autograd.backward(losses)
        if self._config.clip_norm or self._config.on_nan == "skip":
            self._trainer.allreduce_grads()
            if self._clip_or_skip():
                self._trainer.update(self._sum_of)
        else:
            self._trainer.step(self._sum_of)
        return LazyLoss(losses)

    def _device_loss(self, rows: tuple[np.ndarray, ...], context: mx.Context) -> mx.nd.NDArray:
        images, labels, weights = rows
        return self._loss(self._pixels(images, context), self._classes(labels, context), self._array(weights, context))

    def _set_lr(self, lr: float) -> None:
        """MXNet keeps momentum times the learning rate: where that changes, so must what is kept."""
        if lr != self._lr:
            for states in self._states if self._config.optimizer == "sgd" else ():
                for array in itertools.chain(*states.values()):
                    array *= lr / self._lr
            self._lr = lr
        self._optimizer.set_learning_rate(lr)
        if self._config.optimizer == "adam":  # MXNet adds the other "epsilon hat" of Kingma and Ba (2015, section 2)
            self._optimizer.epsilon = ADAM_EPSILON * (1 - self._optimizer.beta2 ** (self._updates + 1)) ** 0.5

    @property
    def _updates(self) -> int:
        """Number of updates made."""
        return max(self._optimizer._index_update_count.values(), default=0)

    def _clip_or_skip(self) -> bool:
        """Clip the joined gradients; False where they are not finite and the step is to be skipped.

        Joined gradients are equal on all ranks, so all of them skip or none does. They are scaled to the average
        only by the update, so the norm is scaled here.
        """
        gradients = [parameter.grad(self._contexts[0]) for parameter in self._parameters.values()]
        scale = self._trainer._scale / self._sum_of
        squares = sum((gradient.astype("float64") ** 2).sum() for gradient in gradients)
        norm = scale * float(np.sqrt(squares.asscalar()))
        if not np.isfinite(norm) and self._config.on_nan == "skip":
            self.skipped += 1
            return False
        if self._config.clip_norm and norm > self._config.clip_norm:
            for parameter in self._parameters.values():
                for gradient in parameter.list_grad():
                    gradient *= self._config.clip_norm / (norm + 1e-6)  # 1e-6 as PyTorch's clip_grad_norm_
        return True

    def logits(self, images: np.ndarray) -> np.ndarray:
        return self._network(self._pixels(images, self._contexts[0])).asnumpy()

    def eval_step(self, images: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        logits = self._network(self._pixels(images, self._contexts[0]))
        picked = mx.nd.pick(mx.nd.log_softmax(logits), self._classes(labels, self._contexts[0]))
        return -float(picked.sum().asscalar()), logits.argmax(axis=1).asnumpy().astype(np.int64)

    def weights(self) -> Weights:
        return {name: parameter.data(self._contexts[0]).asnumpy() for name, parameter in self._parameters.items()}

    def load(self, weights: Weights) -> None:
        if set(weights) != set(self._parameters):
            raise KeyError(f"parameters {sorted(weights)} are not {sorted(self._parameters)}")
        for name, parameter in self._parameters.items():
            if weights[name].shape != parameter.shape:
                raise ValueError(f"{name} has shape {weights[name].shape}, and {parameter.shape} is needed")
            parameter.set_data(mx.nd.array(weights[name]))

    def optimizer_state(self) -> OptimizerState:
        sgd = self._config.optimizer == "sgd"
        kinds = ("momentum",) if sgd else ("mean", "square")
        arrays = {
            f"{kind}/{name}": array.asnumpy()
            for name, state in self._states[0].items()
            for kind, array in zip(kinds, state, strict=False)
        }
        return OptimizerState(arrays, scale=-self._lr if sgd else 1.0, updates=self._updates)

    def _count(self, device: int, updates: int) -> None:
        """Let the optimizer believe that it has made so many updates of each parameter on this device."""
        self._optimizer._index_update_count.update(dict.fromkeys(range(len(self._states[device])), updates))

    def load_optimizer_state(self, state: OptimizerState) -> None:
        sgd = self._config.optimizer == "sgd"
        if sgd and state.scale < 0:  # MXNet's own: bit for bit
            self._lr, factor = -state.scale, 1.0
        else:
            factor = (-self._lr if sgd else 1.0) / state.scale
        for device, (states, context) in enumerate(zip(self._states, self._contexts, strict=True)):
            for name, own in states.items():
                for kind, array in zip(("momentum",) if sgd else ("mean", "square"), own, strict=False):
                    array[:] = state.arrays[f"{kind}/{name}"] * np.float32(factor)
            self._optimizer._set_current_context(context.device_id)  # each device counts for itself
            self._count(device, state.updates)
        self._optimizer.num_update = state.updates


def optimizer(config: Config) -> mx.optimizer.Optimizer:
    """MXNet's optimizer of this name; NAG is its Nesterov."""
    options = {"learning_rate": config.lr, "wd": config.weight_decay}
    if config.optimizer == "adam":
        return mx.optimizer.Adam(**options)
    kind = mx.optimizer.NAG if config.nesterov else mx.optimizer.SGD
    return kind(momentum=config.momentum, **options)
