"""Drawn models and scripts: each way to train one ends at the weights of its framework's own loop, or refuses it.

It starts a process for each framework, which imports it once and forks the ranks of all trainings: ranks are processes.
"""

import sys
import time

import pytest
from support.environment import importing
from support.jobs import ROOT, succeed

from fuzz.properties import LONG

SHORT = {"torch": ("1",), "mxnet": ("3",), "tensorflow": ("1", "--ways", "^two$|^shards on 1$")}
"""Seeds, and which ways: TensorFlow compiles each step again in each rank."""
STEPS = {"torch": (10, 100), "mxnet": (20, 100), "tensorflow": (2, 20)}
"""How many seeds the matrix trains in about three minutes, and in all."""
MORE = [(name, first, count) for name, (count, last) in STEPS.items() for first in range(0, last, count)]


def check(folder, framework, seeds, *options):
    command = [sys.executable, "-W", "ignore", "-m", "support.drawn_models", framework, "--seeds", seeds, *options]
    variables = {**importing(ROOT, ROOT / "tests"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    succeed(command, folder, timeout_s=36000, **variables)


@pytest.mark.guarantee("user-same-step")
@pytest.mark.parametrize("framework", SHORT)
def test_drawn_models(tmp_path, framework):
    """Under `make fuzz`, new models in each call."""
    first = time.time_ns() // 1_000_000 % 1_000_000_000
    check(tmp_path, framework, *((f"{first}:{first + 10}",) if LONG else SHORT[framework]))


@pytest.mark.guarantee("user-same-step")
@pytest.mark.matrix(minutes=3)
@pytest.mark.parametrize(("framework", "first", "count"), MORE)
def test_more_drawn_models(tmp_path, framework, first, count):
    check(tmp_path, framework, f"{first}:{first + count}")
