"""What depends on the version of TensorFlow: which Keras `tf.keras` is."""

from __future__ import annotations

import importlib.util
import os

import tensorflow as tf

from hvdtrain.errors import UserError
from hvdtrain.frameworks.tensorflow import LEGACY_KERAS

KERAS_2_APART = (2, 16)
"""From this version on, `tf.keras` is Keras 3, or Keras 2 by the package tf_keras of the same version."""


def check_keras() -> None:
    """Raise UserError unless `tf.keras` is Keras 2, with which hvdtrain and Horovod are written."""
    version = tuple(map(int, tf.__version__.split(".")[:2]))
    if version < KERAS_2_APART:
        return
    name = f"TensorFlow {tf.__version__}"
    if importlib.util.find_spec("tf_keras") is None:
        wanted = ".".join(map(str, version))
        raise UserError(
            f"{name} has Keras 3, and hvdtrain needs Keras 2, the package tf_keras, which is not installed",
            f"run: pip install --no-deps 'tf-keras=={wanted}.*'",
        )
    if tf.keras.Model.__module__.startswith("tf_keras."):
        return
    given = os.environ.get(LEGACY_KERAS, "")
    if given not in ("1", "true", "True"):
        problem, remedy = f"{LEGACY_KERAS}={given} selects Keras 3", f"set {LEGACY_KERAS}=1, or leave it out"
    else:
        problem = "this program used tf.keras before hvdtrain started, and so got Keras 3"
        remedy = f"start it with {LEGACY_KERAS}=1"
    raise UserError(f"{name}: {problem}, and hvdtrain needs Keras 2", remedy)
