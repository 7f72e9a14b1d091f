"""TensorFlow, with Keras 2 as `tf.keras`: from TensorFlow 2.16 that is the package tf_keras, if this variable is set.

Import this package before TensorFlow, which reads the variable when it is imported.
"""

import importlib.util
import os

LEGACY_KERAS = "TF_USE_LEGACY_KERAS"

if importlib.util.find_spec("tf_keras"):  # without it, TensorFlow 2.15 would not find the Keras 2 that it comes with
    os.environ.setdefault(LEGACY_KERAS, "1")
