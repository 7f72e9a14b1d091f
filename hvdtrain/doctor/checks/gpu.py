"""GPUs: the driver, what the frameworks were built for, and one GPU for each rank."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.doctor.checks.horovod import built
from hvdtrain.doctor.checks.software import DISTRIBUTIONS, there
from hvdtrain.doctor.findings import FRAMEWORKS, Finding, Setting, check, fail, first_line, ok, warn
from hvdtrain.doctor.subprocesses import Done

QUERY = ["--query-gpu=index,name,driver_version", "--format=csv,noheader"]


class Gpus(NamedTuple):
    """What nvidia-smi says."""

    names: list[str]
    driver: str
    cuda: tuple[int, int]
    """The newest CUDA that the driver runs; (0, 0) where it does not say."""
    failed: str = ""


def gpus(setting: Setting) -> Gpus | None:
    """This host's GPUs; None where there is no nvidia-smi."""
    return setting.once("gpus", lambda: _ask(setting))


def _ask(setting: Setting) -> Gpus | None:
    command = shutil.which("nvidia-smi")
    if not command:
        return None
    done = setting.run([command, *QUERY], 20)
    if done.status != 0:
        return Gpus([], "", (0, 0), _why(done))
    rows = [[word.strip() for word in line.split(",")] for line in done.out.splitlines() if line.count(",") >= 2]
    about = setting.run([command], 20).out
    match = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+)\.(\d+)", about)
    cuda = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
    return Gpus([row[1] for row in rows], rows[0][2] if rows else "", cuda)


def _why(done: Done) -> str:
    return first_line(done.out) or first_line(done.err) or done.reason()


@check("gpu", "host")
def check_gpu(setting: Setting) -> Iterator[Finding]:
    """GPUs, their driver, and the CUDA and NCCL of the frameworks"""
    found = gpus(setting)
    if found is None:
        if Path("/proc/driver/nvidia").exists() or Path("/dev/nvidia0").exists():
            yield warn(
                "a GPU driver is loaded, but nvidia-smi is not on PATH",
                "docker run --gpus all, or install nvidia-utils",
            )
        else:
            yield ok("no nvidia-smi: this host trains on its CPU")
        return
    if found.failed:
        remedy = "reboot, or reinstall the driver: its library and its kernel module do not belong together"
        yield fail(f"nvidia-smi does not reach the driver ({found.failed})", remedy)
        return
    if not found.names:
        yield warn("nvidia-smi finds no GPU", "docker run --gpus all, or ask the batch system for one: sbatch --gpus")
        return
    newest = ".".join(map(str, found.cuda))
    yield ok(f"{len(found.names)} x {found.names[0]}, driver {found.driver}, CUDA up to {newest}")
    yield from visible(found)
    for name in FRAMEWORKS:
        if there(name):
            yield from _framework(name, setting.framework(name), found)
    yield from _nccl(setting)


def visible(found: Gpus) -> Iterator[Finding]:
    """What is wrong with CUDA_VISIBLE_DEVICES."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return
    if value.strip() in ("", "-1", "NoDevFiles"):
        yield warn(f"CUDA_VISIBLE_DEVICES={value!r} hides all GPUs", "unset CUDA_VISIBLE_DEVICES")
        return
    wrong = [word for word in value.split(",") if word.strip().isdecimal() and int(word) >= len(found.names)]
    if wrong:
        text = (
            f"CUDA_VISIBLE_DEVICES={value} names GPU {', '.join(wrong)}, and this host has 0 to {len(found.names) - 1}"
        )
        yield fail(text, "unset CUDA_VISIBLE_DEVICES")


def _framework(name: str, told: dict[str, Any], found: Gpus) -> Iterator[Finding]:
    """Whether a framework and the driver go together."""
    if "framework_error" in told or "cuda" not in told:
        return
    cuda = told["cuda"]
    if cuda is None:
        text = f"{name} {told['version']} is built for CPUs and will not use the GPUs"
        yield warn(
            text,
            f"install {name} for CUDA ({'mxnet-cu112' if name == 'mxnet' else 'see its own pages'}), then make setup",
        )
        return
    needs = tuple(int(word) for word in re.findall(r"\d+", cuda)[:2])
    # Within a major version of CUDA, newer programs run on older drivers.
    if needs and found.cuda > (0, 0) and needs[0] > found.cuda[0]:
        newest = ".".join(map(str, found.cuda))
        text = f"{name} is built for CUDA {cuda}, and driver {found.driver} runs CUDA up to {newest}"
        yield fail(text, f"update the driver, or install {DISTRIBUTIONS[name][0]} built for CUDA {found.cuda[0]}")
    elif not told.get("gpus") and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1"):
        text = f"{name} is built for CUDA{f' {cuda}' if cuda else ''} and sees no GPU, though nvidia-smi does"
        yield fail(text, "look at the versions of driver and CUDA libraries, and at LD_LIBRARY_PATH")
    else:
        yield ok(f"{name} sees {told['gpus']} GPU(s)")


def _nccl(setting: Setting) -> Iterator[Finding]:
    """Whether Horovod has NCCL, and the same as PyTorch."""
    has = built(setting)
    if not has:
        return  # said by the check `horovod`
    code = has["nccl"]
    if not code:
        text = "Horovod was built without NCCL: gradients travel through the host's memory"
        yield warn(text, "HOROVOD_GPU_OPERATIONS=NCCL make setup")
        return
    theirs = setting.framework("torch").get("nccl") if there("torch") else None
    # NCCL 2.9 and later count 10000 a major version, older ones 1000.
    horovods = [code // 10000, code % 10000 // 100] if code >= 10000 else [code // 1000, code % 1000 // 100]
    if code > 1 and theirs and theirs[:2] != horovods:
        text = f"Horovod was built with NCCL {horovods[0]}.{horovods[1]}, and torch brings {theirs[0]}.{theirs[1]}"
        yield warn(text, "HOROVOD_NCCL_HOME=... HOROVOD_GPU_OPERATIONS=NCCL make setup, with torch's NCCL")


@check("gpu", "rank")
def check_gpu_per_rank(setting: Setting) -> Iterator[Finding]:
    """each rank of this host has a GPU of its own"""
    found = gpus(setting)
    if not found or not found.names:
        return
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = (
        len(found.names)
        if value is None
        else len([word for word in value.split(",") if word.strip() not in ("", "-1")])
    )
    if seen == 0:
        return  # said by the check `gpu`
    if setting.place.local_rank >= seen or setting.ranks > max(seen, 1):
        text = f"{setting.ranks} ranks on this host, and {seen} GPU(s) to be seen: one rank takes one GPU"
        remedy = f"start at most {seen} rank(s) on this host, or train with --device cpu"
        if value is not None and setting.in_job:
            remedy += "; let every rank see all GPUs of the host: unset CUDA_VISIBLE_DEVICES, srun --gpu-bind=none"
        yield fail(text, remedy)
    else:
        yield ok(f"{seen} GPU(s) for {setting.ranks} rank(s)")
