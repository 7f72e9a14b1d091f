"""`--cuda-graph` with several ranks, by operations recorded on the CPU: training is that without it.

It starts processes because the ranks combine gradients between graphs through the real libraries.
"""

import os
import sys

import pytest
from support.jobs import ROOT, distance, launcher, newest, run

GRAPHED = ROOT / "tests" / "support" / "graphed_training.py"
OPTIONS = ("--epochs", "1", "--batch-size", "100", "--remainder", "exact", "--quiet", "--seed", "3")
OPTIONS += ("--max-steps", "12")
ADAM, COMPRESSED = ("--optimizer", "adam"), ("--compression", "fp16", "--groups", "2")


@pytest.mark.parametrize(
    ("by", "strategies", "options", "tolerance"),
    [
        ("local", ("horovod", "ring", "ddp"), ADAM, 1e-6),
        pytest.param("mpirun", ("mpi",), ADAM, 1e-6, marks=pytest.mark.matrix),
        # Horovod's compression gives gradients other memory.
        pytest.param("gloo", ("horovod",), COMPRESSED, 1e-4, marks=pytest.mark.matrix),
    ],
)
def test_ranks_train_to_the_weights_of_steps_without_graphs(tmp_path, by, strategies, options, tolerance):
    """Gradients are combined in other messages, so in another order."""
    words = [*OPTIONS, *options, "--strategy", strategies[0], "--name", "whole"]
    for strategy in strategies:
        words += ["--then", *OPTIONS, *options, "--strategy", strategy, "--name", strategy, "--cuda-graph"]
    path = f"{ROOT / 'tests'}{os.pathsep}{os.environ.get('PYTHONPATH', ROOT)}"
    status, output = run([*launcher(by, 2), sys.executable, str(GRAPHED), *words], tmp_path, PYTHONPATH=path)
    assert status == 0, output
    whole = newest(tmp_path / "runs" / "whole")
    for strategy in strategies:
        graphed = newest(tmp_path / "runs" / strategy)
        assert distance(graphed.weights, whole.weights) < tolerance
        assert options is COMPRESSED or graphed.optimizer.updates == 12
