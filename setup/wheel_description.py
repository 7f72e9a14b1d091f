"""What a wheel of Horovod is built for: the description of an environment, its short form, and what differs.

A wheel's local version names what it is built for, so that its file name alone tells where it fits:

    horovod-0.28.1+hvdtrain.pd41c0a9.torch2.13.mxnet1.9.tf2.15.cpu.openmpi4-cp311-cp311-manylinux_2_35_x86_64.whl

in this order: the patches in setup/horovod (a hash of their changes), the frameworks, CPU or CUDA with or without NCCL,
MPI. The whole description of the environment that it was built in is the file hvdtrain.json next to the wheel's
metadata.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

DISTRIBUTIONS = {"torch": ("torch",), "mxnet": ("mxnet", "mxnet-cu112"), "tensorflow": ("tensorflow-cpu", "tensorflow")}
"""The packages that contain each framework."""
SHORT = {"tensorflow": "tf"}
"""Names of frameworks in a local version, where they differ."""
LOCAL = re.compile(
    r"hvdtrain\.(?P<patches>p[0-9a-f]+)(?P<frameworks>(?:\.(?:torch|mxnet|tf)\d+\.\w+)+)"
    r"\.(?P<device>cpu|rocm|cuda\d+\.\d+(?:\.nccl)?)\.(?P<mpi>[a-z]+\d*)"
)
OPTIONS = re.compile("HOROVOD_(GPU|CPU_OPERATIONS|CUDA|ROCM|NCCL|WITHOUT|BUILD|CMAKE)")
"""Variables that change what Horovod's build makes."""
FORMAT = 2
"""Raised when set-up builds otherwise from the same source and patches, so that cached wheels are not used again."""
COMMAND_TIMEOUT_S = 60


def describe(version: str, folder: Path) -> dict[str, object]:
    """What decides the content of a wheel that is built in this environment. folder: setup/horovod."""
    changes = b"".join(map(_changes, read_series(folder)))
    return {
        "horovod": version,
        # The letter keeps a version number from dropping zeros in front.
        "patches": f"p{hashlib.sha256(changes).hexdigest()[:7]}",
        "format": FORMAT,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "frameworks": {name: has for name in DISTRIBUTIONS if (has := _installed(DISTRIBUTIONS[name]))},
        "torch_cuda": _torch_cuda(),
        "device": _device(),
        "mpi": _mpi(_output("mpirun", "--version")),
        "options": {name: _option(os.environ[name]) for name in sorted(os.environ) if OPTIONS.match(name)},
    }


def read_series(folder: Path) -> list[Path]:
    """The patches of a folder in the order in which they apply, which its file `series` lists as Debian's do."""
    lines = (folder / "series").read_text().splitlines()
    return [folder / line for line in lines if line and not line.startswith("#")]


def _changes(patch: Path) -> bytes:
    """A patch without its header, of which nothing is built."""
    return patch.read_bytes().partition(b"\n--- ")[2]


def _installed(names: tuple[str, ...]) -> str:
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def _torch_cuda() -> str:
    """The CUDA version that PyTorch is built for, without importing it; empty where it is built for CPUs."""
    spec = importlib.util.find_spec("torch")
    if not spec or not spec.origin:
        return ""
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
    except OSError:
        return ""
    return "".join(re.findall(r"^cuda\b[^=\n]*=\s*'([\d.]+)'", text, re.M)[:1])


def _device() -> str:
    """What Horovod is asked to run its operations on: cpu, rocm, or a CUDA version, with NCCL or without."""
    asked = {os.environ[name] for name in os.environ if re.match("HOROVOD_GPU_[A-Z]+", name)}
    if os.environ.get("HOROVOD_GPU") == "ROCM":
        return "rocm"
    if not asked:
        return "cpu"
    home = os.environ.get("HOROVOD_CUDA_HOME")
    nvcc = _output(f"{home}/bin/nvcc" if home else "nvcc", "--version")
    cuda = _torch_cuda() or "".join(re.findall(r"release (\d+\.\d+)", nvcc)[:1]) or "0.0"
    return f"cuda{_major_minor(cuda)}{'.nccl' * ('NCCL' in asked)}"


def _mpi(text: str) -> str:
    """Kind and version of MPI, of what `mpirun --version` prints."""
    kinds = {"openmpi": r"\(Open ?MPI\) ([\d.]+)", "intelmpi": r"Intel\(R\) MPI.*?Version ([\d.]+)"}
    kinds["mpich"] = r"HYDRA[\s\S]*?Version:\s*([\d.]+)"
    for kind, pattern in kinds.items():
        if version := re.search(pattern, text):
            return f"{kind} {version[1]}"
    return "mpi"


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _option(value: str) -> str:
    """A variable's value. Of folders only a hash: a wheel for other machines holds no path of this one."""
    return f"hash {hashlib.sha256(value.encode()).hexdigest()[:16]}" if "/" in value else value


def _major_minor(version: str) -> str:
    """2.13 of 2.13.0+cpu; of a version before a release also what it precedes it by: 2.10a0, 2.16dev20261101."""
    parts = re.match(r"(\d+\.\d+)(?:\.\d+)*(?:\.?((?:a|b|rc|dev)\d+))?", version)
    return f"{parts[1]}{parts[2] or ''}" if parts else version


def label(description: dict) -> str:
    """The local version of a wheel that is built as described."""
    frameworks = [f"{SHORT.get(name, name)}{_major_minor(had)}" for name, had in description["frameworks"].items()]
    kind, _, version = description["mpi"].partition(" ")
    mpi = kind + version.partition(".")[0]
    return ".".join(["hvdtrain", description["patches"], *frameworks, description["device"], mpi])


def needed(description: dict) -> str:
    """A wheel that fits the description, for an error."""
    name = f"horovod-{description['horovod']}+{label(description)}"
    return f"{name} for Python {description['python']} on {description['machine']} with {description['libc']}"


def differences(version: str, description: dict) -> list[str]:
    """Why a Horovod of this version does not fit the description; empty where it does."""
    public, _, local = version.partition("+")
    parts = LOCAL.fullmatch(local)
    if not parts:
        return ["it was not built by `make wheel`"]
    reasons = []
    if public != description["horovod"]:
        reasons.append(f"it is Horovod {public}, not {description['horovod']}")
    if parts["patches"] != description["patches"]:
        reasons.append("it has other corrections than this version of hvdtrain")
    built = dict(re.findall(r"\.([a-z]+)(\d+\.\w+)", parts["frameworks"]))
    for name, had in description["frameworks"].items():
        wanted, has = _major_minor(had), built.get(SHORT.get(name, name))
        if has != wanted:
            reasons.append(f"it is built for {name} {has}, not {wanted}" if has else f"it is built without {name}")
    reasons += _device_differences(parts["device"], description)
    if parts["mpi"] != label(description).rpartition(".")[2]:
        reasons.append(f"it is built for {parts['mpi']}, not {description['mpi']}")
    return reasons


def _device_differences(device: str, description: dict) -> list[str]:
    asked = description["device"]
    if device == asked:
        return []
    # Whoever asks for nothing gets a build for GPUs only where PyTorch has the libraries that it needs.
    usable = asked if asked != "cpu" else f"cuda{description['torch_cuda']}"
    same_cuda = device.startswith("cuda") and device.split(".")[0] == usable.split(".")[0]
    if same_cuda and (device.endswith(".nccl") or not asked.endswith(".nccl")):
        return []
    return [f"it is built for {device}, not {asked}"]


def wheel_differences(name: str, description: dict) -> list[str]:
    """Why a wheel of this file name does not fit the description and the Python that runs."""
    from packaging.tags import sys_tags
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        _, version, _, tags = parse_wheel_filename(name)
    except InvalidWheelFilename:
        return ["its name is not that of a wheel"]
    reasons = differences(str(version), description)
    if not tags & frozenset(sys_tags()):
        python, _, system = name.removesuffix(".whl").split("-")[-3:]
        reasons.append(f"it is built for {python} on {system}")
    return reasons
