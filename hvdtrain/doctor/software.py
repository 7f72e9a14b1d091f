"""Python, the frameworks, Horovod and MPI: are they there, do they load, do they go together."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from hvdtrain import environ
from hvdtrain.doctor import processes
from hvdtrain.doctor.findings import (
    FRAMEWORKS,
    Finding,
    Setting,
    check,
    fail,
    first_line,
    ok,
    probe_words,
    warn,
)
from hvdtrain.doctor.processes import Done
from hvdtrain.errors import UserError
from hvdtrain.launch.words import mpirun_here

PINS = Path(__file__).parents[2] / "setup" / "constraints.txt"
SETUP = "make setup"
ANEW = f"rm -f .venv/.hvdtrain-horovod .venv/.hvdtrain-setup && {SETUP}, which builds Horovod anew"
EXTRAS = {"torch": "pytorch", "mxnet": "mxnet", "tensorflow": "tensorflow"}
DISTRIBUTIONS = {
    "torch": ("torch",),
    "mxnet": ("mxnet", "mxnet-cu112"),
    "tensorflow": ("tensorflow-cpu", "tensorflow"),
}
NUMPY_LIMIT = (1, 24)
"""MXNet 1.9.1 uses numpy.bool, which this version removed."""
LISTED = 6
"""Names in one sentence at most."""


@check("software", "host")
def check_python(setting: Setting) -> Iterator[Finding]:
    """the Python that runs, and its environment"""
    version = platform.python_version()
    if not (3, 10) <= sys.version_info[:2] < (3, 12):
        yield fail(
            f"Python {version} is not 3.10 or 3.11, which MXNet and Horovod need", f"BASE_PYTHON=python3.11 {SETUP}"
        )
        return
    yield ok(f"Python {version} at {sys.executable}")


@check("software", "host")
def check_versions(setting: Setting) -> Iterator[Finding]:
    """versions of packages against setup/constraints.txt"""
    try:
        pins = read_pins(PINS.read_text())
    except OSError:
        yield ok("no setup/constraints.txt beside the package: versions were not compared")
        return
    found = {name: installed(name) for name in pins}
    others = [
        f"{name} {version} (pinned {pins[name]})"
        for name, version in found.items()
        if version and version.split("+")[0] != pins[name]
    ]
    if others:
        more = f" and {len(others) - LISTED} more" if len(others) > LISTED else ""
        text = f"other versions than hvdtrain is tested with: {', '.join(others[:LISTED])}{more}"
        yield warn(text, f"{SETUP}, or pip install -c setup/constraints.txt -e .")
    else:
        yield ok(f"all {sum(map(bool, found.values()))} packages have the pinned versions")


def read_pins(text: str) -> dict[str, str]:
    """Name and version of each `name==version` line."""
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;#]+)", text, re.MULTILINE))


def installed(name: str) -> str:
    """The version of a distribution; empty where it is not installed."""
    try:
        return metadata.version(name) or ""
    except metadata.PackageNotFoundError:
        return ""


def framework_version(name: str) -> str:
    return next(filter(None, map(installed, DISTRIBUTIONS[name])), "")


def there(name: str) -> bool:
    """Whether Python finds a module of this name; does not import it."""
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec(name) is not None
    return False


@check("software", "host")
def check_numpy(setting: Setting) -> Iterator[Finding]:
    """NumPy, and whether MXNet can live with it"""
    version = installed("numpy")
    if not version:
        yield fail("NumPy is not installed", SETUP)
    elif there("mxnet") and tuple(map(int, version.split(".")[:2])) >= NUMPY_LIMIT:
        yield fail(f"NumPy {version} is too new for MXNet 1.9.1, which uses numpy.bool", "pip install 'numpy<1.24'")
    else:
        yield ok(f"NumPy {version}")


@check("software", "host")
def check_frameworks(setting: Setting) -> Iterator[Finding]:
    """each framework imports"""
    missing = [name for name in FRAMEWORKS if not there(name)]
    if len(missing) == len(FRAMEWORKS):
        yield fail("none of the frameworks is installed", SETUP)
        return
    for name in FRAMEWORKS:
        if name in missing:
            yield warn(f"{name} is not installed", f"pip install 'hvdtrain[{EXTRAS[name]}]', then {SETUP} for Horovod")
            continue
        told = setting.framework(name)
        if "framework_error" in told:
            error = told["framework_error"]
            yield fail(f"{name} is installed and does not import ({first_line(error)})", _import_remedy(name, error))
        else:
            yield ok(f"{name} {told['version']}")


def _import_remedy(name: str, error: str) -> str:
    if "numpy" in error and ("has no attribute" in error or "_ARRAY_API" in error):
        return "pip install 'numpy<1.24'"
    if re.search(r"lib(cuda|cudart|cudnn|cublas|nccl|nvrtc)\b", error):
        return f"install the {name} that is built for this machine's CUDA, or for the CPU: see setup/constraints.txt"
    system = re.search(r"lib(quadmath|gomp|gfortran)\.so\.(\d+)", error)
    if system:  # the compiler's libraries, which Debian names with their number
        return f"apt-get install lib{system[1]}{system[2]}"
    if "GLIBC" in error:
        return "use a newer operating system or image: this one's C or C++ library is too old"
    if "SIGILL" in error:
        return f"install a {name} built for this processor"
    return f"pip install --force-reinstall --no-deps -c setup/constraints.txt {DISTRIBUTIONS[name][0]}"


@check("software", "host")
def check_horovod(setting: Setting) -> Iterator[Finding]:
    """Horovod's extension for each framework loads, and was built with its version"""
    if not there("horovod"):
        yield fail("Horovod is not installed", f"{SETUP} (or train with --strategy single, ring or another without it)")
        return
    built_with = _built_with()
    for name in FRAMEWORKS:
        if not there(name):
            continue
        told = setting.framework(name)
        if "horovod_error" in told:
            yield _broken(name, told["horovod_error"], built_with.get(name, ""))
        elif "built" in told:
            yield _version(name, built_with.get(name, ""))
    command = shutil.which("horovodrun")
    if not command:
        beside = Path(sys.executable).with_name("horovodrun")
        remedy = f"export PATH={beside.parent}:$PATH" if beside.exists() else SETUP
        yield warn("horovodrun is not on PATH", remedy)


def _broken(name: str, error: str, built_with: str) -> Finding:
    if "has not been built" in error:
        return fail(
            f"Horovod was built without {name}", f"{SETUP}, which builds it for the frameworks that are installed"
        )
    symbol = re.search(r"undefined symbol: \S+", error)
    # Horovod's own words of another version are long, and what the loader says is at their end.
    reason = symbol.group() if symbol else first_line(error, 160)
    now = framework_version(name)
    other = built_with and now and built_with != now
    before = f"; it was built with {name} {built_with}, and {now} is installed" if other else ""
    text = f"Horovod's extension for {name} does not load ({reason}){before}"
    if "libmpi" in error or "libopen-" in error:
        return fail(text, f"put the MPI it was built with on LD_LIBRARY_PATH, or {SETUP}")
    return fail(text, ANEW)


def _version(name: str, built_with: str) -> Finding:
    now = framework_version(name)
    if built_with and now and built_with.split("+")[0] != now.split("+")[0]:
        text = f"Horovod was built with {name} {built_with}, and {now} is installed: it loads, and may crash"
        return warn(text, f"{SETUP}, which builds Horovod anew for another version")
    return ok(f"Horovod {installed('horovod')} for {name}" + (f", built with {built_with}" if built_with else ""))


def _built_with() -> dict[str, str]:
    """Versions of the frameworks when Horovod was built, from the file that its build leaves."""
    with contextlib.suppress(Exception):
        spec = importlib.util.find_spec("horovod")
        if spec and spec.submodule_search_locations:
            found = json.loads(Path(spec.submodule_search_locations[0], "metadata.json").read_text())
            return {name: str(found.get("pytorch" if name == "torch" else name) or "") for name in FRAMEWORKS}
    return {}


def loads(setting: Setting, name: str) -> bool:
    """Whether Horovod loads for a framework here."""
    return there("horovod") and there(name) and "built" in setting.framework(name)


def first_loadable(setting: Setting) -> str:
    """The first framework for which Horovod loads, others are not asked; empty where it loads for none."""
    return next((name for name in FRAMEWORKS if loads(setting, name)), "")


@check("software", "host")
def check_controllers(setting: Setting) -> Iterator[Finding]:
    """what Horovod was built with: Gloo, MPI, NCCL"""
    name = first_loadable(setting)
    if not name:
        return  # said by the check `horovod`
    built = setting.framework(name)["built"]
    if not built["gloo"] and not built["mpi"]:
        yield fail("Horovod has neither Gloo nor MPI", f"{SETUP}, which builds it with both")
        return
    for what, starts in (("gloo", "horovodrun --gloo"), ("mpi", "horovodrun --mpi and mpirun")):
        if not built[what]:
            text = f"Horovod was built without {what.upper() if what == 'mpi' else 'Gloo'}: {starts} cannot be used"
            yield warn(text, f"HOROVOD_WITH_{what.upper()}=1 {SETUP}")
    have = [label for label, what in (("Gloo", "gloo"), ("MPI", "mpi"), ("NCCL", "nccl")) if built[what]]
    yield ok(f"Horovod has {', '.join(have)}" + ("" if built["nccl"] else " (no NCCL: for CPUs)"))


# MPI.


def programs(name: str) -> list[Path]:
    """All programs of a name on PATH, first the one that a shell takes; each folder once."""
    found: dict[Path, Path] = {}
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = Path(folder or ".", name)
        if path.is_file() and os.access(path, os.X_OK):
            found.setdefault(path.parent.resolve(), path)
    return list(found.values())


def identify(text: str) -> tuple[str, str]:
    """Vendor and version of an MPI, from what `mpirun --version` or the library says."""
    for vendor, pattern in (
        ("Open MPI", r"Open ?MPI\)?[ v]*(\d+\.\d+\.?\d*)"),
        ("Intel MPI", r"Intel\(R\) MPI Library.*?(\d+\.\d+)"),
        ("MVAPICH", r"MVAPICH2?\D*(\d+\.\d+\.?\d*)"),
        ("MPICH", r"(?:HYDRA|MPICH)(?:.|\n)*?(\d+\.\d+\.?\d*)"),
    ):
        match = re.search(pattern, text, re.IGNORECASE)
        if match:
            return vendor, match.group(1)
    return "an unknown MPI", ""


def mpirun_version(setting: Setting, path: Path) -> tuple[str, str]:
    """Vendor and version of an mpirun."""

    def ask() -> tuple[str, str]:
        done = setting.run([str(path), "--version"], 10)
        return identify(done.out + done.err)

    return setting.once(f"mpirun {path}", ask)


def _mpi_built(setting: Setting) -> bool:
    name = first_loadable(setting)
    return bool(name and setting.framework(name)["built"]["mpi"])


@check("software", "host")
def check_mpi(setting: Setting) -> Iterator[Finding]:
    """which MPI: mpirun, Horovod's and mpi4py's are one"""
    found = programs("mpirun")
    library = _mpi4py(setting)
    if not found:
        if _mpi_built(setting) or "library" in library:
            yield warn(
                "mpirun is not on PATH: jobs over MPI cannot be started",
                f"export PATH=/path/to/mpi/bin:$PATH, or {SETUP}",
            )
        else:
            yield warn("no MPI: mpirun is not on PATH", f"{SETUP}, or start by horovodrun --gloo")
    else:
        yield from _several(setting, found)
    if "library" not in library:
        yield warn(f"mpi4py does not import ({library['error']}): no --strategy mpi", "pip install 'hvdtrain[mpi]'")
    elif found:
        yield from _same_mpi(setting, found[0], library)


def _several(setting: Setting, found: list[Path]) -> Iterator[Finding]:
    names = [" ".join(filter(None, mpirun_version(setting, path))) for path in found]
    if len(found) > 1:
        others = ", ".join(f"{name} at {path}" for name, path in zip(names, found, strict=True))
        remedy = "leave the one on PATH that Horovod was built with, and make setup after a change"
        yield warn(f"{len(found)} MPIs on PATH, of which the first is taken: {others}", remedy)
    else:
        yield ok(f"mpirun is {names[0]} at {found[0]}")


def _mpi4py(setting: Setting) -> dict[str, Any]:
    def ask() -> dict[str, Any]:
        if not there("mpi4py"):
            return {"error": "not installed"}
        told, done = setting.probe("mpi4py", limit_s=20)
        return told if "library" in told else {"error": first_line(processes.telling(done.err)) or done.reason()}

    return setting.once("mpi4py", ask)


def _same_mpi(setting: Setting, mpirun: Path, library: dict[str, Any]) -> Iterator[Finding]:
    ours, theirs = mpirun_version(setting, mpirun), identify(library["library"])
    if ours != theirs:
        text = f"mpirun is {' '.join(ours)}, and mpi4py uses {' '.join(theirs)}: every process would be rank 0 of 1"
        yield fail(
            text,
            f"put the mpirun of {' '.join(theirs)} first on PATH, "
            "or build mpi4py for the other: pip install --no-binary mpi4py mpi4py",
        )
        return
    name = first_loadable(setting)
    horovods = setting.framework(name)["libmpi"] if name else ""
    if horovods and library["libmpi"] and Path(horovods).resolve() != Path(library["libmpi"]).resolve():
        text = f"Horovod uses {horovods}, and mpi4py {library['libmpi']}"
        yield warn(text, f"set LD_LIBRARY_PATH so that both find one, or {SETUP}")
        return
    yield ok(f"mpi4py uses the same, {' '.join(theirs)}")


@check("jobs", "alone")
def check_root(setting: Setting) -> Iterator[Finding]:
    """mpirun starts for this user: Open MPI refuses root"""
    mpirun = shutil.which("mpirun")
    if os.geteuid() != 0 or not mpirun:
        return
    done = setting.run([mpirun, "-np", "1", "true"], 20)
    if done.status and re.search(r"as\s+root", done.err + done.out):
        text = "you are root, and mpirun refuses to run as root"
        remedy = (
            "mpirun --allow-run-as-root, horovodrun --mpi --mpi-args=--allow-run-as-root, "
            "or export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
        )
        yield warn(text, remedy)
    elif done.status != 0:
        yield fail(f"mpirun cannot start a program ({done.reason()})", _mpirun_remedy(done))
    else:
        yield ok("mpirun runs as root")


def _mpirun_remedy(done: Done) -> str:
    text = done.err + done.out
    if "shmem" in text or "session" in text.lower():
        return "look whether /tmp and /dev/shm are writable and have room; export TMPDIR=/another/folder"
    return f"run mpirun -np 1 hostname and read what it says; {SETUP} mends an MPI in the environment"


def mpirun_words(setting: Setting, *more: str) -> list[str]:
    """mpirun as this user must call it."""
    mpirun = shutil.which("mpirun") or "mpirun"
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 and _is_open_mpi(setting, mpirun) else []
    return [mpirun, *as_root, *more]


def _is_open_mpi(setting: Setting, mpirun: str) -> bool:
    return mpirun_version(setting, Path(mpirun))[0] == "Open MPI"


@check("jobs", "alone")
def check_slots(setting: Setting) -> Iterator[Finding]:
    """this host takes as many ranks as are planned (--ranks)"""
    cores = len(os.sched_getaffinity(0))
    crowded = setting.ranks > cores
    if crowded:
        text = f"{setting.ranks} ranks on {cores} core(s): they oversubscribe this host and wait for each other"
        yield warn(text, f"start at most {cores} ranks here, or add hosts")
    if shutil.which("mpirun"):
        done = setting.run(mpirun_words(setting, "-np", str(setting.ranks), "true"), 30)
        if done.status and "not enough slots" in done.err + done.out:
            text = f"mpirun has not enough slots on this host for {setting.ranks} ranks"
            yield fail(text, "mpirun --oversubscribe, or name the slots: -H host1:2,host2:2, or a --hostfile")
            return
    if not crowded:
        yield ok(f"{setting.ranks} ranks on {cores} cores")


# Two processes, for real.


@check("jobs", "alone")
def check_allreduce(setting: Setting) -> Iterator[Finding]:
    """two processes add up by Horovod, over Gloo and over MPI"""
    name = first_loadable(setting)
    if not name:
        return  # said by the check `horovod`
    built = setting.framework(name)["built"]
    words = probe_words("collective", name, limit_s=30)
    horovodrun = shutil.which("horovodrun") or shutil.which(str(Path(sys.executable).with_name("horovodrun")))
    if built["gloo"] and horovodrun:
        # Without its cache, which keeps what it found of hosts for an hour.
        started = [horovodrun, "--gloo", "--disable-cache", "-np", "2", *words]
        yield judge("horovodrun --gloo", setting.run(started, 45))
    if built["mpi"] and shutil.which("mpirun"):
        here = mpirun_here(2)
        polite = here[here.index("-np") :] if _is_open_mpi(setting, "mpirun") else ["-np", "2"]
        yield judge("mpirun", setting.run([*mpirun_words(setting, *polite), *words], 45, HOROVOD_LOG_LEVEL="error"))


def judge(launcher: str, done: Done, promised: int = 2) -> Finding:
    """What a job of `promised` probes showed."""
    told = processes.said(done.out)
    sizes = {one["size"] for one in told if "local_rank" in one}
    if sizes and sizes != {promised}:
        return alone(launcher, promised, max(sizes), gloo="horovodrun" in launcher)
    results = [one for one in told if "seconds" in one]
    if done.status != 0 or len(results) != promised:
        return fail(f"{launcher}: an allreduce of {promised} processes failed ({done.reason()})", _job_remedy(done))
    return measured(launcher, results, promised)


def alone(launcher: str, promised: int, size: int, gloo: bool) -> Finding:
    """Horovod does not see the launcher's processes. gloo: they were to meet over Gloo, else by MPI."""
    each = "every process is rank 0 and would train alone" if size == 1 else f"Horovod sees {size}"
    remedy = (
        f"unset HOROVOD_CONTROLLER and HOROVOD_CPU_OPERATIONS; see horovodrun --check-build: {SETUP} builds Horovod "
        f"with {'Gloo' if gloo else 'MPI; take the mpirun of the MPI that it was built with'}"
    )
    if launcher.endswith("srun") and not gloo:
        remedy = (
            "python -m hvdtrain launch srun, which meets over Gloo; or srun --mpi=pmix, where the site's MPI and Slurm "
            "have it"
        )
    return fail(f"{launcher} started {promised} processes, but {each}", remedy)


def over_gloo() -> bool:
    """Whether the launcher told Gloo where this job's ranks meet."""
    return "HOROVOD_GLOO_RENDEZVOUS_ADDR" in os.environ


def controlled(launcher: str) -> str:
    """A launcher's name with what it meets by: horovodrun may use MPI too, but then mpirun's variables came first."""
    return "horovodrun --gloo" if launcher == "horovodrun" else launcher


def measured(launcher: str, results: list[dict[str, Any]], size: int) -> Finding:
    """Latency and bandwidth, from the rank that took longest."""
    if not all(one["right"] for one in results):
        return fail(
            f"{launcher}: an allreduce of {size} processes gave a wrong sum", f"{SETUP}; look at memory and network"
        )
    small = max(one["seconds"]["8"] for one in results)
    large_bytes = 16 << 20
    large = max(one["seconds"][str(large_bytes)] for one in results)
    speed = f"8 bytes in {small * 1e3:.2f} ms, 16 MiB at {large_bytes / large / 1e9:.2f} GB/s"
    return ok(f"{launcher}: {size} processes add up rightly; {speed}")


def _job_remedy(done: Done) -> str:
    text = done.err + done.out
    if re.search(r"as\s+root", text):
        return "mpirun --allow-run-as-root"
    if "not enough slots" in text:
        return "mpirun --oversubscribe"
    if done.status is None or "SIGALRM" in text:
        return "look at the checks interfaces and host-name; horovodrun --network-interfaces lo"
    return "start training of two processes by hand with HOROVOD_LOG_LEVEL=debug, and read what it says"


# Variables.

# Read by Horovod 0.28.1, at run time or where it is built.
NAMES = """
ADASUM_MPI_CHUNK_SIZE AUTOTUNE AUTOTUNE_BAYES_OPT_MAX_SAMPLES AUTOTUNE_GAUSSIAN_PROCESS_NOISE AUTOTUNE_LOG
AUTOTUNE_STEPS_PER_SAMPLE AUTOTUNE_WARMUP_SAMPLES BATCH_D2D_MEMCOPIES BUILD_ARCH_FLAGS BUILD_CUDA_CC_LIST
CACHE_CAPACITY CCL_BGT_AFFINITY CCL_CACHE CCL_FIN_THREADS CMAKE CONTROLLER CPU_OPERATIONS CROSS_RANK CROSS_SIZE
CUDA_HOME CUDA_INCLUDE CUDA_LIB CYCLE_TIME DISABLE_GROUP_FUSION DYNAMIC_PROCESS_SETS ELASTIC ELASTIC_TIMEOUT
ENABLE_ASYNC_COMPLETION ENABLE_XLA_OPS FUSION_THRESHOLD GLOO_IFACE GLOO_RENDEZVOUS_ADDR GLOO_RENDEZVOUS_PORT
GLOO_TIMEOUT_SECONDS GPU GPU_ALLGATHER GPU_ALLREDUCE GPU_ALLTOALL GPU_BROADCAST GPU_OPERATIONS GPU_REDUCESCATTER
HIERARCHICAL_ALLGATHER HIERARCHICAL_ALLREDUCE HOSTNAME LOCAL_RANK LOCAL_SIZE LOG_HIDE_TIME LOG_LEVEL
MPI_THREADS_DISABLE NCCL_HOME NCCL_INCLUDE NCCL_LIB NCCL_LINK NUM_NCCL_STREAMS OPERATION_TIMEOUT RANK ROCM_HOME
SECRET_KEY SIZE SPARK_PYTHONPATH SPARK_START_TIMEOUT SPARK_USE_LOCAL_RANK_GPU_INDEX SPARK_WORK_DIR
STALL_CHECK_DISABLE STALL_CHECK_TIME_SECONDS STALL_SHUTDOWN_TIME_SECONDS START_TIMEOUT THREAD_AFFINITY TIMELINE
TIMELINE_MARK_CYCLES TORUS_ALLREDUCE WITHOUT_GLOO WITHOUT_MPI WITHOUT_MXNET WITHOUT_PYTORCH WITHOUT_TENSORFLOW
WITH_GLOO WITH_MPI WITH_MXNET WITH_PYTORCH WITH_TENSORFLOW
"""
HOROVOD_VARIABLES = frozenset(f"HOROVOD_{name}" for name in NAMES.split())
CHOICES = {"HOROVOD_CONTROLLER": ("gloo", "mpi"), "HOROVOD_CPU_OPERATIONS": ("gloo", "mpi", "ccl")}
NUMBERS = (
    "HOROVOD_CYCLE_TIME",
    "HOROVOD_FUSION_THRESHOLD",
    "HOROVOD_CACHE_CAPACITY",
    "HOROVOD_STALL_CHECK_TIME_SECONDS",
)


@check("software", "rank")
def check_variables(setting: Setting) -> Iterator[Finding]:
    """HOROVOD_* variables and TF_CONFIG, names and values"""
    problems = [*_launcher(), *_names(), *_values(), *contradictions(setting)]
    yield from problems
    if not problems:
        count = sum(name.startswith("HOROVOD_") for name in os.environ)
        yield ok(f"{count} HOROVOD_* variable(s) set, and none that is unknown or contradicts another")


def _launcher() -> Iterator[Finding]:
    config = os.environ.get(environ.TF_CONFIG)
    if config is not None and not config.strip():
        yield fail("TF_CONFIG is set and empty, which breaks every strategy of TensorFlow", "unset TF_CONFIG")
    elif config:
        try:
            environ.tf_config(os.environ)
        except UserError as error:
            yield fail(*_split(error))
            return
    try:
        environ.place()
    except UserError as error:
        if "TF_CONFIG" not in str(error):
            yield fail(*_split(error))


def _split(error: UserError) -> tuple[str, str]:
    """The sentence and the remedy of an error, which a semicolon or the last colon parts."""
    text = str(error)
    for mark in ("; ", ": "):
        if mark in text:
            reason, _, remedy = text.rpartition(mark)
            return reason, remedy
    return text, "unset it"


def _names() -> Iterator[Finding]:
    for name in sorted(os.environ):
        if name.startswith("HOROVOD_") and name not in HOROVOD_VARIABLES:
            close = difflib.get_close_matches(name, HOROVOD_VARIABLES, 1, 0.8)
            remedy = f"did you mean {close[0]}? unset {name}" if close else f"unset {name}"
            yield warn(f"{name} is no variable of Horovod: it has no effect", remedy)


def _values() -> Iterator[Finding]:
    for name, choices in CHOICES.items():
        value = os.environ.get(name)
        if value is not None and value.lower() not in choices:
            yield fail(f"{name}={value} is none of {', '.join(choices)}", f"unset {name}")
    for name in NUMBERS:
        value = os.environ.get(name)
        if value is not None and not re.fullmatch(r"\d+(\.\d+)?", value.strip()):
            yield fail(f"{name}={value} is no number", f"unset {name}")


def contradictions(setting: Setting) -> Iterator[Finding]:
    """Variables that cannot both be true, or that are against the launcher."""
    controller = os.environ.get("HOROVOD_CONTROLLER", "").lower()
    operations = os.environ.get("HOROVOD_CPU_OPERATIONS", "").lower()
    if setting.in_job and controller == "gloo" and not over_gloo():
        text = f"HOROVOD_CONTROLLER=gloo under {setting.place.launcher}, which gives Gloo no place to meet"
        yield fail(text, "unset HOROVOD_CONTROLLER, or start by horovodrun --gloo")
    elif setting.in_job and controller == "mpi" and over_gloo():
        text = f"HOROVOD_CONTROLLER=mpi under {controlled(setting.place.launcher)}: every process would be rank 0 of 1"
        yield fail(text, "unset HOROVOD_CONTROLLER, or start by mpirun")
    elif controller == "gloo" and operations == "mpi":
        text = "HOROVOD_CONTROLLER=gloo and HOROVOD_CPU_OPERATIONS=mpi contradict each other: without MPI's controller "
        yield fail(text + "there is no MPI", "unset HOROVOD_CPU_OPERATIONS")
    if os.environ.get("HOROVOD_TIMELINE") and not os.access(Path(os.environ["HOROVOD_TIMELINE"]).parent, os.W_OK):
        text = f"HOROVOD_TIMELINE={os.environ['HOROVOD_TIMELINE']} is in a folder that cannot be written to"
        yield warn(text, "unset HOROVOD_TIMELINE, or give a file in another folder")
