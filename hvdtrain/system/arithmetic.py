"""What decides the bits of a computation besides its data: instruction sets, threads, and settings of libraries.

Libraries choose kernels by the processor's instruction sets, and cut sums by the number of threads. They read variables
of the environment when they are loaded or used first; `hold` sets these for all of them. docs/deterministic.md says
which variable acts where.
"""

from __future__ import annotations

import functools
import importlib
import os
import platform
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.system import launching, rank_info, resources, stacks
from hvdtrain.system.attempt import attempt

SLOWER = 1.1
"""A precision is slower than another one if its product takes this many times as long: less is chance."""
CPUINFO = Path("/proc/cpuinfo")
GPUS = Path("/proc/driver/nvidia/gpus")
"""A folder for each of NVIDIA's GPUs, whose file `information` has the model."""

AVX2 = frozenset(("avx2", "fma"))
AVX512 = AVX2 | {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}
INSTRUCTION_SETS = (
    ("amx", AVX512 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16"}),
    ("avx512_fp16", AVX512 | {"avx512_vnni", "avx512_bf16", "avx512_fp16"}),
    ("avx512_bf16", AVX512 | {"avx512_vnni", "avx512_bf16"}),
    ("avx512_vnni", AVX512 | {"avx512_vnni"}),
    ("avx512", AVX512),
    ("avx2_vnni", AVX2 | {"avx_vnni"}),
    ("avx2", AVX2),
)
"""Instruction sets by which libraries choose kernels, the best first, and the kernel's names of what they need."""

MKL_BRANCH, OPENBLAS_KERNELS, NUMPY_FEATURES = "MKL_CBWR", "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES"
_BEYOND_AVX512 = "AVX512_CLX,AVX512_CNL,AVX512_ICL,AVX512_SPR"
_SET_BY_ISA = {
    "ATEN_CPU_CAPABILITY": ("avx2", "avx512"),
    "ONEDNN_MAX_CPU_ISA": ("AVX2", "AVX512_CORE"),
    "DNNL_MAX_CPU_ISA": ("AVX2", "AVX512_CORE"),
    "MKL_ENABLE_INSTRUCTIONS": ("AVX2", "AVX512"),
    MKL_BRANCH: ("AVX2", "AVX512"),
    OPENBLAS_KERNELS: ("Haswell", "SkylakeX"),
    NUMPY_FEATURES: (f"AVX512F,AVX512CD,AVX512_SKX,X86_V4,{_BEYOND_AVX512}", _BEYOND_AVX512),
    "TF_ENABLE_ONEDNN_OPTS": ("0", "1"),  # by default on with AVX-512 only; its bf16 fails with oneDNN at AVX2
}
AT_MOST = {
    isa: {name: values[place] for name, values in _SET_BY_ISA.items()} for place, isa in enumerate(("avx2", "avx512"))
}
"""The variables that --isa sets; of NumPy's features, those that `at_most` finds."""
OPENMP = "OMP_NUM_THREADS"
THREADS = (OPENMP, "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
"""Variables with the number of threads of an operation."""
SHARE = "HVDTRAIN_THREADS"
"""The default of OMP_NUM_THREADS that a process has set, and those that it starts have from it."""
NOT_DYNAMIC = {"OMP_DYNAMIC": "FALSE", "MKL_DYNAMIC": "FALSE"}
"""Never fewer threads than asked for."""
DETERMINISTIC = {
    "NVIDIA_TF32_OVERRIDE": "0",
    "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0",
    "MXNET_ENFORCE_DETERMINISM": "1",
}
"""What --shards sets."""
# Without MKL_CBWR, MKL's results depend on the address of an array: a last layer of 10 outputs has other bits then.
DETERMINISTIC_UNLESS_SET = {MKL_BRANCH: "AUTO", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""What --shards sets where the user did not; ranks are compared."""
DECIDING = (
    *AT_MOST["avx2"],
    *DETERMINISTIC,
    *DETERMINISTIC_UNLESS_SET,
    *("ONEDNN_CPU_ISA_HINTS", "DNNL_CPU_ISA_HINTS", "ONEDNN_DEFAULT_FPMATH_MODE", "MKL_DEBUG_CPU_TYPE"),
    *("MXNET_MKLDNN_ENABLED", "MXNET_SUBGRAPH_BACKEND", "MXNET_SAFE_ACCUMULATION"),
    *("TF_XLA_FLAGS", "XLA_FLAGS", "GLIBC_TUNABLES"),
)
"""Variables by which libraries choose kernels."""
READERS = ("torch", "mxnet", "tensorflow")
"""Modules that read such variables, of which `set_too_late` tells."""

_held: dict[str, str] = {}
_defaults: dict[str, str] = {}
_late: dict[str, set[str]] = {module: set() for module in READERS}


class Processor(NamedTuple):
    """This host's processor. flags: its features, by the kernel's names."""

    model: str
    vendor: str
    flags: frozenset[str]


def read_processor(path: Path = CPUINFO) -> Processor:
    """The processor that a file such as /proc/cpuinfo describes; what it does not say is empty."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    values: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        values.setdefault(name.strip(), value.strip())
    flags = values.get("flags") or values.get("Features", "")  # the second on ARM
    vendor = values.get("vendor_id") or values.get("CPU implementer", "")
    return Processor(values.get("model name", platform.processor()), vendor, frozenset(flags.split()))


@functools.cache
def processor() -> Processor:
    return read_processor()


def best_instruction_set(flags: Iterable[str]) -> str:
    """The best of INSTRUCTION_SETS that a processor with these features has; else the machine's name."""
    flags = frozenset(flags)
    sve = " with SVE" if "sve" in flags else ""
    return next((name for name, needed in INSTRUCTION_SETS if needed <= flags), f"{platform.machine()}{sve}")


def instruction_set(isa: str) -> str:
    """The instruction set that libraries use with this --isa."""
    return best_instruction_set(processor().flags) if isa == "auto" else isa


def device_model(device: str) -> str:
    """`cpu`, or the model of this host's GPUs, where the driver tells it. device: as a learner names it."""
    if device == "cpu":
        return device
    lines = [line for path in sorted(GPUS.glob("*/information")) for line in path.read_text().splitlines()]
    return ", ".join(sorted({line.partition(":")[2].strip() for line in lines if line.startswith("Model:")})) or "gpu"


def libc() -> str:
    """The C library, such as `glibc 2.36`, whose functions frameworks call; empty where it does not tell."""
    return (os.confstr("CS_GNU_LIBC_VERSION") or "") if "CS_GNU_LIBC_VERSION" in os.confstr_names else ""


def fixed_threads(threads: int, shards: int) -> int:
    """The threads of an operation that --threads and --shards ask for; 0 if they leave them as they are."""
    return threads or int(bool(shards))


def hold(threads: int, isa: str, shards: int) -> None:
    """Hold all libraries at these threads and instruction sets, by variables; with --shards also deterministic.

    Without threads, and without a variable that says how many, they are those of `share_cores`.
    Call it before NumPy and frameworks are imported, as some read a variable only then; `set_too_late` has those that
    a module which was imported before may not have seen. A second call changes nothing. Raises UserError if this host
    does not have the instruction set.
    """
    fixed = at_most(isa)
    if count := fixed_threads(threads, shards):
        fixed |= {**dict.fromkeys(THREADS, str(count)), **NOT_DYNAMIC}
    else:
        share_cores()
    if shards:
        fixed |= DETERMINISTIC
    defaults = {**DETERMINISTIC_UNLESS_SET, **_openblas_kernels()} if shards else {}
    values = {**{name: os.environ.get(name, value) for name, value in defaults.items()}, **fixed}
    _set(values)
    _held.update({**defaults, **fixed})


def share_cores() -> None:
    """Let libraries compute with as many threads as this rank has cores for itself, unless a variable says how many.

    A variable that acts on one library takes precedence there. Defaults do not count: that of a rank whose program has
    launched this job, and torchrun's of 1 thread, whatever the cores. A second call changes nothing.
    """
    given = os.environ.get(OPENMP) or None
    if OPENMP in {*_held, *_defaults}:
        return
    of_torchrun = given == "1" and rank_info.detect().launcher == "torchrun" and launching.has_default(OPENMP)
    if given in (None, os.environ.get(SHARE)) or of_torchrun:
        for name in (OPENMP, SHARE):
            set_default(name, str(resources.cores_of_rank()))


def set_default(name: str, value: str) -> None:
    """Set a variable that the user has not set; `given_environment` is without it."""
    _set({name: value})
    _defaults[name] = value


def _set(values: dict[str, str]) -> None:
    changed = {name for name, value in values.items() if os.environ.get(name) != value}
    for module in READERS:
        if module in sys.modules:
            _late[module] |= changed
    os.environ.update(values)


def default_threads() -> int:
    """The threads of `share_cores`; 0 where a variable or an option says how many."""
    return openmp_threads() if OPENMP in _defaults and os.environ.get(OPENMP) == _defaults[OPENMP] else 0


def given_environment() -> dict[str, str]:
    """The environment without defaults of this process, for jobs that it starts: their ranks have their own."""
    return {name: value for name, value in os.environ.items() if _defaults.get(name) != value}


def at_most(isa: str) -> dict[str, str]:
    """The variables that --isa sets on this host. Raises UserError if it does not have the instruction set."""
    if isa == "auto":
        return {}
    if not dict(INSTRUCTION_SETS)[isa] <= processor().flags:
        raise _missing(isa)
    names, known = AT_MOST[isa][NUMPY_FEATURES].split(","), _features_of_numpy()
    return {**AT_MOST[isa], NUMPY_FEATURES: ",".join(name for name in names if name in known)}


def _features_of_numpy() -> set[str]:
    """The features that NumPy can disable here: it warns of others, which its version or the processor does not have.

    It must not be imported before they are set, and those that it has disabled already stay so.
    """
    if "numpy" in sys.modules:
        return {*_usable_features(), *os.environ.get(NUMPY_FEATURES, "").split(",")}

    def report() -> None:
        os.environ.pop(NUMPY_FEATURES, None)
        print(*_usable_features())

    return {*attempt(report).output.split()}


def _usable_features() -> list[str]:
    core = "numpy._core" if stacks.numbers(stacks.public_version("numpy")) >= (2,) else "numpy.core"
    module = importlib.import_module(f"{core}._multiarray_umath")
    return [name for name in module.__cpu_dispatch__ if module.__cpu_features__[name]]


def _missing(isa: str) -> UserError:
    best = best_instruction_set(processor().flags)
    remedy = f"use --isa {best}" if best in AT_MOST else "leave it out"
    return UserError(
        f"--isa {isa}: {rank_info.host_name()} has no such instructions, its best instruction set is {best}",
        f"{remedy}, or train on hosts that have them",
        option="isa",
    )


def _openblas_kernels() -> dict[str, str]:
    """OpenBLAS's kernels for the best instruction set; by itself it has others for AMD's processors."""
    best = best_instruction_set(processor().flags)
    family = next((name for name in ("avx512", "avx2") if best.startswith(name)), "avx512" if best == "amx" else "")
    return {OPENBLAS_KERNELS: AT_MOST[family][OPENBLAS_KERNELS]} if family else {}


def set_too_late(module: str) -> frozenset[str]:
    """The variables that `hold` changed after this module was imported."""
    return frozenset(_late[module])


def variables() -> dict[str, str]:
    """The variables of DECIDING that are set, without those that have the value of `hold`."""
    given = {name: os.environ[name] for name in DECIDING if name in os.environ}
    return {name: value for name, value in given.items() if _held.get(name) != value}


def openmp_threads() -> int:
    """The threads of OMP_NUM_THREADS, which may be a list: the first of it. 0 where it is not set or not valid."""
    given = re.fullmatch(r"\s*([0-9]{1,9})\s*(,\s*[0-9]{1,9}\s*)*", os.environ.get(OPENMP, ""), re.ASCII)
    return int(given[1]) if given else 0


def threads_by_variables() -> int:
    """The threads of an operation by the environment, else by the cores that this process may use."""
    return openmp_threads() or len(os.sched_getaffinity(0))
