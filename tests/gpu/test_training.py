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


def test_two_ranks_with_ddp_train_as_one_process_on_the_cpu(jobs, on_cpu, gpus):
    if gpus < 2:
        pytest.skip(f"needs 2 GPUs, and there is {gpus}")
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


RESNET = ("--model", "resnet20", "--data", "synthetic", "--max-steps", "6")
ALIKE = {
    "adam": (("--optimizer", "adam", "--lr", "0.0001"), LOOSE),
    "smaller last batches": (("--remainder", "exact", "--batch-size", "600"), SAME),
    "accumulate, clip": (("--accumulate", "2", "--clip-norm", "1"), SAME),
    "on-nan skip": (("--on-nan", "skip"), SAME),
    "batch normalization": (RESNET, LOOSE),
}
"""Options that are the same on the CPU, and the largest difference of a weight."""
OTHER = {
    **{strategy: (("--strategy", strategy), SAME) for strategy in ("single", "ddp", "dataparallel", "manual", "ring")},
    "compile": (("--compile",), SAME),
    "bf16": (("--precision", "bf16"), 0.02),
    "fp16": (("--precision", "fp16"), 0.01),
}
"""Those without which the CPU trains."""


@pytest.mark.parametrize("name", [*ALIKE, *OTHER])
def test_options_train_as_on_the_cpu(jobs, on_cpu, name):
    options, tolerance = {**ALIKE, **OTHER}[name]
    found = jobs.train(*SINGLE, *options, steps=6 if options is RESNET else 24)
    assert distance(found.weights, on_cpu(*SINGLE, *(options if name in ALIKE else ())).weights) < tolerance
    assert name != "compile" or "compiled the step in" in jobs.log()
    assert name != "fp16" or found.optimizer.extra["loss_scale"]["scale"] > 1


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
