"""LeNet in MXNet (Gluon)."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.contrib import amp
from mxnet.gluon import nn

from hvdtrain import groups
from hvdtrain.config import Config
from hvdtrain.frameworks import choose_device
from hvdtrain.learner import Group, OptimizerState
from hvdtrain.lenet import Conv, Dense, Flatten, Layer, Network, Pool, Relu, Weights

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

    group: Group

    def __init__(self, config: Config) -> None:
        self.group = groups.solo()

    def trainer(self, parameters: dict[str, gluon.Parameter], optimizer: mx.optimizer.Optimizer) -> gluon.Trainer:
        return gluon.Trainer(parameters, optimizer, kvstore=None)


class Horovod(Single):
    """Horovod's DistributedTrainer: each gradient is queued for its allreduce as the engine finishes it."""

    def __init__(self, config: Config) -> None:
        import horovod.mxnet as hvd

        self._hvd, self._compression = hvd, getattr(hvd.Compression, config.compression)
        self.group = groups.Horovod(hvd, lambda values: mx.nd.array(values, dtype="float64"), mx.nd.NDArray.asnumpy)

    def trainer(self, parameters: dict[str, gluon.Parameter], optimizer: mx.optimizer.Optimizer) -> gluon.Trainer:
        self._hvd.broadcast_parameters(parameters, root_rank=0)
        return self._hvd.DistributedTrainer(parameters, optimizer, compression=self._compression)


STRATEGIES = {"single": Single, "horovod": Horovod}


def build(config: Config, network: Network, weights: Weights, device: str) -> MXNetLearner:
    """The learner of `config`, at its first weights."""
    if config.precision == "bf16":
        with contextlib.redirect_stdout(io.StringIO()):
            amp.init(target_dtype="bfloat16")  # for all graphs of this process, so before the first is made
    return MXNetLearner(config, network, weights, STRATEGIES[config.strategy](config), device)


class LazyLoss:
    """A loss that the engine may still be computing; MXNet's own arrays have no float()."""

    def __init__(self, value: mx.nd.NDArray) -> None:
        self._value = value

    def __float__(self) -> float:
        return float(self._value.asscalar())


class MXNetLearner:
    """A hybridized Gluon network, trained by one strategy."""

    def __init__(self, config: Config, network: Network, weights: Weights, strategy: Single, device: str) -> None:
        self.group = strategy.group
        gpus = mx.context.num_gpus()
        self.device = choose_device(device, gpus > 0, gpus, self.group)
        self.skipped = 0
        self._context = mx.cpu() if self.device == "cpu" else mx.gpu(self.group.local_rank)
        self._config = config
        self._network = block(network)
        self._network.initialize(ctx=self._context)
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
        # The trainer averages. A sum is size times that, and the trainer divides by the batch size it is told.
        self._batch_size = 1 / self.group.size if config.op == "sum" else 1

    def _make_states(self) -> dict[str, tuple[mx.nd.NDArray, ...]]:
        """The optimizer's memory, made at once: momentum, or Adam's mean and square; nothing for plain SGD."""
        updater = self._trainer._updaters[0]
        states = {}
        for index, parameter in enumerate(self._trainer._params):
            state = self._optimizer.create_state_multi_precision(index, parameter.data())
            updater.states[index], updater.states_synced[index] = state, True
            states[parameter.name.replace("_", ".")] = () if state is None else state
        return {name: state if isinstance(state, tuple) else (state,) for name, state in states.items()}

    def _array(self, values: np.ndarray) -> mx.nd.NDArray:
        """On the device; on the CPU without a copy, so `values` must be written to no more."""
        return mx.nd.from_numpy(values, zero_copy=True).as_in_context(self._context)

    def _classes(self, labels: np.ndarray) -> mx.nd.NDArray:
        """Labels as float32, MXNet's custom: its bf16 mode does not take integers."""
        return self._array(labels.astype(np.float32))

    def _pixels(self, images: np.ndarray) -> mx.nd.NDArray:
        # In NumPy: ten times faster than MXNet's cast and division on the CPU.
        return self._array(np.divide(images, 255, dtype=np.float32) if images.dtype == np.uint8 else images)

    def train_step(self, images: np.ndarray, labels: np.ndarray, weights: np.ndarray, lr: float) -> LazyLoss:
        self._set_lr(lr)
        with autograd.record():
            loss = self._loss(self._pixels(images), self._classes(labels), self._array(weights))
        loss.backward()
        if self._config.clip_norm or self._config.on_nan == "skip":
            self._trainer.allreduce_grads()
            if self._clip_or_skip():
                self._trainer.update(self._batch_size)
        else:
            self._trainer.step(self._batch_size)
        return LazyLoss(loss)

    def _set_lr(self, lr: float) -> None:
        """MXNet keeps momentum times the learning rate: where that changes, so must what is kept."""
        if lr != self._lr:
            for state in self._states.values() if self._config.optimizer == "sgd" else ():
                for array in state:
                    array *= lr / self._lr
            self._lr = lr
        self._trainer.set_learning_rate(lr)
        if self._config.optimizer == "adam":  # MXNet adds the other "epsilon hat" of Kingma and Ba (2015, section 2)
            updates = max(self._optimizer._index_update_count.values(), default=0) + 1
            self._optimizer.epsilon = ADAM_EPSILON * (1 - self._optimizer.beta2**updates) ** 0.5

    def _clip_or_skip(self) -> bool:
        """Clip the joined gradients; False where they are not finite and the step is to be skipped.

        Joined gradients are equal on all ranks, so all of them skip or none does. They are scaled to the average
        only by the update, so the norm is scaled here.
        """
        gradients = [parameter.grad() for parameter in self._parameters.values()]
        scale = self._trainer._scale / self._batch_size
        squares = sum((gradient.astype("float64") ** 2).sum() for gradient in gradients)
        norm = scale * float(np.sqrt(squares.asscalar()))
        if not np.isfinite(norm) and self._config.on_nan == "skip":
            self.skipped += 1
            return False
        if self._config.clip_norm and norm > self._config.clip_norm:
            for gradient in gradients:
                gradient *= self._config.clip_norm / (norm + 1e-6)  # 1e-6 as PyTorch's clip_grad_norm_
        return True

    def logits(self, images: np.ndarray) -> np.ndarray:
        return self._network(self._pixels(images)).asnumpy()

    def eval_step(self, images: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        logits = self._network(self._pixels(images))
        picked = mx.nd.pick(mx.nd.log_softmax(logits), self._classes(labels))
        return -float(picked.sum().asscalar()), logits.argmax(axis=1).asnumpy().astype(np.int64)

    def weights(self) -> Weights:
        return {name: parameter.data().asnumpy() for name, parameter in self._parameters.items()}

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
            for name, state in self._states.items()
            for kind, array in zip(kinds, state, strict=False)
        }
        updates = max(self._optimizer._index_update_count.values(), default=0)
        return OptimizerState(arrays, scale=-self._lr if sgd else 1.0, updates=updates)

    def load_optimizer_state(self, state: OptimizerState) -> None:
        sgd = self._config.optimizer == "sgd"
        if sgd and state.scale < 0:  # MXNet's own: bit for bit
            self._lr, factor = -state.scale, 1.0
        else:
            factor = (-self._lr if sgd else 1.0) / state.scale
        for name, own in self._states.items():
            for kind, array in zip(("momentum",) if sgd else ("mean", "square"), own, strict=False):
                array[:] = state.arrays[f"{kind}/{name}"] * np.float32(factor)
        for index in range(len(self._states)):
            self._optimizer._index_update_count[index] = state.updates
        self._optimizer.num_update = state.updates


def optimizer(config: Config) -> mx.optimizer.Optimizer:
    """MXNet's optimizer of this name; NAG is its Nesterov."""
    options = {"learning_rate": config.lr, "wd": config.weight_decay}
    if config.optimizer == "adam":
        return mx.optimizer.Adam(**options)
    kind = mx.optimizer.NAG if config.nesterov else mx.optimizer.SGD
    return kind(momentum=config.momentum, **options)
