"""`--cuda-graph` with several ranks, by operations recorded on the CPU: training is that without it."""

import os
import sys

import pytest
from support.jobs import ROOT, distance, launcher, newest, run

GRAPHED = ROOT / "tests" / "support" / "graphed_training.py"
OPTIONS = (
    "--epochs",
    "1",
    "--batch-size",
    "100",
    "--remainder",
    "exact",
    "--quiet",
    "--seed",
    "3",
    "--max-steps",
    "12",
)


def trained(folder, strategy, by, *options, graphed=True):
    """The newest checkpoint of a job."""
    program = [str(GRAPHED), "--cuda-graph"] if graphed else ["-m", "hvdtrain.torch_lenet"]
    name = f"run-{len(list(folder.glob('runs/*')))}"
    command = [*launcher(by, 2), sys.executable, *program, "--strategy", strategy, "--name", name, *options]
    path = f"{ROOT / 'tests'}{os.pathsep}{os.environ.get('PYTHONPATH', ROOT)}"
    status, output = run(command, folder, PYTHONPATH=path)
    assert status == 0, output
    return newest(folder / "runs" / name)


@pytest.mark.parametrize(
    ("strategy", "by"),
    [
        ("ddp", "local"),
        pytest.param("horovod", "gloo", marks=pytest.mark.matrix),
        pytest.param("ring", "local", marks=pytest.mark.matrix),
        pytest.param("mpi", "mpirun", marks=pytest.mark.matrix),
    ],
)
def test_ranks_train_to_the_weights_of_steps_without_graphs(tmp_path, strategy, by):
    """Gradients are combined in other messages, so in another order."""
    options = (*OPTIONS, "--optimizer", "adam")
    whole = trained(tmp_path, strategy, by, *options, graphed=False)
    first = trained(tmp_path, strategy, by, *options)
    assert distance(first.weights, whole.weights) < 1e-6
    assert first.optimizer.updates == 12


@pytest.mark.matrix
def test_horovods_compression_gives_gradients_other_memory(tmp_path):
    options = (*OPTIONS, "--compression", "fp16", "--groups", "2")
    expected = trained(tmp_path, "horovod", "gloo", *options, graphed=False)
    assert distance(trained(tmp_path, "horovod", "gloo", *options).weights, expected.weights) < 1e-4
