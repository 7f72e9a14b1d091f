"""Networks in TensorFlow, built from their descriptions, and the layout of their weights."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

from hvdtrain.frameworks.batches import mask_names
from hvdtrain.frameworks.row_checks import not_trained, with_mask
from hvdtrain.frameworks.tensorflow import LEGACY_KERAS
from hvdtrain.frameworks.tensorflow.batch_norm import SumOverRanks, TensorFlowBatchNormalization
from hvdtrain.frameworks.tensorflow.keras_versions import (
    drawing_from_generators,
    global_settings,
    keeps_losses,
    message_of,
    other_keras,
    to_tensorflow,
)
from hvdtrain.frameworks.user_code import no_model
from hvdtrain.interfaces.reading import PIXEL_MAX
from hvdtrain.networks import layers as kinds
from hvdtrain.networks.description import ShapedNetwork
from hvdtrain.tasks.user import TaskError, UserTask

POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


class KerasNetwork(tf.keras.Model):
    """The network, built; images are channel-last. Its `parameters` and `statistics` have canonical names.

    sum_over_ranks: for batch normalization over the rows of all ranks.
    """

    def __init__(self, network: ShapedNetwork, precision: str, sum_over_ranks: SumOverRanks | None = None) -> None:
        # Horovod identifies gradients by this name, which Keras would number otherwise: by the networks that a process
        # has built before.
        tf.keras.backend.set_floatx("float32")  # whatever a file in the home folder says
        super().__init__(name="network")
        self._network, self._policy, self._sum_over_ranks = network, POLICIES[precision], sum_over_ranks
        self._mask_names = mask_names(network)
        self._built: dict[str, tf.keras.layers.Layer] = {}
        self.parameters: dict[str, tf.Variable] = {}
        self.statistics: dict[str, tf.Variable] = {}
        for layer in network.walk():
            if isinstance(layer, kinds.Conv | kinds.Dense | kinds.BatchNorm):
                with tf.name_scope(layer.name):  # Horovod finds the gradient of a variable by its name
                    self._build_layer(layer)
        self.built = True

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Called by `fit` of Keras 3 in a `tf.distribute.Strategy`: it would wait for rows, to build what is built."""

    def _build_layer(self, layer: kinds.Conv | kinds.Dense | kinds.BatchNorm) -> None:
        keras = tf.keras.layers
        match layer:
            case kinds.Conv(groups=1):
                built: Any = keras.Conv2D(
                    *(layer.outputs, layer.kernel, layer.stride, "valid", "channels_last"),
                    use_bias=layer.bias, name=layer.name, dtype=self._policy,
                )  # fmt: skip
                built.build((None, None, None, layer.inputs))
            case kinds.Conv():
                built = GroupedConvolution(layer, self._policy)
                built.build(None)
            case kinds.Dense():
                built = keras.Dense(layer.outputs, use_bias=layer.bias, name=layer.name, dtype=self._policy)
                built.build((None, layer.inputs))
            case kinds.BatchNorm():
                built = TensorFlowBatchNormalization(layer, self._sum_over_ranks)
                built.build(None)
                self.statistics |= {
                    f"{layer.name}.running_mean": to_tensorflow(built.running_mean),
                    f"{layer.name}.running_var": to_tensorflow(built.running_var),
                }
        self._built[layer.name] = built
        weight = built.weight if isinstance(layer, kinds.BatchNorm) else built.kernel
        self.parameters[f"{layer.name}.weight"] = to_tensorflow(weight)
        if built.bias is not None:
            self.parameters[f"{layer.name}.bias"] = to_tensorflow(built.bias)

    @tf.autograph.experimental.do_not_convert  # which does not know `match`
    def call(self, inputs: Any, training: bool = False) -> tf.Tensor:
        """Logits of float32 images.

        inputs: images (n, height, width, channels); in training also dropout's masks, in the order of the layers, and
        with `sum_over_ranks` float32 (n,), 1 for rows that count.
        """
        images, *others = inputs if isinstance(inputs, list | tuple) else [inputs]
        height, width = self._network.used_pixels
        real_rows = others.pop() if training and self._sum_over_ranks else None
        masks = dict(zip(self._mask_names, others, strict=training))
        return self._run(self._network.layers, images[:, :height, :width], masks, real_rows, training)

    def _run(
        self, layers: tuple[kinds.Layer, ...], x: tf.Tensor, masks: dict[str, tf.Tensor], real_rows: Any, training: bool
    ) -> tf.Tensor:
        for layer, following in itertools.zip_longest(layers, layers[1:]):
            match layer:
                case kinds.Residual():
                    body, shortcut = (
                        self._run(branch, x, masks, real_rows, training) for branch in (layer.body, layer.shortcut)
                    )
                    x = body + tf.cast(shortcut, body.dtype)
                case kinds.BatchNorm():
                    x = self._built[layer.name](x, real_rows, training=training)
                case kinds.Dropout() if layer.name in masks:
                    mask = masks[layer.name]
                    x = x * tf.cast(mask if len(mask.shape) == 2 else tf.transpose(mask, (0, 2, 3, 1)), x.dtype)
                case kinds.Flatten():
                    # A dense layer's weight is permuted when it is loaded, instead of each image in each step.
                    ordered = x if isinstance(following, kinds.Dense) else tf.transpose(x, (0, 3, 1, 2))
                    x = tf.reshape(ordered, (-1, math.prod(x.shape[1:])))
                case kinds.Conv() | kinds.Dense():
                    x = self._built[layer.name](_padded(x, layer.padding, 0.0) if isinstance(layer, kinds.Conv) else x)
                case _:
                    x = _without_parameters(layer, x)
        return x


class GroupedConvolution(tf.keras.layers.Layer):
    """A convolution in groups; TensorFlow's own exists on GPUs only."""

    def __init__(self, layer: kinds.Conv, policy: str) -> None:
        super().__init__(name=layer.name, dtype=policy)
        self._layer, self.bias = layer, None

    def build(self, shape: Any) -> None:
        layer = self._layer
        shape = (layer.kernel, layer.kernel, layer.inputs // layer.groups, layer.outputs)
        self.kernel = self.add_weight(name="kernel", shape=shape)
        if layer.bias:
            self.bias = self.add_weight(name="bias", shape=(layer.outputs,))
        super().build(shape)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        groups, stride = self._layer.groups, self._layer.stride
        parts = zip(tf.split(x, groups, 3), tf.split(tf.convert_to_tensor(self.kernel), groups, 3), strict=True)
        y = tf.concat([tf.nn.conv2d(part, kernel, stride, "VALID") for part, kernel in parts], 3)
        return y if self.bias is None else tf.nn.bias_add(y, self.bias)


def _without_parameters(layer: kinds.Layer, x: tf.Tensor) -> tf.Tensor:
    match layer:
        case kinds.Pool(reduction="average"):
            return tf.nn.avg_pool2d(_padded(x, layer.padding, 0.0), layer.size, layer.step, "VALID")
        case kinds.Pool():
            return tf.nn.max_pool2d(_padded(x, layer.padding, x.dtype.min), layer.size, layer.step, "VALID")
        case kinds.GlobalAveragePool():
            return tf.reduce_mean(x, (1, 2))
        case kinds.Relu():
            return tf.nn.relu(x)
        case kinds.LeakyRelu():
            return tf.nn.leaky_relu(x, layer.slope)
        case kinds.Gelu():
            return tf.nn.gelu(x)
        case kinds.Dropout():
            return x
    raise TypeError(f"{layer} is not a layer")


def _padded(x: tf.Tensor, padding: int, value: Any) -> tf.Tensor:
    """Images with `padding` more rows and columns on each side: TensorFlow's own padding is larger on one side."""
    sides = (padding, padding)
    return tf.pad(x, ((0, 0), sides, sides, (0, 0)), constant_values=value) if padding else x


def scale_pixels(images: tf.Tensor) -> tf.Tensor:
    """Images as float32; uint8 pixels are scaled to [0, 1]."""
    return tf.cast(images, tf.float32) / PIXEL_MAX if images.dtype == tf.uint8 else images


Evaluation = tuple[tf.Tensor, dict[str, tf.Tensor], tf.Tensor | None]
"""The losses of n rows, their metrics by name, and of a network as data their classes, int64 (n,), or numbers."""


def row_losses(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Loss of each row of a network as data, (n,): by its class, or by the number, float32, that it should predict."""
    if labels.dtype.is_floating:
        return tf.square(outputs[:, 0] - labels)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)


def evaluation(outputs: tf.Tensor, labels: tf.Tensor) -> Evaluation:
    """What the outputs of a network as data are worth."""
    losses = row_losses(outputs, labels)
    if labels.dtype.is_floating:
        return losses, {}, outputs[:, 0]
    predicted = tf.argmax(outputs, axis=1)
    return losses, {"accuracy": predicted == labels}, predicted


def channel_last(images: np.ndarray) -> np.ndarray:
    """Images (n, channels, height, width) as (n, height, width, channels)."""
    n, channels, height, width = images.shape
    # With one channel, the order of bytes is the same.
    return images.reshape(n, height, width, 1) if channels == 1 else images.transpose(0, 2, 3, 1)


class WeightLayout:
    """Converts weights between the canonical layout and TensorFlow's, which is channel-last.

    Kernels (out, in, height, width) are (height, width, in, out) in TensorFlow, dense weights (out, in) are (in, out).
    Where a dense layer follows a Flatten, its inputs are in another order.
    """

    def __init__(self, network: ShapedNetwork) -> None:
        self._permuted = {f"{name}.weight": shape for name, shape in network.flattened.items()}

    def to_canonical(self, name: str, value: np.ndarray) -> np.ndarray:
        """TensorFlow's array of a parameter, or of its optimizer state, in the canonical layout."""
        if name in self._permuted:
            channels, height, width = self._permuted[name]
            by_pixel = value.reshape(height, width, channels, -1)
            flat = by_pixel.transpose(3, 2, 0, 1).reshape(value.shape[1], value.shape[0])
            return np.ascontiguousarray(flat)  # with one channel it would be a view
        return np.ascontiguousarray(value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T)

    def from_canonical(self, name: str, value: np.ndarray) -> np.ndarray:
        """The inverse of `to_canonical`."""
        if name in self._permuted:
            by_channel = value.reshape(-1, *self._permuted[name])
            return by_channel.transpose(2, 3, 1, 0).reshape(value.shape[1], value.shape[0])
        return value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T


@contextlib.contextmanager
def building(precision: str) -> Iterator[None]:
    """Layers made inside compute in this precision, and draw random numbers from generators whose state can be set.

    Also after clear_session(), which resets the default graph, with its creators of variables, and Keras 3's policy.
    """
    set_policy, before = tf.keras.mixed_precision.set_global_policy, tf.keras.mixed_precision.global_policy()
    graphs = ops._default_graph_stack
    graphs.reset = functools.partial(set_policy, POLICIES[precision])
    graphs.reset()
    try:
        with drawing_from_generators():
            yield
    finally:
        del graphs.reset
        set_policy(before)


def check_settings(task: UserTask, precision: str) -> None:
    """Raise UserError unless layers that Keras makes now compute as the record will say."""
    settings, needed = global_settings(), {"policy": POLICIES[precision], "floatx": "float32"}
    for name in needed:
        if settings[name] != needed[name]:
            problem = f"runs with Keras' {name} {settings[name]}, and --precision {precision} needs {needed[name]}"
            raise task.error("model", problem, "give --precision in place of set_global_policy(), and floatx float32")


def task_model(task: UserTask, precision: str) -> tf.keras.Model:
    """What a task's model() returns. Raises UserError for anything but a model of `tf.keras` that computes only."""
    check_settings(task, precision)
    model = task.call("model")
    check_settings(task, precision)
    if not isinstance(model, tf.keras.Model):
        if number := other_keras(type(model)):
            problem = f"returned {type(model).__name__}, a model of Keras {number}, and tf.keras is another one here"
            remedy = f"make it by tf.keras, or {'set' if number == 2 else 'unset'} {LEGACY_KERAS}"
            raise task.error("model", problem, remedy)
        raise no_model(task, model, "tensorflow")
    for method in ("train_step", "compute_loss"):
        if getattr(type(model), method) is not getattr(tf.keras.Model, method):
            problem = f"returned {type(model).__name__}, whose own {method}() only Keras' fit would call"
            raise task.error("model", problem, "compute its loss in losses(), and by add_loss()")
    if getattr(model, "optimizer", None):
        task.advice.append(
            f"--model {task.name}: model() returned a compiled model, whose optimizer, loss and metrics are not used: "
            "give --optimizer and --lr, losses() and metrics()"
        )
    return model


Values = list[tuple[tf.Variable, np.ndarray]]


def first_values(made: Values, call: Callable[[], Any]) -> Values:
    """Variables of a model that was called once, and the values that training begins with: what build() has set.

    made: as they were made, which stays the first value of what calls change, such as states. A second call, which
    builds nothing, tells the two apart.
    """
    changed = [(v, value, v.numpy()) for v, value in made if not np.array_equal(v.numpy(), value)]
    for variable, value, _ in changed:
        variable.assign(value)
    if changed:
        call()
    built = {id(v): now for v, value, now in changed if np.array_equal(v.numpy(), value)}
    for variable, _, now in changed:
        variable.assign(built.get(id(variable), now))
    return [(variable, built.get(id(variable), value)) for variable, value in made]


def check_losses(task: UserTask, model: tf.keras.Model, in_threads: bool) -> None:
    """Raise UserError if a model, of which several devices have copies in threads, does not keep the losses of each."""
    if in_threads and not keeps_losses(model):
        problem = "returned a model of Keras 3 that adds losses, which devices of a process take from each other"
        raise task.error("model", problem, "train it over ranks")


def without_half(output: Any) -> Any:
    """bfloat16 and float16 as float32, with Keras' mask."""
    is_half = tf.is_tensor(output) and output.dtype in (tf.bfloat16, tf.float16)
    return with_mask(tf.cast(output, tf.float32), output) if is_half else output


def why_no_graph(error: BaseException) -> str:
    """What is wrong with a task: TensorFlow raises an error of its own where a method of the task has failed."""
    raised: BaseException | None = error
    while raised:
        if isinstance(raised, TaskError):
            return raised.problem
        raised = raised.__cause__ or raised.__context__
    return (message_of(error).splitlines() or [type(error).__name__])[-1].strip()


def gradients_of(task: UserTask, tape: Any, losses: Any, trained: list[Any], known: Iterable[Any]) -> list[Any]:
    """The gradients of the trained variables. Raises UserError if another one has some that is not known either."""
    copies = tf.distribute.get_strategy().experimental_local_results
    handles = {id(copy.handle) for variable in known for copy in copies(variable)}  # Keras wraps some variables
    others = [variable for variable in tape.watched_variables() if id(variable.handle) not in handles]
    gradients = tape.gradient(losses, [*others, *(copies(variable)[0] for variable in trained)])
    for other, gradient in zip(others, gradients, strict=False):
        if gradient is not None:
            raise not_trained(f"--model {task.name}", other, "trainable=False")
    return gradients[len(others) :]
