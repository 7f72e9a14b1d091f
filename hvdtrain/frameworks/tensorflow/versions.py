"""Which Keras `tf.keras` is: that of TensorFlow up to 2.15, later the package tf_keras (Keras 2) or keras (Keras 3)."""

from __future__ import annotations

import importlib.util
import os
import sys

import tensorflow as tf

from hvdtrain.errors import UserError
from hvdtrain.frameworks.tensorflow import LEGACY_KERAS


def check_keras() -> None:
    """Raise UserError unless `tf.keras` is Keras 2, for which hvdtrain and Horovod are written."""
    try:
        if not is_keras_3(tf.keras.Model):
            return
    except ImportError:  # the variable is set, and tf_keras not installed
        pass
    name, given = f"TensorFlow {tf.__version__}", os.environ.get(LEGACY_KERAS, "")
    if importlib.util.find_spec("tf_keras") is None:
        raise UserError(
            f"{name} comes without Keras 2, which hvdtrain needs, and the package tf_keras is not installed",
            f"run: pip install --no-deps 'tf-keras=={tf.__version__.rpartition('.')[0]}.*'",
        )
    if given not in ("1", "true", "True"):
        problem, remedy = f"{LEGACY_KERAS}={given} selects Keras 3", f"set {LEGACY_KERAS}=1, or leave it out"
    else:
        problem = "tf.keras is Keras 3, because this program used it before hvdtrain started"
        remedy = f"start the program with {LEGACY_KERAS}=1"
    raise UserError(f"{name}: {problem}, and hvdtrain needs Keras 2", remedy)


def is_keras_3(kind: type) -> bool:
    """Whether a class comes from Keras 3."""
    if not any(base.__module__.startswith("keras.") for base in kind.__mro__):
        return False
    return not sys.modules["keras"].__version__.startswith("2.")
