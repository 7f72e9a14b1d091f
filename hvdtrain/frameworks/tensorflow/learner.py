"""LeNet in TensorFlow."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from hvdtrain.collectives import groups, ring
from hvdtrain.config.options import Config
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.frameworks.registry import choose_device, count_devices
from hvdtrain.interfaces import Group, OptimizerState
from hvdtrain.networks.description import Conv, Dense, Flatten, Layer, Network, Pool, Relu, Weights

ADAM_EPSILON = 1e-8
POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


def model(network: Network, precision: str) -> tf.keras.Sequential:
    """The network, built; images come channel-last."""
    channels, height, width = network.input_shape
    policy = POLICIES[precision]
    layers = [_layer(layer, policy) for layer in network.layers]
    # Named, as Horovod knows gradients by it, and Keras would count: in an elastic job ranks of all ages must agree.
    return tf.keras.Sequential([tf.keras.Input((height, width, channels)), *layers], name="network")


def _layer(layer: Layer, policy: str) -> tf.keras.layers.Layer:
    keras = tf.keras.layers
    match layer:
        case Conv():
            return keras.Conv2D(layer.outputs, layer.kernel, name=layer.name, dtype=policy)
        case Dense():
            return keras.Dense(layer.outputs, name=layer.name, dtype=policy)
        case Pool(kind="average"):
            return keras.AveragePooling2D(layer.size, dtype=policy)
        case Pool():
            return keras.MaxPooling2D(layer.size, dtype=policy)
        case Relu():
            return keras.ReLU(dtype=policy)
        case Flatten():
            return keras.Flatten(dtype=policy)


def channel_last(images: np.ndarray) -> np.ndarray:
    """Images (n, channels, height, width) as (n, height, width, channels)."""
    n, channels, height, width = images.shape
    # One channel: the same bytes in both orders.
    return images.reshape(n, height, width, 1) if channels == 1 else images.transpose(0, 2, 3, 1)


class Layout:
    """Between the canonical layout of a network's weights and TensorFlow's, which is channel-last.

    Kernels (out, in, height, width) are (height, width, in, out) there, dense weights (out, in) are (in, out). Images
    are flattened channel-last, so the first dense layer's inputs come in another order as well: it is this weight
    that is turned when it is loaded, and not each image in each step.
    """

    def __init__(self, network: Network) -> None:
        self._turned, self._shape = network.flattening

    def to_canonical(self, name: str, value: np.ndarray) -> np.ndarray:
        """TensorFlow's array of this parameter, or of what an optimizer keeps of it, in the canonical layout."""
        if name == self._turned:
            channels, height, width = self._shape
            by_pixel = value.reshape(height, width, channels, -1)
            return by_pixel.transpose(3, 2, 0, 1).reshape(value.shape[1], value.shape[0])
        return np.ascontiguousarray(value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T)

    def from_canonical(self, name: str, value: np.ndarray) -> np.ndarray:
        """The inverse of `to_canonical`."""
        if name == self._turned:
            return value.reshape(-1, *self._shape).transpose(2, 3, 1, 0).reshape(value.shape[1], value.shape[0])
        return value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T


class Single:
    """One process: gradients meet nobody."""

    needs: tuple[str, ...] = ()
    lacks: tuple[tuple[str, Any, str], ...] = ()
    many_devices = False
    devices = 1

    def __init__(self, config: Config, runtime: RuntimeOptions, group: Group | None = None) -> None:
        self.group = group or groups.single_process(config.strategy)

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Where the network is built."""
        return contextlib.nullcontext()

    def broadcast(self, variables: list[tf.Variable]) -> None:
        """Make the variables of all ranks rank 0's."""

    def gradient(self, tape: tf.GradientTape, loss: tf.Tensor, variables: list[tf.Variable]) -> list[tf.Tensor]:
        """What all gradients of the loss join to; called where `step` runs."""
        return tape.gradient(loss, variables)

    def run(self, step: Callable[..., tf.Tensor], rows: tuple[np.ndarray, ...], lr: tf.Tensor) -> tf.Tensor:
        """This process's loss after `step(images, labels, weights, lr)` on each of its devices."""
        return step(*map(tf.constant, rows), lr)


class Horovod(Single):
    """Horovod's DistributedGradientTape: gradient() returns what all ranks' gradients join to."""

    needs = ("horovod.tensorflow",)

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        import horovod.tensorflow as hvd

        self._hvd = hvd
        self._compression = getattr(hvd.Compression, config.compression)
        self._op = getattr(hvd, config.op.capitalize())
        self.group = groups.HorovodGroup(hvd, tf.constant, lambda tensor: tensor.numpy())
        if config.op == "adasum":
            groups.check_adasum(hvd)

    def broadcast(self, variables: list[tf.Variable]) -> None:
        self._hvd.broadcast_variables(variables, root_rank=0)

    def gradient(self, tape: tf.GradientTape, loss: tf.Tensor, variables: list[tf.Variable]) -> list[tf.Tensor]:
        distributed = self._hvd.DistributedGradientTape(tape, compression=self._compression, op=self._op)
        return distributed.gradient(loss, variables)


class Mirrored(Single):
    """tf.distribute.MirroredStrategy: a copy on each device of this process; without GPUs, on logical CPU devices."""

    many_devices = True

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        self.group: Any = groups.single_process(config.strategy)
        gpus = tf.config.list_physical_devices("GPU") if runtime.device != "cpu" else []
        kind, self.devices = ("GPU" if gpus else "CPU"), count_devices(runtime.devices, len(gpus))
        if not gpus:
            parts = [tf.config.LogicalDeviceConfiguration()] * self.devices
            tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
        self.tf = tf.distribute.MirroredStrategy([f"{kind}:{i}" for i in range(self.devices)])

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return self.tf.scope()

    def gradient(self, tape: tf.GradientTape, loss: tf.Tensor, variables: list[tf.Variable]) -> list[tf.Tensor]:
        total = tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.SUM, tape.gradient(loss, variables)
        )
        return [gradient / self.group.size for gradient in total]

    def run(self, step: Callable[..., tf.Tensor], rows: tuple[np.ndarray, ...], lr: tf.Tensor) -> tf.Tensor:
        parts = [np.array_split(array, self.devices) for array in rows]
        distribute = self.tf.experimental_distribute_values_from_function
        own = [distribute(lambda context, p=part: tf.constant(p[self._device(context)])) for part in parts]
        losses = self.tf.experimental_local_results(self._on_each(step, *own, lr))
        return tf.add_n([tf.identity(loss) for loss in losses])

    def _device(self, context: Any) -> int:
        """Number of this replica among those of this process."""
        return context.replica_id_in_sync_group - self.group.rank * self.devices

    @tf.function(reduce_retracing=True)
    def _on_each(self, step: Callable[..., tf.Tensor], *arguments: Any) -> Any:
        return self.tf.run(step, args=arguments)


class MultiWorker(Mirrored):
    """tf.distribute.MultiWorkerMirroredStrategy: a copy on each rank, joined by TensorFlow's own collectives."""

    many_devices = False

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        # The ring finds the ranks, carries host values, and tells where each rank's TensorFlow will listen.
        self.group, self.devices = ring.start(), 1
        if self.group.size > 1 and not os.environ.get("TF_CONFIG"):
            workers = self.group.gather(self.group.free_address())
            task = {"type": "worker", "index": self.group.rank}
            os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
        self.tf = tf.distribute.MultiWorkerMirroredStrategy()


class Ring(Single):
    """Our own ring allreduce over TCP, all gradients in one message."""

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        self.group: Any = ring.start()

    def broadcast(self, variables: list[tf.Variable]) -> None:
        for variable, value in zip(variables, self.group.broadcast([v.numpy() for v in variables]), strict=True):
            variable.assign(value)

    def gradient(self, tape: tf.GradientTape, loss: tf.Tensor, variables: list[tf.Variable]) -> list[tf.Tensor]:
        gradients = tape.gradient(loss, variables)
        flat = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0)
        joined = tf.ensure_shape(tf.numpy_function(self._join, [flat], tf.float32), flat.shape)
        parts = tf.split(joined, [gradient.shape.num_elements() for gradient in gradients])
        return [tf.reshape(part, gradient.shape) for part, gradient in zip(parts, gradients, strict=True)]

    def _join(self, flat: np.ndarray) -> np.ndarray:
        joined = np.array(flat)
        self.group.allreduce(joined)
        return joined / np.float32(self.group.size)


class MPI(Ring):
    """MPI.Allreduce on one buffer of all gradients, by mpi4py."""

    needs = ("mpi4py.MPI",)

    def __init__(self, config: Config, runtime: RuntimeOptions) -> None:
        self.group = groups.MPIGroup()


STRATEGIES = {
    "single": Single,
    "horovod": Horovod,
    "mirrored": Mirrored,
    "multiworker": MultiWorker,
    "ring": Ring,
    "mpi": MPI,
}


def build(
    config: Config, network: Network, weights: Weights, strategy: Single, runtime: RuntimeOptions
) -> TensorFlowLearner:
    """The learner of `config`, at its first weights."""
    return TensorFlowLearner(config, network, weights, strategy, prepare(strategy, runtime))


def prepare(strategy: Single, runtime: RuntimeOptions) -> str:
    """The device of the learner; hides the GPUs that are not this rank's."""
    gpus = tf.config.list_physical_devices("GPU")
    chosen = choose_device(runtime.device, bool(gpus), len(gpus), strategy.group)
    with contextlib.suppress(RuntimeError):  # a second learner of this process leaves them as they are
        if not strategy.many_devices:
            tf.config.set_visible_devices([] if chosen == "cpu" else gpus[strategy.group.local_rank], "GPU")
    return chosen


# Each replica of a device updates its copy of a variable alike, so the first one's value is that of all.
FIRST = tf.VariableAggregation.ONLY_FIRST_REPLICA


def counter() -> tf.Variable:
    """A number that steps add to."""
    return tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=FIRST)


class Optimizer:
    """SGD or Adam by TensorFlow's fused operations, which take the learning rate of each step as a tensor.

    Keras' SGD keeps momentum times the learning rate; this operation keeps the plain sum, as PyTorch does, so that a
    schedule means the same in both.
    """

    def __init__(self, config: Config, variables: list[tf.Variable]) -> None:
        self._config, self._variables = config, variables
        kinds = ("mean", "square") if config.optimizer == "adam" else ("momentum",) if config.momentum else ()
        self.slots = {
            kind: [tf.Variable(tf.zeros_like(variable), trainable=False) for variable in variables] for kind in kinds
        }
        self.updates = counter()

    @property
    def variables(self) -> list[tf.Variable]:
        return [slot for slots in self.slots.values() for slot in slots] + [self.updates]

    def apply(self, gradients: list[tf.Tensor], lr: tf.Tensor) -> None:
        """Update all variables."""
        self.updates.assign_add(1)
        for i, (variable, gradient) in enumerate(zip(self._variables, gradients, strict=True)):
            if self._config.weight_decay:
                gradient += self._config.weight_decay * variable
            slots = [slots[i].handle for slots in self.slots.values()]
            self._update(variable.handle, slots, gradient, lr)

    def _update(self, variable: tf.Tensor, slots: list[tf.Tensor], gradient: tf.Tensor, lr: tf.Tensor) -> None:
        ops, config = tf.raw_ops, self._config
        if config.optimizer == "adam":
            beta1, beta2, t = tf.constant(0.9), tf.constant(0.999), tf.cast(self.updates, tf.float32)
            # This operation adds the other "epsilon hat" of Kingma and Ba (2015, section 2).
            epsilon = ADAM_EPSILON * tf.sqrt(1 - beta2**t)
            ops.ResourceApplyAdam(
                var=variable, m=slots[0], v=slots[1], beta1_power=beta1**t, beta2_power=beta2**t, lr=lr,
                beta1=beta1, beta2=beta2, epsilon=epsilon, grad=gradient,
            )  # fmt: skip
        elif config.momentum:
            ops.ResourceApplyMomentum(
                var=variable, accum=slots[0], lr=lr, grad=gradient, momentum=config.momentum,
                use_nesterov=config.nesterov,
            )  # fmt: skip
        else:
            ops.ResourceApplyGradientDescent(var=variable, alpha=lr, delta=gradient)


class LossScale:
    """fp16's dynamic loss scale: halved where gradients overflow, doubled after 2000 steps without (Micikevicius
    et al., Mixed Precision Training, 2018); nothing in other precisions."""

    GROWTH_STEPS = 2000

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self.value = tf.Variable(65536.0 if enabled else 1.0, trainable=False, aggregation=FIRST)
        self.good_steps = counter()

    def apply(self, loss: tf.Tensor) -> tf.Tensor:
        return loss * self.value if self._enabled else loss

    def remove(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        return [gradient / self.value for gradient in gradients] if self._enabled else gradients

    def update(self, finite: tf.Tensor) -> None:
        if not self._enabled:
            return
        grown = self.good_steps + 1 >= self.GROWTH_STEPS
        factor = tf.where(finite, tf.where(grown, 2.0, 1.0), 0.5)
        self.value.assign(self.value * factor)
        self.good_steps.assign(tf.where(tf.logical_and(finite, tf.logical_not(grown)), self.good_steps + 1, 0))


class TensorFlowLearner:
    """A Keras network and its step, compiled into one graph, trained by one strategy."""

    def __init__(self, config: Config, network: Network, weights: Weights, strategy: Single, device: str) -> None:
        self.group = strategy.group
        self.device = device
        self._config, self._strategy = config, strategy
        self.devices = strategy.devices
        self._layout = Layout(network)
        with strategy.scope():
            self._model = model(network, config.precision)
            names = [name for name, _ in network.parameters()]
            self._parameters: dict[str, tf.Variable] = dict(zip(names, self._model.trainable_variables, strict=True))
            self._variables = list(self._parameters.values())
            self._optimizer = self._make_optimizer(config)
            self._scale = LossScale(config.precision == "fp16")
            self._skipped = counter()
        self._check_finite = config.on_nan == "skip" or config.precision == "fp16"
        self.load(weights)
        strategy.broadcast(self._variables)
        strategy.broadcast(self._optimizer.variables)

    def _make_optimizer(self, config: Config) -> Any:
        return Optimizer(config, self._variables)

    @property
    def skipped(self) -> int:
        return int(self._skipped.numpy())

    def _forward(self, images: tf.Tensor) -> tf.Tensor:
        x = tf.cast(images, tf.float32) / 255.0 if images.dtype == tf.uint8 else images
        return tf.cast(self._model(x, training=True), tf.float32)

    def _weighted_loss(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self._forward(images))
        return tf.reduce_sum(losses * weights)

    @tf.function(reduce_retracing=True)
    def _step(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, lr: tf.Tensor) -> tf.Tensor:
        loss, gradients = self._gradients(images, labels, weights)
        gradients = self._scale.remove(gradients)
        if self._config.clip_norm:
            gradients, norm = tf.clip_by_global_norm(gradients, self._config.clip_norm)
        elif self._check_finite:
            norm = tf.linalg.global_norm(gradients)
        if not self._check_finite:
            self._optimizer.apply(gradients, lr)
            return loss
        # Joined gradients are equal on all ranks, so all of them skip or none does.
        finite = tf.math.is_finite(norm)
        if finite:
            self._optimizer.apply(gradients, lr)
        else:
            self._skipped.assign_add(1)
        self._scale.update(finite)
        return loss

    def _gradients(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, list[Any]]:
        """Loss and joined gradients; those of all parts but the last are only added up here, and ride with it."""
        parts = self._parts(images, labels, weights)
        total, earlier = tf.zeros(()), None
        for part in parts[:-1]:
            with tf.GradientTape() as tape:
                loss = self._weighted_loss(*part)
                scaled = self._scale.apply(loss)
            own = tape.gradient(scaled, self._variables)
            earlier = own if earlier is None else [a + b for a, b in zip(earlier, own, strict=True)]
            total += loss
        with tf.GradientTape() as tape:
            loss = self._weighted_loss(*parts[-1])
            scaled = self._scale.apply(loss)
            if earlier is not None:  # the gradient of sum(constant * variable) is the constant
                pairs = zip(earlier, self._variables, strict=True)
                scaled += tf.add_n([tf.reduce_sum(tf.stop_gradient(a) * variable) for a, variable in pairs])
        return total + loss, self._strategy.gradient(tape, scaled, self._variables)

    def _parts(self, *arrays: tf.Tensor) -> list[tuple[tf.Tensor, ...]]:
        count = self._config.accumulate
        if count == 1:
            return [arrays]
        rows = tf.shape(arrays[0])[0]
        cuts = [rows * i // count for i in range(count + 1)]
        return [tuple(array[a:b] for array in arrays) for a, b in itertools.pairwise(cuts)]

    def train_step(self, images: np.ndarray, labels: np.ndarray, weights: np.ndarray, lr: float) -> tf.Tensor:
        return self._strategy.run(self._step, (channel_last(images), labels, weights), tf.constant(lr, tf.float32))

    @tf.function(reduce_retracing=True)
    def _evaluate(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        logits = self._forward(images)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tf.reduce_sum(losses), tf.argmax(logits, axis=1)

    def eval_step(self, images: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        loss, predicted = self._evaluate(tf.constant(channel_last(images)), tf.constant(labels))
        return float(loss), predicted.numpy()

    def logits(self, images: np.ndarray) -> np.ndarray:
        return self._forward(tf.constant(channel_last(images))).numpy()

    def weights(self) -> Weights:
        return {name: self._layout.to_canonical(name, v.numpy()) for name, v in self._parameters.items()}

    def load(self, weights: Weights) -> None:
        if set(weights) != set(self._parameters):
            raise KeyError(f"parameters {sorted(weights)} are not {sorted(self._parameters)}")
        for name, variable in self._parameters.items():
            variable.assign(self._layout.from_canonical(name, weights[name]))

    def optimizer_state(self) -> OptimizerState:
        arrays = {
            f"{kind}/{name}": self._layout.to_canonical(name, slot.numpy())
            for kind, slots in self._optimizer.slots.items()
            for name, slot in zip(self._parameters, slots, strict=True)
        }
        extra = {"loss_scale": float(self._scale.value.numpy()), "good_steps": int(self._scale.good_steps.numpy())}
        return OptimizerState(arrays, updates=int(self._optimizer.updates.numpy()), extra=extra)

    def load_optimizer_state(self, state: OptimizerState) -> None:
        for kind, slots in self._optimizer.slots.items():
            for name, slot in zip(self._parameters, slots, strict=True):
                value = state.arrays[f"{kind}/{name}"] / np.float32(state.scale)
                slot.assign(self._layout.from_canonical(name, value))
        self._optimizer.updates.assign(state.updates)
        if state.extra:
            self._scale.value.assign(state.extra["loss_scale"])
            self._scale.good_steps.assign(state.extra["good_steps"])
