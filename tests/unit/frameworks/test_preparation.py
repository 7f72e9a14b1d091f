"""Which Keras a program gets: hvdtrain needs Keras 2, which from TensorFlow 2.16 is a package of its own."""

import importlib.util
import subprocess
import sys

import pytest
from support.jobs import ROOT

pytestmark = [
    pytest.mark.needs("tensorflow"),
    pytest.mark.skipif(
        importlib.util.find_spec("tf_keras") is None, reason="needs a TensorFlow whose Keras 2 is the package tf_keras"
    ),
]

KERAS_3_FIRST = """
import os, sys
import tensorflow as tf
from hvdtrain.errors import UserError
from hvdtrain.frameworks.preparation import require

def print_problem():
    try:
        require([], "tensorflow")
    except UserError as error:
        print(error)

print(tf.keras.__version__[0])
print_problem()
os.environ["TF_USE_LEGACY_KERAS"] = "1"
print_problem()
sys.modules["tf_keras"] = None
print_problem()
"""
TENSORFLOW_FIRST = """
import tensorflow as tf
from hvdtrain.frameworks.preparation import require
require([], "tensorflow")
print(tf.keras.Model.__module__.partition(".")[0])
"""


def output_of(code, *variables):
    """The lines that a Python process prints, whose Keras is chosen by these variables only."""
    command = ["env", "--unset=TF_USE_LEGACY_KERAS", *variables, sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_keras_3_is_one_line_with_a_remedy():
    version, chosen, used, missing = output_of(KERAS_3_FIRST, "TF_USE_LEGACY_KERAS=0")
    assert version == "3"
    assert ": TF_USE_LEGACY_KERAS=0 selects Keras 3, and hvdtrain needs Keras 2; set TF_USE_LEGACY_KERAS=1" in chosen
    assert "used it before hvdtrain started" in used and used.endswith("start the program with TF_USE_LEGACY_KERAS=1")
    assert "the package tf_keras is not installed; run: pip install --no-deps 'tf-keras==2." in missing


def test_a_program_may_import_tensorflow_first():
    assert output_of(TENSORFLOW_FIRST) == ["tf_keras"]
