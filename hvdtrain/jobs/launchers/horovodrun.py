"""launch horovodrun: Horovod's own launcher, with Gloo or MPI."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Mapping, Sequence

from hvdtrain.errors import UserError
from hvdtrain.jobs.hosts import other_hosts, placed
from hvdtrain.jobs.job import Job, LaunchSpec, agent_command, variables
from hvdtrain.jobs.launchers import mpirun
from hvdtrain.jobs.launchers.mpirun import listed


def build(
    job: Job, environment: Mapping[str, str], control: Sequence[str] = (), python: str = sys.executable
) -> list[LaunchSpec]:
    """One horovodrun for all ranks; it passes on all variables itself, so `control` needs no option.

    Raises UserError for a Python whose folder it cannot pass on.
    """
    if job.interface and job.hosts and not other_hosts(job.hosts):
        job = dataclasses.replace(job, interface="lo")  # the only one that it accepts where all hosts are this one
    if job.hosts and not job.interface and any(sign.isspace() for sign in python):
        reason = f"horovodrun cannot query the interfaces of other hosts with {python!r}, as its folder has a space"
        raise UserError(reason, "name the interface with --interface, or make setup VENV=/a/folder/without")
    command = base_command(job)
    if job.hosts:
        # With Gloo it starts a rank in every slot that is listed, whatever -np says.
        command += ["-H", listed(placed(job.ranks, job.hosts))]
        command += ["--network-interfaces", job.interface] if job.interface else []
    if job.controller == "mpi":
        # Without the ranks' interfaces: horovodrun sets them, and Open MPI rejects an option that is given twice.
        options = [
            *mpirun.as_root(job),
            *mpirun.yielding(job),
            *mpirun.prefix(job),
            *mpirun.daemon_interfaces(job),
            *mpirun.without_ssh(job, environment),
        ]
        command += [f"--mpi-args={shlex.join(options)}"] if options else []
    given = variables(job, environment)
    if job.controller == "gloo" and job.interface:
        given.setdefault("HOROVOD_GLOO_IFACE", job.interface)
    return [LaunchSpec([*command, *agent_command(job, python=python)], given, shows_variables=job.controller == "gloo")]


def base_command(job: Job) -> list[str]:
    """horovodrun with the options that all jobs need."""
    # Its cache keeps for an hour what it found on hosts, and hides that one can no longer be reached.
    command = ["horovodrun", "--disable-cache", f"--{job.controller}", "-np", str(job.ranks)]
    return [*command, "--start-timeout", f"{job.start_timeout_s:.0f}"]
