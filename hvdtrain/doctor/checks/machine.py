"""This machine: its precision, the folder of runs, its name, and other hosts over ssh."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdtrain.doctor.check import AGAIN, Finding, check, fail, ok, warn
from hvdtrain.doctor.context import CheckContext
from hvdtrain.doctor.quick import has_module
from hvdtrain.doctor.subprocesses import Completed
from hvdtrain.errors import UserError
from hvdtrain.system.arithmetic import SLOWER
from hvdtrain.system.network import HOST_NAME
from hvdtrain.system.text import format_bytes

PRECISION_FRAMEWORKS = ("torch", "tensorflow")
"""Frameworks whose products are measured, the quickest to import first."""
SLOW_LOOKUP_S = 2.0
FREE_MIN, FREE = 100 << 20, 1 << 30
"""Free bytes on the disk of runs: below the first, no run can be written; below the second, space is low."""


@check("machine", "host")
def check_load(context: CheckContext) -> Iterator[Finding]:
    """other programs leave cores free: read before all other checks, which then warn of what takes too long"""
    if busy := context.busy():
        yield warn(f"{busy}, so times say little", f"end other programs, or {AGAIN}")
    else:
        yield ok(f"{context.load:.1f} processes for {os.cpu_count()} core(s), on average of the last minute")


@check("machine", "host", measures=True)
def check_precision(context: CheckContext) -> Iterator[Finding]:
    """whether this processor is faster in fp32 or in bf16"""
    name = next((name for name in PRECISION_FRAMEWORKS if has_module(name)), "")
    if not name:
        return
    answer, completed = context.probe("products", name, limit_s=30)
    if not answer.keys() >= {"fp32", "bf16"}:
        yield warn(f"{name} cannot multiply matrices in both precisions ({completed.reason()})", "train in fp32")
        return
    full, reduced = 1000 * answer["fp32"], 1000 * answer["bf16"]
    ratio = full / reduced
    faster = "as fast in fp32 as in bf16" if 1 / SLOWER < ratio < SLOWER else "faster in fp32"
    faster = "faster in bf16 (--precision bf16)" if ratio >= SLOWER else faster
    times = f"a product in {name} takes {full:.2g} ms in fp32 and {reduced:.2g} ms in bf16"
    yield ok(f"without a GPU, this machine is {faster}: {times}")


def existing_folder(folder: Path) -> Path:
    """The folder as an absolute path, or its nearest ancestor that exists."""
    folder = Path(os.path.abspath(folder))
    return next((path for path in (folder, *folder.parents) if os.path.lexists(path)), Path("/"))


@check("machine", "host")
def check_folder(context: CheckContext) -> Iterator[Finding]:
    """the folder of runs is writable, has free space and supports locks"""
    wanted, existing = Path(os.path.abspath(context.runs)), existing_folder(context.runs)
    where = str(wanted) if wanted == existing else f"{existing} (where {wanted.relative_to(existing)} would be created)"
    # In a subprocess, as a file system that does not respond hangs every process that reads it.
    answer, completed = context.probe("folder", str(existing), limit_s=15)
    yield _folder_finding(where, answer, completed)


def _folder_finding(where: str, answer: dict[str, Any], completed: Completed) -> Finding:
    reason, remedy = completed.reason(), "give another folder with --runs, or correct its permissions"
    if "free" not in answer:
        return fail(f"{where} {'does not respond' if completed.timed_out else 'cannot be used'} ({reason})", remedy)
    if "written" not in answer:
        return fail(f"{where} is not writable ({reason})", remedy)
    if "locked" not in answer:
        remedy = "give a folder on another file system with --runs, or mount this one with locks"
        return fail(f"{where}: file locks do not work there ({reason})", remedy)
    free = format_bytes(answer["free"])
    if answer["free"] < FREE_MIN or answer["inodes"] == 0:
        return fail(f"{where} is full: {free} free", "delete files, or give another folder with --runs")
    text = f"{where} is writable and supports locks, {free} free"
    return warn(text, "delete files: checkpoints may not fit") if answer["free"] < FREE else ok(text)


@check("network", "host")
def check_host_name(context: CheckContext) -> Iterator[Finding]:
    """this host's own name resolves, which Gloo requires, and localhost, which torchrun requires"""
    answer, completed = context.probe("resolve", "localhost", limit_s=15)
    if "addresses" not in answer:
        reason = answer.get("error", completed.reason())
        text = f"localhost does not resolve ({reason}): torchrun fails, and horovodrun as published"
        yield fail(text, "echo '127.0.0.1 localhost' >> /etc/hosts")
    name = socket.gethostname()
    answer, completed = context.probe("resolve", name, limit_s=15)
    remedy = f"echo '127.0.1.1 {name}' >> /etc/hosts (with several hosts: the address that the others reach)"
    if "addresses" not in answer:
        reason = answer.get("error", completed.reason())
        text = f"this host's name {name} does not resolve ({reason}): ranks crash in Gloo, and mpirun may hang"
        yield fail(text, remedy)
        return
    addresses = answer["addresses"]
    if answer["seconds"] > SLOW_LOOKUP_S:
        yield warn(f"it took {answer['seconds']:.1f} s to resolve {name}", remedy)
    if context.hosts and all(address.startswith("127.") for address in addresses):
        text = f"{name} resolves to {addresses[0]}, which no other host can reach"
        yield warn(text, "in /etc/hosts, give it the address of the interface to the other hosts")
    else:
        yield ok(f"{name} resolves to {', '.join(addresses)}")


@check("network", "host")
def check_ssh(context: CheckContext) -> Iterator[Finding]:
    """ssh without a password to --hosts, and the same versions and files there; else what is impossible without ssh"""
    if not context.hosts:
        yield from _without_ssh(context)
        return
    invalid = [host for host in context.hosts if not HOST_NAME.fullmatch(host)]
    for host in invalid:
        yield fail(f"--hosts {host!r} is not a host name", "give names separated by commas: --hosts node1,node2")
    from hvdtrain.jobs.hosts import NoAnswer, inspect
    from hvdtrain.jobs.job import Job
    from hvdtrain.jobs.launchers import installation_folder, sent

    valid = [host for host in context.hosts if host not in invalid]
    try:
        answers = inspect(valid, sent(Job((), 1, launcher="mpirun", mpi_prefix=installation_folder(os.environ))))
    except UserError as error:
        yield fail(error.reason, error.remedy)
        return
    for host, problem in answers.items():
        if problem:
            context.late = context.late or (context.busy() if isinstance(problem, NoAnswer) else "")
            yield fail(f"{host}: {problem.reason}", problem.remedy)
        else:
            yield ok(f"{host}: ssh works, with the same versions and files there")


def _without_ssh(context: CheckContext) -> Iterator[Finding]:
    """What is not possible here, where nothing starts ranks on other hosts: some builds of Open MPI then start none."""
    if any(map(shutil.which, ("ssh", "rsh"))):
        return
    allowed = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    if shutil.which("mpirun") and context.run(["mpirun", "-np", "1", "true"], 20, **allowed).status != 0:
        text = "there is no ssh, without which mpirun and horovodrun with MPI start nothing here, not even on this host"
        yield warn(text, "apt-get install openssh-client")
    else:
        yield ok("there is no ssh, which only jobs on other hosts need (apt-get install openssh-client)")
