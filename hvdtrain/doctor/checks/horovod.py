"""Horovod and MPI: Horovod loads for each framework, uses the MPI of mpirun and mpi4py, and runs in two processes."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from hvdtrain.doctor import subprocesses
from hvdtrain.doctor.check import Finding, check, fail, ok, warn
from hvdtrain.doctor.checks.software import FRAMEWORKS, built, first_loadable
from hvdtrain.doctor.connected_job import wrong_size
from hvdtrain.doctor.context import CheckContext
from hvdtrain.doctor.probe import SMALL_BYTES
from hvdtrain.doctor.quick import has_module
from hvdtrain.doctor.subprocesses import Completed, error_line, first_line, probe_command
from hvdtrain.jobs.launchers import mpirun_here
from hvdtrain.system import stacks
from hvdtrain.system.stacks import framework_version, public_version

RECORD = "hvdtrain.json"
"""File next to Horovod's metadata, which set-up adds to its wheel."""


@check("software", "host")
def check_horovod(context: CheckContext) -> Iterator[Finding]:
    """Horovod's extension for each framework loads, and was built with the installed version of the framework"""
    if not has_module("horovod"):
        remedy = f"{stacks.repair_command()} (or train with --strategy single, ring or another without it)"
        yield fail("Horovod is not installed", remedy)
        return
    stack = stacks.installed_stack()
    built_with = _built_with()
    for name in FRAMEWORKS:
        if not has_module(name):
            continue
        answer = context.framework(name)
        if "horovod_error" in answer:
            if stack and name not in stack.frameworks and "has not been built" in answer["horovod_error"]:
                yield ok(f"Horovod was not built for {name}, which is not part of the stack {stack.name}")
            else:
                yield _cannot_load(name, answer, built_with.get(name, ""))
        elif "built" in answer:
            yield _compare_version(name, built_with.get(name, ""))
    if not shutil.which("horovodrun"):
        program = Path(sys.executable).with_name("horovodrun")
        remedy = f"export PATH={program.parent}:$PATH" if program.exists() else stacks.repair_command()
        yield warn("horovodrun is not on PATH", remedy)


def _cannot_load(name: str, answer: dict[str, Any], built_with: str) -> Finding:
    error = answer["horovod_error"]
    if "has not been built" in error:
        remedy = f"{stacks.repair_command()}, which builds it for the frameworks that are installed"
        return fail(f"Horovod was built without {name}", remedy)
    symbol = re.search(r"undefined symbol: \S+", error)
    # Horovod's message about another version is long, and the loader's error is at its end.
    reason = symbol.group() if symbol else first_line(error, 160)
    now = answer.get("version", "")  # with the build, such as +cu132, which package metadata may lack
    other = built_with and now and built_with != now
    versions = f"; it was built with {name} {built_with}, but {now} is installed" if other else ""
    if name == "torch" and "cuda" in answer and not versions:
        versions = _other_cuda(answer["cuda"])
    text = f"Horovod's extension for {name} does not load ({reason}){versions}"
    if "libmpi" in error or "libopen-" in error:
        remedy = f"add the MPI that Horovod was built with to LD_LIBRARY_PATH, or {stacks.repair_command()}"
        return fail(text, remedy)
    return fail(text, _rebuild())


def _other_cuda(installed: str | None) -> str:
    """installed: the CUDA version of the installed PyTorch; None if it is built for CPUs."""
    built_for = build_record().get("torch_cuda")
    if built_for is None or built_for == (installed or ""):
        return ""
    titles = [f"CUDA {version}" if version else "CPUs" for version in (built_for, installed)]
    return f"; it was built for a torch for {titles[0]}, but the installed one is for {titles[1]}"


def _rebuild() -> str:
    return f"{stacks.repair_command()}, which rebuilds Horovod for the installed versions"


def _compare_version(name: str, built_with: str) -> Finding:
    now, built = framework_version(name), stacks.numbers(built_with)[:2]  # releases of one minor version are compatible
    if now and built and stacks.numbers(now)[:2] != built:
        age = "newer" if stacks.numbers(now) > built else "older"
        text = f"{name} {now} is {age} than the {built_with} that Horovod was built with: it loads, but may crash"
        return warn(text, _rebuild())
    version = public_version("horovod")
    return ok(f"Horovod {version} for {name}" + (f", built with {built_with}" if built_with else ""))


def _built_with() -> dict[str, str]:
    """Versions of the frameworks when Horovod was built, from the file that its build leaves."""
    with contextlib.suppress(Exception):
        spec = importlib.util.find_spec("horovod")
        if spec and spec.submodule_search_locations:
            versions = json.loads(Path(spec.submodule_search_locations[0], "metadata.json").read_text())
            return {name: str(versions.get("pytorch" if name == "torch" else name) or "") for name in FRAMEWORKS}
    return dict(build_record().get("frameworks", {}))


def build_record() -> dict[str, Any]:
    """Where Horovod was built: `frameworks`, `torch_cuda`, `mpi`, ..., as setup/wheel_description.py describes one.

    Empty for a Horovod that set-up did not build.
    """
    with contextlib.suppress(OSError, ValueError, metadata.PackageNotFoundError):
        record = json.loads(metadata.distribution("horovod").read_text(RECORD) or "{}")
        return record if isinstance(record, dict) else {}
    return {}


def programs(name: str) -> list[Path]:
    """All programs of a name on PATH, the one that a shell starts first; each folder once."""
    paths: dict[Path, Path] = {}
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if path := shutil.which(name, path=folder or "."):
            paths.setdefault(Path(path).parent.resolve(), Path(path))
    return list(paths.values())


def identify(text: str) -> tuple[str, str]:
    """Vendor and version of an MPI, from the output of `mpirun --version` or the library's version string."""
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


def mpirun_version(context: CheckContext, path: Path) -> tuple[str, str]:
    return context.once(f"mpirun {path}", lambda: identify(context.run([str(path), "--version"], 10).text))


def is_open_mpi(context: CheckContext, mpirun: str) -> bool:
    """Whether this mpirun is Open MPI's, whose options others do not have."""
    return mpirun_version(context, Path(shutil.which(mpirun) or mpirun))[0] == "Open MPI"


@check("software", "host")
def check_mpi(context: CheckContext) -> Iterator[Finding]:
    """mpirun, Horovod and mpi4py use the same MPI"""
    mpiruns = programs("mpirun")
    library = _mpi4py(context)
    if mpiruns:
        yield _which_mpirun(context, mpiruns)
        yield from built_for_another_mpi(mpirun_version(context, mpiruns[0]))
    elif built(context).get("mpi") or "library" in library:
        text = "mpirun is not on PATH: jobs cannot be started over MPI"
        yield warn(text, f"export PATH=/path/to/mpi/bin:$PATH, or {stacks.repair_command()}")
    else:
        yield warn("no MPI: mpirun is not on PATH", f"{stacks.repair_command()}, or start jobs with horovodrun --gloo")
    if "library" not in library:
        text = f"mpi4py cannot be imported ({library['error']}): --strategy mpi is not available"
        yield warn(text, "pip install 'hvdtrain[mpi]'")
    elif mpiruns:
        yield _same_mpi(context, mpiruns[0], library)


def _which_mpirun(context: CheckContext, paths: list[Path]) -> Finding:
    names = [" ".join(filter(None, mpirun_version(context, path))) for path in paths]
    if len(paths) == 1:
        return ok(f"mpirun is {names[0]} at {paths[0]}")
    listed = ", ".join(f"{name} at {path}" for name, path in zip(names, paths, strict=True))
    remedy = f"keep only the one on PATH that Horovod was built with; after a change run {stacks.repair_command()}"
    return warn(f"{len(paths)} MPIs on PATH, of which the first is used: {listed}", remedy)


def built_for_another_mpi(mpirun: tuple[str, str]) -> Iterator[Finding]:
    """Horovod against the vendor and version of mpirun: another major version may load, but crash or hang."""
    vendor, version = mpirun
    built_vendor, _, built_version = str(build_record().get("mpi", "")).partition(" ")
    major, built_major = stacks.numbers(version)[:1], stacks.numbers(built_version)[:1]
    if vendor.replace(" ", "").lower() == built_vendor and major and built_major and major != built_major:
        age = "new" if major > built_major else "old"
        other = f"{vendor} {built_version}"
        text = f"mpirun is {vendor} {version}, too {age} for Horovod, which was built with {other}"
        yield warn(text, f"put the mpirun of {other} first on PATH, or {stacks.repair_command()}")


def _mpi4py(context: CheckContext) -> dict[str, Any]:
    if not has_module("mpi4py"):
        return {"error": "not installed"}
    answer, completed = context.probe("mpi4py", limit_s=20)
    return answer if "library" in answer else {"error": error_line(completed.err) or completed.reason()}


def _same_mpi(context: CheckContext, mpirun: Path, library: dict[str, Any]) -> Finding:
    of_mpirun, of_mpi4py = mpirun_version(context, mpirun), identify(library["library"])
    name = " ".join(of_mpi4py)
    if of_mpirun != of_mpi4py:
        text = f"mpirun is {' '.join(of_mpirun)}, but mpi4py uses {name}: every process would be rank 0 of 1"
        build = "pip install --no-binary mpi4py mpi4py"
        return fail(text, f"put the mpirun of {name} first on PATH, or build mpi4py for the other: {build}")
    framework = first_loadable(context)
    of_horovod = context.framework(framework)["libmpi"] if framework else ""
    if of_horovod and library["libmpi"] and Path(of_horovod).resolve() != Path(library["libmpi"]).resolve():
        text = f"Horovod uses {of_horovod}, but mpi4py uses {library['libmpi']}"
        return warn(text, f"set LD_LIBRARY_PATH so that both load the same library, or {stacks.repair_command()}")
    return ok(f"mpi4py uses the same MPI, {name}")


@check("jobs", "alone")
def check_slots(context: CheckContext) -> Iterator[Finding]:
    """this host has cores for the planned ranks (--ranks)"""
    cores = len(os.sched_getaffinity(0))
    if context.ranks > cores:
        text = f"{context.ranks} ranks on {cores} core(s) oversubscribe this host and slow each other down"
        yield warn(text, f"start at most {cores} ranks here, add hosts, or start without taskset")
    else:
        yield ok(f"{context.ranks} ranks on {cores} cores")


@check("jobs", "alone", measures=True)
def check_allreduce(context: CheckContext) -> Iterator[Finding]:
    """an allreduce by Horovod in two processes, over Gloo and over MPI"""
    name = first_loadable(context)
    if not name:
        return  # the check `horovod` reports it
    has = built(context)
    program = probe_command("collective", name, limit_s=subprocesses.RANK_LIMIT_S)
    horovodrun = shutil.which("horovodrun") or shutil.which(str(Path(sys.executable).with_name("horovodrun")))
    if has["gloo"] and horovodrun:
        # Without its cache, which holds what it found out about hosts for an hour.
        command = [horovodrun, "--gloo", "--disable-cache", "-np", "2", *program]
        yield _judge("horovodrun --gloo", context.run(command, 45))
    if has["mpi"] and shutil.which("mpirun"):
        command = mpirun_here(2) if is_open_mpi(context, "mpirun") else ["mpirun", "-np", "2"]
        yield _judge("mpirun", context.run([*command, *program], 45, HOROVOD_LOG_LEVEL="error"))


def _judge(launcher: str, completed: Completed) -> Finding:
    messages = subprocesses.read_messages(completed.out)
    if size := other_size(messages, 2):
        return wrong_size(launcher, 2, size, gloo="horovodrun" in launcher)
    results = [message for message in messages if "seconds" in message]
    if completed.status != 0 or len(results) != 2:
        text = f"{launcher}: an allreduce over 2 processes failed ({completed.reason()})"
        return fail(text, _job_remedy(completed))
    return measured(launcher, results)


def _job_remedy(completed: Completed) -> str:
    if "not enough slots" in completed.text:
        return "mpirun --oversubscribe"
    if completed.status is None or "SIGALRM" in completed.text:
        return "see the checks interfaces and host-name; horovodrun --network-interfaces lo"
    return "start a training job of two processes with HOROVOD_LOG_LEVEL=debug, and read its output"


def other_size(messages: list[dict[str, Any]], expected: int) -> int:
    """The size of the job that Horovod sees, from the messages of its probes; 0 if it is the expected one."""
    sizes = {message["size"] for message in messages if "local_rank" in message}
    return 0 if sizes <= {expected} else max(sizes)


def measured(launcher: str, results: list[dict[str, Any]]) -> Finding:
    """Latency and bandwidth on the slowest rank, from the results of all ranks."""
    size = len(results)
    correct = f"an allreduce over {size} processes is correct"
    if not all(result["correct"] for result in results):
        text = f"{launcher}: an allreduce over {size} processes gave a wrong sum"
        return fail(text, f"{stacks.repair_command()}; test the hosts' memory and network")
    seconds = {int(count): max(result["seconds"][count] for result in results) for count in results[0]["seconds"]}
    large = max(seconds)
    speed = f"{large >> 10:,} KiB at {large / seconds[large] / 1e9:.3g} GB/s"
    return ok(f"{launcher}: {correct}; 8 bytes in {seconds[SMALL_BYTES] * 1e3:.2f} ms, {speed}")
