"""Networks and models of tasks as SavedModels, which need TensorFlow only."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hvdtrain.collectives.groups import single_process
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.frameworks.tensorflow.network import KerasNetwork, WeightLayout
from hvdtrain.frameworks.tensorflow.objective import TensorFlowTaskObjective
from hvdtrain.frameworks.tensorflow.strategies import TensorFlowStrategy
from hvdtrain.networks.description import ShapedNetwork, Weights
from hvdtrain.tasks.user import UserTask

SIGNATURE = "serving_default"
METADATA = Path("assets.extra", "metadata.json")
"""In the folder of a SavedModel, whose format leaves `assets.extra` to the user."""


def save_network(network: ShapedNetwork, weights: Weights, metadata: Mapping[str, str], folder: Path) -> None:
    """A SavedModel: its signature takes float32 `images` (n, channels, height, width), and returns `logits`.

    Raises OSError if it cannot be written.
    """
    model, layout = KerasNetwork(network, "fp32"), WeightLayout(network)
    variables = model.parameters | model.statistics
    for name, variable in variables.items():
        variable.assign(layout.from_canonical(name, weights[name]))

    @tf.function(input_signature=[tf.TensorSpec((None, *network.input_shape), tf.float32, "images")])
    @tf.autograph.experimental.do_not_convert
    def logits(images: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"logits": model(tf.transpose(images, (0, 2, 3, 1)), training=False)}

    # The variables alone, and not the Keras model, whose own functions would be saved with it.
    _save(list(variables.values()), logits, metadata, folder)


def _save(variables: list[tf.Variable], function: Any, metadata: Mapping[str, str], folder: Path) -> None:
    """Save a function of these variables as the signature of a SavedModel."""
    module = tf.Module()
    module.weights, module.function = variables, function
    try:
        tf.saved_model.save(module, str(folder), signatures={SIGNATURE: function})
    except tf.errors.OpError as error:  # of the disk; the message is "<operation> <file>; <reason> [<operation>]"
        raise OSError(errno.EIO, error.message.rpartition("; ")[2].partition(" [Op")[0], str(folder)) from None
    (folder / METADATA).parent.mkdir()
    (folder / METADATA).write_text(json.dumps(dict(metadata)))


def saved_outputs(folder: Path, **arrays: np.ndarray) -> dict[str, np.ndarray]:
    """The outputs of a SavedModel for inputs of these names."""
    signature = tf.saved_model.load(str(folder)).signatures[SIGNATURE]
    outputs = signature(**{name: tf.constant(array) for name, array in arrays.items()})
    return {name: tensor.numpy() for name, tensor in outputs.items()}


class TaskModel:
    """The model of a task with the weights of a checkpoint. Raises UserError if they are not its own."""

    def __init__(self, task: UserTask, weights: Weights) -> None:
        config = Config(framework="tensorflow", strategy="single")
        self._task = task
        strategy = TensorFlowStrategy(config, RuntimeOptions(device="cpu"), single_process(config.strategy))
        self._objective = TensorFlowTaskObjective(task, strategy)
        try:
            self._objective.check(weights)
        except ValueError as error:
            problem = f"returned another model than that of the checkpoint ({error})"
            raise task.error("model", problem, "use the code that has trained it") from None
        for name, variable in (self._objective.parameters | self._objective.statistics).items():
            variable.assign(weights[name])

    def outputs(self, *arrays: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs for arrays of n rows, by name."""
        return {name: tensor.numpy() for name, tensor in self._named_outputs(*map(tf.constant, arrays)).items()}

    def _named_outputs(self, *inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = self._objective.model(inputs if len(inputs) > 1 else inputs[0], training=False)
        if isinstance(outputs, Mapping):
            return {str(name): tensor for name, tensor in outputs.items()}
        tensors = tf.nest.flatten(outputs)
        if len(tensors) == 1:
            return {"output": outputs}
        return {f"output_{number}": tensor for number, tensor in enumerate(tensors)}

    def save(self, inputs: tuple[np.ndarray, ...], metadata: Mapping[str, str], folder: Path) -> None:
        """A SavedModel, whose signature takes `input_0` and so on, like these, of any number of rows.

        Raises UserError if TensorFlow cannot make one, OSError if it cannot be written.
        """
        specs = [
            tf.TensorSpec((None, *array.shape[1:]), array.dtype, f"input_{number}")
            for number, array in enumerate(inputs)
        ]
        function = tf.function(self._named_outputs, input_signature=specs)
        try:
            function.get_concrete_function()
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            problem = f"returned a model that TensorFlow cannot compile into a graph ({reason:.300})"
            raise self._task.error("model", problem, "compute with TensorFlow's operations only") from error
        _save(list(self._objective.model.variables), function, metadata, folder)

    @staticmethod
    def saved_outputs(folder: Path, *arrays: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs of what `save` has written."""
        return saved_outputs(folder, **{f"input_{number}": array for number, array in enumerate(arrays)})
