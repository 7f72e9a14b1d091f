"""launch horovodrun: Horovod's own launcher, with Gloo."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Mapping

from hvdtrain.errors import UserError
from hvdtrain.jobs.hosts import other_hosts, placed
from hvdtrain.jobs.job import Job, LaunchSpec, agent_command, variables
from hvdtrain.jobs.launchers.mpirun import listed


def build(job: Job, environment: Mapping[str, str]) -> list[LaunchSpec]:
    """One horovodrun for all ranks. Raises UserError for a Python whose folder it cannot pass on."""
    if job.interface and job.hosts and not other_hosts(job.hosts):
        job = dataclasses.replace(job, interface="lo")  # the only one that it accepts where all hosts are this one
    if job.hosts and not job.interface and any(sign.isspace() for sign in sys.executable):
        reason = f"horovodrun cannot query other hosts' interfaces with {sys.executable!r}, as its folder has a space"
        raise UserError(reason, "name the interface with --interface, or make setup VENV=/a/folder/without")
    # Its cache keeps for an hour what it found on hosts, and hides that one can no longer be reached.
    command = ["horovodrun", "--disable-cache", "--gloo", "-np", str(job.ranks)]
    command += ["--start-timeout", f"{job.start_timeout_s:.0f}"]
    if job.hosts:
        # It starts a rank in every slot that is listed, whatever -np says.
        command += ["-H", listed(placed(job.ranks, job.hosts))]
        command += ["--network-interfaces", job.interface] if job.interface else []
    given = variables(job, environment)
    if job.interface:
        given.setdefault("HOROVOD_GLOO_IFACE", job.interface)
    agent, folder = agent_command(job), os.getcwd()
    if other_hosts(job.hosts) and shlex.quote(folder) != folder:  # a Horovod without the patch does not quote it
        in_folder = ["sh", "-c", 'cd "$0" && exec "$@"']
        command, agent = [*in_folder, "/", *command], [*in_folder, folder, *agent]
    return [LaunchSpec([*command, *agent], given, shows_variables=True)]
