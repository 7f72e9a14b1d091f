"""GPUs: the driver, the CUDA and NCCL that the frameworks were built with, and one GPU per rank."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.doctor.check import Finding, check, fail, ok, warn
from hvdtrain.doctor.checks.software import FRAMEWORKS, built
from hvdtrain.doctor.context import CheckContext
from hvdtrain.doctor.quick import has_module
from hvdtrain.doctor.subprocesses import first_line
from hvdtrain.system import stacks
from hvdtrain.system.stacks import DISTRIBUTIONS

CAPABILITY_QUERY = ["--query-gpu=compute_cap", "--format=csv,noheader"]
"""On its own, as drivers before 510 reject it."""
MAX_CAPABILITY_OF_MXNET = 86
"""The newest compute capability that CUDA 11.2 compiles for; MXNet 1.9.1 has no build for a later CUDA."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


class Gpus(NamedTuple):
    """The output of nvidia-smi."""

    names: list[str]
    driver: str
    cuda: tuple[int, int]
    """The newest CUDA that the driver supports; (0, 0) if unknown."""
    error: str = ""
    capabilities: tuple[int, ...] = ()
    """Of each GPU, such as 90 for sm_90; empty if unknown."""


def gpus(context: CheckContext) -> Gpus | None:
    """This host's GPUs; None without nvidia-smi."""
    return context.once("gpus", lambda: _ask_nvidia_smi(context))


def _ask_nvidia_smi(context: CheckContext) -> Gpus | None:
    command = shutil.which("nvidia-smi")
    if not command:
        return None
    completed = context.run([command, "--query-gpu=index,name,driver_version", "--format=csv,noheader"], 20)
    if completed.status != 0:
        return Gpus([], "", (0, 0), first_line(completed.out) or first_line(completed.err) or completed.reason())
    rows = [[cell.strip() for cell in line.split(",")] for line in completed.out.splitlines() if line.count(",") >= 2]
    match = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+)\.(\d+)", context.run([command], 20).out)
    cuda = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
    pairs = re.findall(r"^\s*(\d+)\.(\d)\s*$", context.run([command, *CAPABILITY_QUERY], 20).out, re.MULTILINE)
    capabilities = tuple(int(major) * 10 + int(minor) for major, minor in pairs)
    return Gpus([row[1] for row in rows], rows[0][2] if rows else "", cuda, capabilities=capabilities)


@check("gpu", "host")
def check_gpu(context: CheckContext) -> Iterator[Finding]:
    """GPUs, their driver, and the CUDA and NCCL of the frameworks"""
    host = gpus(context)
    if host is None and (Path("/proc/driver/nvidia").exists() or Path("/dev/nvidia0").exists()):
        text = "a GPU driver is loaded, but nvidia-smi is not on PATH"
        yield warn(text, "docker run --gpus all, or install nvidia-utils")
    elif host is None:
        yield ok("no nvidia-smi: this host trains on its CPU")
    elif host.error:
        remedy = "reboot, or reinstall the driver so that its library matches its kernel module"
        yield fail(f"nvidia-smi cannot reach the driver ({host.error})", remedy)
    elif not host.names:
        remedy = "docker run --gpus all, or request one from the batch system: sbatch --gpus"
        yield warn("nvidia-smi finds no GPU", remedy)
    else:
        newest = ".".join(map(str, host.cuda))
        generation = f" (sm_{host.capabilities[0]})" if host.capabilities else ""
        yield ok(f"{len(host.names)} x {host.names[0]}{generation}, driver {host.driver}, CUDA up to {newest}")
        yield from _visible_devices(host)
        for name in FRAMEWORKS:
            if has_module(name):
                yield from _framework_cuda(name, context.framework(name), host)
        yield from _nccl(context)


def _visible_devices(host: Gpus) -> Iterator[Finding]:
    value = os.environ.get(VISIBLE)
    if value is None:
        return
    if value.strip() in ("", "-1", "NoDevFiles"):
        yield warn(f"{VISIBLE}={value!r} hides all GPUs", f"unset {VISIBLE}")
        return
    indexes = [index for index in value.split(",") if index.strip().isdecimal()]
    wrong = [index for index in indexes if int(index) >= len(host.names)]
    if wrong:
        text = f"{VISIBLE}={value} names GPU {', '.join(wrong)}, but this host has 0 to {len(host.names) - 1}"
        yield fail(text, f"unset {VISIBLE}")


def _framework_cuda(name: str, answer: dict[str, Any], host: Gpus) -> Iterator[Finding]:
    """Whether a framework's CUDA and the driver are compatible. answer: of `CheckContext.framework`."""
    if "framework_error" in answer or "cuda" not in answer:
        return
    cuda = answer["cuda"]
    newest, model = max(zip(host.capabilities, host.names, strict=False), default=(0, ""))
    if name == "mxnet" and newest > MAX_CAPABILITY_OF_MXNET:
        text = f"MXNet {answer['version']} was never built for {model} (sm_{newest})"
        yield warn(text, stacks.setup_command(stacks.STACKS["pytorch"]))
        return
    if cuda is None:
        text = f"{name} {answer['version']} is built for CPUs and will not use the GPUs"
        yield warn(text, _for_cuda(name, answer["version"]))
        return
    version = tuple(int(number) for number in re.findall(r"\d+", cuda)[:2])
    # Within a major version of CUDA, newer programs run on older drivers.
    if version and host.cuda > (0, 0) and version[0] > host.cuda[0]:
        supported = ".".join(map(str, host.cuda))
        text = f"{name} is built for CUDA {cuda}, but driver {host.driver} supports CUDA up to {supported}"
        yield fail(text, f"update the driver, or install {DISTRIBUTIONS[name][0]} built for CUDA {host.cuda[0]}")
    elif not answer.get("gpus") and os.environ.get(VISIBLE) not in ("", "-1"):
        text = f"{name} is built for CUDA{f' {cuda}' if cuda else ''} but sees no GPU, although nvidia-smi does"
        yield fail(text, "check the versions of the driver and the CUDA libraries, and LD_LIBRARY_PATH")
    else:
        yield ok(f"{name} sees {answer['gpus']} GPU(s)")
        yield from _architectures(name, answer, host)


def _architectures(name: str, answer: dict[str, Any], host: Gpus) -> Iterator[Finding]:
    """GPUs that are too new or too old for the code that a framework has."""
    code = answer.get("architectures") or []
    for capability, model in sorted(dict(zip(host.capabilities, host.names, strict=False)).items()):
        if code and not runs_on(code, capability):
            oldest = min(numbers for _, numbers in map(_parse, code))
            age = "old" if capability < oldest else "new"
            built_for = f"{name} {answer['version']}, built for {', '.join(code)}"
            older = f"install an older {DISTRIBUTIONS[name][0]} that was built for sm_{capability}"
            text = f"{model} (sm_{capability}) is too {age} for {built_for}"
            yield fail(text, older if age == "old" else stacks.setup_command(stacks.STACKS["pytorch"]))


def runs_on(code: list[str], capability: int) -> bool:
    """Whether code for these architectures runs on a GPU of this compute capability.

    Machine code (`sm_80`) runs on later GPUs of its major version (8.6, but not 9.0), that of one GPU alone (`sm_90a`)
    on no other; PTX (`compute_90`) is compiled by the driver for any later GPU.
    """
    for kind, number in map(_parse, code):
        later = kind == "compute" or (kind == "sm" and number // 10 == capability // 10)
        if number == capability or (later and number < capability):
            return True
    return False


def _parse(architecture: str) -> tuple[str, int]:
    """`sm` and 80 of `sm_80`; the kind ends with `a` for code that runs on that GPU alone."""
    match = re.match(r"([a-z]+)_(\d+)(a?)", architecture)
    return (match[1] + match[3], int(match[2])) if match else ("", 0)


def _for_cuda(name: str, version: str) -> str:
    """The command that installs a framework for CUDA in place of the one for CPUs, and builds Horovod for it."""
    release = version.split("+")[0]
    install = {
        "torch": f"pip install --force-reinstall torch=={release}",
        "mxnet": f"pip uninstall mxnet && pip install mxnet-cu112=={release}",
        "tensorflow": f"pip uninstall tensorflow-cpu && pip install 'tensorflow[and-cuda]=={release}'",
    }
    return f"{install[name]} && HOROVOD_GPU_OPERATIONS=NCCL {_setup()}"


def _nccl(context: CheckContext) -> Iterator[Finding]:
    has = built(context)
    if not has:
        return  # the check `horovod` reports it
    code = has["nccl"]
    if not code:
        text = "Horovod was built without NCCL: gradients are copied through host memory"
        yield warn(text, f"HOROVOD_GPU_OPERATIONS=NCCL {_setup()}")
        return
    of_torch = context.framework("torch").get("nccl") if has_module("torch") else None
    # NCCL 2.9 and later encode the major version as 10000, older ones as 1000.
    of_horovod = [code // 10000, code % 10000 // 100] if code >= 10000 else [code // 1000, code % 1000 // 100]
    if code > 1 and of_torch and of_torch[:2] != of_horovod:
        built_with, comes_with = (".".join(map(str, version[:2])) for version in (of_horovod, of_torch))
        text = f"Horovod was built with NCCL {built_with}, but torch comes with {comes_with}"
        yield warn(text, f"HOROVOD_NCCL_HOME=... HOROVOD_GPU_OPERATIONS=NCCL {_setup()}, with torch's NCCL")


def _setup() -> str:
    return stacks.setup_command(stacks.installed_stack() or stacks.stack_for_this_python())


@check("gpu", "rank")
def check_gpu_per_rank(context: CheckContext) -> Iterator[Finding]:
    """each rank of this host has a GPU of its own"""
    host = gpus(context)
    if not host or not host.names:
        return
    value = os.environ.get(VISIBLE)
    visible = [index for index in (value or "").split(",") if index.strip() not in ("", "-1")]
    count = len(host.names) if value is None else len(visible)
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
