"""Types, threads, instruction set and determinism of PyTorch."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hvdtrain.errors import UserError
from hvdtrain.system import resources
from hvdtrain.system.arithmetic import MKL_BRANCH

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""By --precision."""
NO_BRANCH = ("", "OFF")
"""Values of MKL_CBWR with which results may depend on the addresses of arrays."""


def settle(count: int, isa: str) -> None:
    """Compute with so many threads (0 leaves them), and check that --isa is in force, also where it was set late.

    PyTorch reads the variables of instruction sets when it computes first. Raises UserError if that was before.
    """
    if count and torch.get_num_threads() != count:
        torch.set_num_threads(count)
    if isa != "auto" and (found := torch.backends.cpu.get_cpu_capability()) != isa.upper():
        raise UserError(
            f"--isa {isa}: PyTorch computes with {found}, as it has computed before hvdtrain started",
            f"start hvdtrain before the first tensor or model, or set ATEN_CPU_CAPABILITY={isa} before the start",
            option="isa",
        )


def share_cores(count: int) -> None:
    """Compute with so many threads, unless the script has chosen a number itself."""
    before = resources.core_binding().before
    if torch.get_num_threads() in (len(before), len(resources.read_cores(before))):  # PyTorch's own choices
        torch.set_num_threads(count)


def make_deterministic(count: int, may_use_gpu: bool) -> None:
    """Make operations deterministic, or errors, where more than one thread computes them; no TF32 on GPUs.

    Raises UserError if MKL computed before it was asked for reproducible results.
    """
    uses_gpu = may_use_gpu and has_gpu()
    branch = os.environ.get(MKL_BRANCH, "")
    if not uses_gpu and branch.upper() not in NO_BRANCH and _mkl_has_no_branch():
        raise UserError(
            "--shards: PyTorch has multiplied matrices before hvdtrain started, whose bits may depend on addresses",
            f"start hvdtrain before the first product of matrices, or set {MKL_BRANCH}={branch} before the start",
            option="shards",
        )
    if count > 1 or uses_gpu:
        torch.use_deterministic_algorithms(True)
    if uses_gpu:
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


def _mkl_has_no_branch() -> bool:
    """Whether MKL, which reads MKL_CBWR when it computes first, computes without it; False for a PyTorch without MKL.

    Intel's mkl_types.h: MKL_CBWR_BRANCH, what is asked for, and MKL_CBWR_BRANCH_OFF are 1.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return int(library.mkl_serv_cbwr_get(1)) == 1
    return False


def has_gpu() -> bool:
    """Whether this host has a GPU that PyTorch can use."""
    return torch.cuda.is_available()


def threads() -> int:
    """The threads that compute an operation."""
    return torch.get_num_threads()


def product(precision: str, size: int) -> Callable[[], object]:
    """Multiplies two square matrices of this size on the processor."""
    matrix = torch.full((size, size), 0.5, dtype=DTYPES[precision])
    return lambda: matrix @ matrix


def compute(precision: str) -> None:
    """Compute a convolution and a product on the processor; it raises what PyTorch raises where it cannot.

    With one thread, as it may wait for others in a copy of a process.
    """
    torch.set_num_threads(1)
    images, filters = (torch.ones(shape, dtype=DTYPES[precision]) for shape in ((2, 3, 8, 8), (4, 3, 3, 3)))
    features = torch.nn.functional.conv2d(images, filters).flatten(1)
    float((features @ features.T).sum())


def check_gradients(parameters: Mapping[str, torch.Tensor], precision: str, parts: int) -> None:
    """Raise UserError for a parameter whose gradients cannot have fp16's loss scale, or be sums of so many parts."""
    halves = [name for name, parameter in parameters.items() if parameter.dtype is torch.float16]
    if halves and precision == "fp16":
        raise UserError(
            f"--precision fp16: the parameter {halves[0]} is float16, whose gradients PyTorch does not unscale",
            "keep the parameters in float32, or leave out --precision fp16",
            option="precision",
        )
    for name, parameter in parameters.items() if parts > 1 else ():
        if not _keeps_means(parameter):
            raise UserError(
                f"a hook of the parameter {name} clips its gradient, or changes it in another way by which the mean "
                "over ranks, devices or shards is no longer that of one process",
                "clip the combined gradients by --clip-norm, or change them in the step() of an optimizer of your own",
            )


@torch.no_grad()
def _keeps_means(parameter: torch.Tensor) -> bool:
    """Whether a user's hooks make of a mean of gradients the mean of what they make of each; True if they fail.

    They are tried with gradients of one size and of two.
    """
    hooks = [*(parameter._backward_hooks or {}).values()], [*(parameter._post_accumulate_grad_hooks or {}).values()]
    if not any(hooks):
        return True
    weight, before = parameter.clone(), parameter.grad
    angles = torch.arange(weight.numel(), device=weight.device).reshape(weight.shape)
    first, second = (0.01 * torch.cos(factor * angles + 1).to(weight.dtype) for factor in (1, 3))
    try:
        for other in (second, 4096 * second):  # what they clip to is in between
            made = [_hooked(parameter, gradient, *hooks) for gradient in (first, other, (first + other) / 2)]
            if any(one is None for one in made) or not torch.equal(parameter, weight):  # they make the update
                return False
            of_each, of_mean = (made[0] + made[1]) / 2, made[2]
            if (of_each - of_mean).abs().max() > 0.02 * of_mean.abs().max():  # more than bfloat16 rounds
                return False
    except Exception:
        return True
    finally:
        parameter.copy_(weight)
        parameter.grad = before
    return True


def _hooked(parameter: torch.Tensor, gradient: torch.Tensor, hooks: Sequence[Any], later: Sequence[Any]) -> Any:
    """What hooks, and those that are called when a gradient has been added, make of a gradient."""
    gradient = gradient.clone()
    for hook in hooks:
        if (changed := hook(gradient)) is not None:
            gradient = changed
    parameter.grad = gradient
    for hook in later:
        hook(parameter)
    return parameter.grad
