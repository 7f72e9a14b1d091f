"""GPUs: the driver, the CUDA and NCCL that the frameworks were built with, and one GPU per rank."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.doctor.check import check
from hvdtrain.doctor.check_context import CheckContext
from hvdtrain.doctor.checks.horovod import built
from hvdtrain.doctor.checks.software import FRAMEWORKS, has_module
from hvdtrain.doctor.findings import Finding, fail, first_line, ok, warn
from hvdtrain.system.versions import DISTRIBUTIONS

QUERY = ["--query-gpu=index,name,driver_version", "--format=csv,noheader"]
VISIBLE = "CUDA_VISIBLE_DEVICES"


class Gpus(NamedTuple):
    """The output of nvidia-smi."""

    names: list[str]
    driver: str
    cuda: tuple[int, int]
    """The newest CUDA that the driver supports; (0, 0) if unknown."""
    error: str = ""


def gpus(context: CheckContext) -> Gpus | None:
    """This host's GPUs; None without nvidia-smi."""
    return context.once("gpus", lambda: _ask_nvidia_smi(context))


def _ask_nvidia_smi(context: CheckContext) -> Gpus | None:
    command = shutil.which("nvidia-smi")
    if not command:
        return None
    completed = context.run([command, *QUERY], 20)
    if completed.status != 0:
        return Gpus([], "", (0, 0), first_line(completed.out) or first_line(completed.err) or completed.reason())
    rows = [[cell.strip() for cell in line.split(",")] for line in completed.out.splitlines() if line.count(",") >= 2]
    match = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+)\.(\d+)", context.run([command], 20).out)
    cuda = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
    return Gpus([row[1] for row in rows], rows[0][2] if rows else "", cuda)


@check("gpu", "host")
def check_gpu(context: CheckContext) -> Iterator[Finding]:
    """GPUs, their driver, and the CUDA and NCCL of the frameworks"""
    found = gpus(context)
    if found is None:
        yield _no_nvidia_smi()
    elif found.error:
        remedy = "reboot, or reinstall the driver so that its library matches its kernel module"
        yield fail(f"nvidia-smi cannot reach the driver ({found.error})", remedy)
    elif not found.names:
        remedy = "docker run --gpus all, or request one from the batch system: sbatch --gpus"
        yield warn("nvidia-smi finds no GPU", remedy)
    else:
        newest = ".".join(map(str, found.cuda))
        yield ok(f"{len(found.names)} x {found.names[0]}, driver {found.driver}, CUDA up to {newest}")
        yield from _visible_devices(found)
        for name in FRAMEWORKS:
            if has_module(name):
                yield from _framework_cuda(name, context.framework(name), found)
        yield from _nccl(context)


def _no_nvidia_smi() -> Finding:
    if Path("/proc/driver/nvidia").exists() or Path("/dev/nvidia0").exists():
        text = "a GPU driver is loaded, but nvidia-smi is not on PATH"
        return warn(text, "docker run --gpus all, or install nvidia-utils")
    return ok("no nvidia-smi: this host trains on its CPU")


def _visible_devices(found: Gpus) -> Iterator[Finding]:
    """Problems with CUDA_VISIBLE_DEVICES."""
    value = os.environ.get(VISIBLE)
    if value is None:
        return
    if value.strip() in ("", "-1", "NoDevFiles"):
        yield warn(f"{VISIBLE}={value!r} hides all GPUs", f"unset {VISIBLE}")
        return
    wrong = [one for one in value.split(",") if one.strip().isdecimal() and int(one) >= len(found.names)]
    if wrong:
        text = f"{VISIBLE}={value} names GPU {', '.join(wrong)}, but this host has 0 to {len(found.names) - 1}"
        yield fail(text, f"unset {VISIBLE}")


def _framework_cuda(name: str, answer: dict[str, Any], found: Gpus) -> Iterator[Finding]:
    """Whether a framework's CUDA and the driver are compatible. answer: of `CheckContext.framework`."""
    if "framework_error" in answer or "cuda" not in answer:
        return
    cuda = answer["cuda"]
    if cuda is None:
        package = "mxnet-cu112" if name == "mxnet" else "see its installation page"
        text = f"{name} {answer['version']} is built for CPUs and will not use the GPUs"
        yield warn(text, f"install {name} for CUDA ({package}), then make setup")
        return
    version = tuple(int(number) for number in re.findall(r"\d+", cuda)[:2])
    # Within a major version of CUDA, newer programs run on older drivers.
    if version and found.cuda > (0, 0) and version[0] > found.cuda[0]:
        newest = ".".join(map(str, found.cuda))
        text = f"{name} is built for CUDA {cuda}, but driver {found.driver} supports CUDA up to {newest}"
        yield fail(text, f"update the driver, or install {DISTRIBUTIONS[name][0]} built for CUDA {found.cuda[0]}")
    elif not answer.get("gpus") and os.environ.get(VISIBLE) not in ("", "-1"):
        text = f"{name} is built for CUDA{f' {cuda}' if cuda else ''} but sees no GPU, although nvidia-smi does"
        yield fail(text, "check the versions of the driver and the CUDA libraries, and LD_LIBRARY_PATH")
    else:
        yield ok(f"{name} sees {answer['gpus']} GPU(s)")


def _nccl(context: CheckContext) -> Iterator[Finding]:
    """Whether Horovod has NCCL, in the same version as PyTorch."""
    has = built(context)
    if not has:
        return  # the check `horovod` reports it
    code = has["nccl"]
    if not code:
        text = "Horovod was built without NCCL: gradients are copied through host memory"
        yield warn(text, "HOROVOD_GPU_OPERATIONS=NCCL make setup")
        return
    of_torch = context.framework("torch").get("nccl") if has_module("torch") else None
    # NCCL 2.9 and later encode the major version as 10000, older ones as 1000.
    of_horovod = [code // 10000, code % 10000 // 100] if code >= 10000 else [code // 1000, code % 1000 // 100]
    if code > 1 and of_torch and of_torch[:2] != of_horovod:
        text = (
            f"Horovod was built with NCCL {of_horovod[0]}.{of_horovod[1]}, "
            f"but torch comes with {of_torch[0]}.{of_torch[1]}"
        )
        yield warn(text, "HOROVOD_NCCL_HOME=... HOROVOD_GPU_OPERATIONS=NCCL make setup, with torch's NCCL")


@check("gpu", "rank")
def check_gpu_per_rank(context: CheckContext) -> Iterator[Finding]:
    """each rank of this host has a GPU of its own"""
    found = gpus(context)
    if not found or not found.names:
        return
    value = os.environ.get(VISIBLE)
    visible = [one for one in (value or "").split(",") if one.strip() not in ("", "-1")]
    count = len(found.names) if value is None else len(visible)
    if count == 0:
        return  # the check `gpu` reports it
    if context.rank_info.local_rank >= count or context.ranks > count:
        text = f"{context.ranks} ranks on this host, but {count} visible GPU(s): each rank needs one"
        remedy = f"start at most {count} rank(s) on this host, or train with --device cpu"
        if value is not None and context.in_job:
            remedy += f"; let each rank see all GPUs of the host: unset {VISIBLE}, srun --gpu-bind=none"
        yield fail(text, remedy)
    else:
        yield ok(f"{count} GPU(s) for {context.ranks} rank(s)")
