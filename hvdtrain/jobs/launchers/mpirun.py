"""launch mpirun: Open MPI's launcher, on this host, on hosts reached by ssh, or in a Slurm allocation."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

from hvdtrain.errors import UserError
from hvdtrain.jobs.hosts import Host
from hvdtrain.jobs.job import (
    CONTROL_VARIABLES,
    OF_HOST,
    Job,
    LaunchSpec,
    agent_command,
    has_other_hosts,
    passed_on,
    variables,
)


def build(job: Job, environment: Mapping[str, str]) -> list[LaunchSpec]:
    """One mpirun for all ranks. Ranks are not bound to cores, so that Horovod's own thread also has one."""
    given = variables(job, environment)
    names = sorted({*passed_on(environment), *given}) if has_other_hosts(job, environment) else []
    control = [name for name in CONTROL_VARIABLES if name in environment]
    names = [*(name for name in names if not OF_HOST.fullmatch(name) and name not in control), *control]
    exported = [argument for name in names for argument in ("-x", name)]
    return [LaunchSpec([*base_command(job, environment), *exported, *agent_command(job)], given)]


def base_command(job: Job, environment: Mapping[str, str]) -> list[str]:
    """mpirun and its options, before the program. Raises UserError for a folder that Open MPI cannot pass on."""
    if job.hosts and any(sign.isspace() for sign in job.mpi_prefix):
        where = f"Open MPI is installed in {job.mpi_prefix!r}"
        reason = f"{where}, and cannot start itself on other hosts in a folder with a space"
        raise UserError(reason, "make setup VENV=/a/folder/without, or launch horovodrun")
    command = ["mpirun", *(["--allow-run-as-root"] if job.as_root else [])]
    # It looks for ssh even where all ranks are on this host, and does not start without it.
    has_ssh = any(shutil.which(name, path=environment.get("PATH")) for name in ("ssh", "rsh"))
    command += [] if has_ssh or has_other_hosts(job, environment) else ["--mca", "plm", "isolated"]
    command += ["-np", str(job.ranks), *(["-H", listed(job.hosts)] if job.hosts else [])]
    command += ["--oversubscribe"] if not job.hosts and job.crowded else []
    command += ["--bind-to", "none", "--map-by", "slot"]
    # Its ranks spin while they wait; where they share cores, they must yield to each other.
    command += ["--mca", "mpi_yield_when_idle", "1"] if job.crowded or job.threads == 1 else []
    # A shell that ssh starts does not have the PATH of this one.
    command += ["--prefix", job.mpi_prefix] if job.hosts and job.mpi_prefix else []
    choice, names = ("include", job.interface) if job.interface else ("exclude", HOST_ONLY_INTERFACES)
    for layer in ("btl", "oob") if job.hosts else ():  # between the ranks, and between the daemons of hosts
        command += ["--mca", f"{layer}_tcp_if_{choice}", names]
    return command


def mpirun_here(ranks: int) -> list[str]:
    """mpirun and its options for ranks on this host."""
    return base_command(Job((), ranks, launcher="mpirun"), os.environ)


HOST_ONLY_INTERFACES = "lo,docker0,virbr0"
"""Interfaces that Open MPI uses unless they are excluded, and that lead to no other host."""


def listed(hosts: Sequence[Host]) -> str:
    """Hosts as mpirun and horovodrun take them: node1:2,node2:2."""
    return ",".join(f"{name}:{slots}" for name, slots in hosts)


def installation_folder(environment: Mapping[str, str]) -> str:
    """The folder that Open MPI is installed in; empty where it is the system's, which every shell finds."""
    path = shutil.which("mpirun", path=environment.get("PATH"))
    folder = os.path.dirname(os.path.dirname(os.path.abspath(path))) if path else ""
    return "" if folder in ("", "/", "/usr", "/usr/local") else folder
