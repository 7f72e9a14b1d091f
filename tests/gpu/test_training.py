"""Training on a GPU ends at the weights of training on the CPU."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from support.gpu_jobs import DETERMINISTIC, REHEARSAL
from support.jobs import distance

SAME = 1e-4
"""Largest difference of a weight after 24 steps in fp32, on CPU and GPU."""
LOOSE = 1e-3
"""Of Adam, which divides small gradients, and their rounding, by themselves; and of deep networks."""
SINGLE = ("--strategy", "single")


def needs(gpus, count):
    if gpus < count:
        pytest.skip(f"needs {count} GPUs, and there is {gpus}")


@pytest.mark.parametrize("strategy", ["single", "ddp", "dataparallel", "manual", "ring"])
def test_a_strategy_trains_as_on_the_cpu(jobs, on_cpu, strategy):
    found = jobs.train("--strategy", strategy)
    assert distance(found.weights, on_cpu(*SINGLE).weights) < SAME


def test_two_ranks_with_ddp_train_as_one_process_on_the_cpu(jobs, on_cpu, gpus):
    needs(gpus, 2)
    found = jobs.train("--strategy", "ddp", by="local", np=2)
    assert distance(found.weights, on_cpu(*SINGLE).weights) < SAME


def test_horovod_trains_as_on_the_cpu(jobs, on_cpu, gpus):
    """With NCCL, on two GPUs if there are two."""
    if not importlib.util.find_spec("horovod"):
        pytest.skip("needs Horovod, which is not installed (docs/horovod.md has the build for CUDA 13 and NCCL)")
    torch_part = pytest.importorskip("horovod.torch", reason="Horovod was built without PyTorch")
    if not (torch_part.nccl_built() or REHEARSAL):
        pytest.skip("needs Horovod with NCCL (docs/horovod.md)")
    ranks = min(gpus, 2)
    found = jobs.train("--strategy", "horovod", by="gloo", np=ranks)
    assert distance(found.weights, on_cpu(*SINGLE).weights) < SAME


VARIANTS = {
    "adam": ("--optimizer", "adam", "--lr", "0.0001"),
    "smaller last batches": ("--remainder", "exact", "--batch-size", "600"),
    "accumulate, clip": ("--accumulate", "2", "--clip-norm", "1"),
    "on-nan skip": ("--on-nan", "skip"),
    "batch normalization": ("--model", "resnet20", "--data", "synthetic", "--max-steps", "6"),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_options_train_as_on_the_cpu(jobs, on_cpu, name):
    options = (*SINGLE, *VARIANTS[name])
    steps = 6 if "resnet20" in options else 24
    found = jobs.train(*options, steps=steps)
    expected = on_cpu(*options)
    tolerance = LOOSE if {"resnet20", "adam"} & {*options} else SAME
    assert distance(found.weights, expected.weights) < tolerance


def test_torch_compile_trains_as_on_the_cpu(jobs, on_cpu):
    found = jobs.train(*SINGLE, "--compile")
    assert distance(found.weights, on_cpu(*SINGLE).weights) < SAME
    assert "compiled the step in" in jobs.log()


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.02), ("fp16", 0.01)])
def test_lower_precision_trains_nearly_as_fp32(jobs, on_cpu, precision, tolerance):
    found = jobs.train(*SINGLE, "--precision", precision)
    assert distance(found.weights, on_cpu(*SINGLE).weights) < tolerance
    if precision == "fp16":
        assert found.optimizer.extra["loss_scale"]["scale"] > 1


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_run_resumes_bit_for_bit(jobs, optimizer):
    given = (*SINGLE, "--optimizer", optimizer, "--lr", "0.002")
    whole = jobs.train(*given, program=DETERMINISTIC, name="whole")
    jobs.train(*given, steps=11, program=DETERMINISTIC, name="part")
    found = jobs.train(*given, "--resume", "runs/part", program=DETERMINISTIC, name="part")
    assert distance(found.weights, whole.weights) == 0
    for name, array in whole.optimizer.arrays.items():
        np.testing.assert_array_equal(found.optimizer.arrays[name], array, err_msg=name)


@pytest.mark.parametrize(("first", "second"), [("cpu", "gpu"), ("gpu", "cpu")])
def test_a_checkpoint_moves_between_cpu_and_gpu(jobs, on_cpu, first, second):
    given = (*SINGLE, "--optimizer", "adam", "--lr", "0.0001")
    jobs.train(*given, steps=11, device=first)
    found = jobs.train(*given, "--resume", "runs/run", device=second)
    assert distance(found.weights, on_cpu(*given).weights) < LOOSE
    assert found.optimizer.updates == 24
