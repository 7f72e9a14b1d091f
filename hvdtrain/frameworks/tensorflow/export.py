"""Networks as SavedModels, which need TensorFlow only."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from hvdtrain.frameworks.tensorflow.network import KerasNetwork, WeightLayout
from hvdtrain.networks.description import ShapedNetwork, Weights

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
    module = tf.Module()
    module.weights, module.function = list(variables.values()), logits
    try:
        tf.saved_model.save(module, str(folder), signatures={SIGNATURE: logits})
    except tf.errors.OpError as error:  # of the disk; the message is "<operation> <file>; <reason> [<operation>]"
        raise OSError(errno.EIO, error.message.rpartition("; ")[2].partition(" [Op")[0], str(folder)) from None
    (folder / METADATA).parent.mkdir()
    (folder / METADATA).write_text(json.dumps(dict(metadata)))


def saved_logits(folder: Path, images: np.ndarray) -> np.ndarray:
    """The logits that a SavedModel returns."""
    return tf.saved_model.load(str(folder)).signatures[SIGNATURE](images=tf.constant(images))["logits"].numpy()
