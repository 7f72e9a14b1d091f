"""TensorFlow, with the Keras that `tf.keras` is: Keras 2 up to TensorFlow 2.15, then Keras 3.

From TensorFlow 2.16 on, Keras 2 is the package tf_keras; LEGACY_KERAS chooses it. Import this package before Keras,
which then reads BACKEND.
"""

import os

LEGACY_KERAS, BACKEND = "TF_USE_LEGACY_KERAS", "KERAS_BACKEND"

os.environ[BACKEND] = os.environ.get(BACKEND) or "tensorflow"  # a file in the home folder may name another one
