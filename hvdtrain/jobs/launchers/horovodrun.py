"""launch horovodrun: Horovod's own launcher, with Gloo or MPI, and its elastic mode.

In elastic mode ranks join and leave while the others keep training. Only horovodrun supports it: it runs a script that
prints the available hosts, starts ranks on new ones, and excludes hosts on which a rank died. Its rendezvous server
unpickles, and thus executes, what it receives (CVE-2024-10190). So elastic mode is off by default, and the server
listens on one interface only, which must not have a public address.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from hvdtrain.errors import UserError
from hvdtrain.jobs.hosts import other_hosts, placed
from hvdtrain.jobs.job import ElasticOptions, Job, LaunchSpec, agent_command, passed_on, variables
from hvdtrain.jobs.launchers import mpirun
from hvdtrain.jobs.launchers.mpirun import listed
from hvdtrain.system import credentials, rank_info
from hvdtrain.system.network import address_of


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
    command += ["--start-timeout", f"{job.start_timeout_s:.0f}"]
    command += ["--ssh-port", str(job.ssh.port)] if job.ssh.port else []
    return [*command, *(["--ssh-identity-file", job.ssh.key] if job.ssh.key else [])]


def check_elastic(job: Job, elastic: ElasticOptions, restarts: int) -> None:
    """Raise UserError for what elastic mode cannot do, or should not."""
    script, least, most = elastic.host_discovery_script, elastic.min_ranks, elastic.max_ranks or job.ranks
    if job.controller != "gloo" or restarts or job.time_limit_s:
        raise UserError("--elastic works with Gloo only, and without --restarts and --time-limit", "omit these options")
    if not 1 <= least <= job.ranks <= most:
        raise UserError(f"--min-np {least} --max-np {most}: -n {job.ranks} is not between them", "correct one of them")
    if script and not os.access(script, os.X_OK):
        raise UserError(f"--host-discovery-script {script} cannot be executed", f"chmod +x {script}")
    if not script and len(job.hosts) < 2:
        reason = "--elastic needs to know which hosts there are"
        raise UserError(reason, "give --host-discovery-script FILE, or two or more hosts with -H")
    if not job.interface:
        reason = "--elastic needs the interface that its rendezvous server listens on"
        raise UserError(reason, "give --interface NAME (see docs/faults.md)")
    for name in credentials.separated(job.environment).private:
        reason = f"--elastic: horovodrun writes variables on command lines, and {name} holds credentials"
        raise UserError(reason, f"omit --env {name}, or use --restarts in place of --elastic")
    _check_address(job.interface, elastic)


def _check_address(interface: str, elastic: ElasticOptions) -> None:
    address = address_of(interface)
    if ipaddress.ip_address(address).is_global and not elastic.on_public_address:
        raise UserError(
            f"--interface {interface}: {address} is a public address, and Horovod's elastic rendezvous server executes "
            "what it receives",
            "choose an internal interface, or give --elastic-on-public-address behind a firewall",
        )


def build_elastic(job: Job, environment: Mapping[str, str], control: Sequence[str] = ()) -> list[LaunchSpec]:
    """horovodrun with its elastic options, and a variable that has training use them; there is no agent."""
    assert job.elastic and job.interface
    elastic = job.elastic
    command = [*base_command(job), "--min-np", str(elastic.min_ranks)]
    command += ["--max-np", str(elastic.max_ranks)] if elastic.max_ranks else []
    command += ["--network-interfaces", job.interface]
    if elastic.host_discovery_script:
        command += ["--host-discovery-script", str(elastic.host_discovery_script.absolute())]
    else:
        command += ["-H", listed(job.hosts)]
    command += ["--output-filename", str(job.output_dir)] if job.output_dir else []
    given = {
        **variables(job, environment),
        "HOROVOD_GLOO_IFACE": job.interface,
        rank_info.ELASTIC_JOB: "1",
        **_without_proxy(job.interface, environment),
    }
    return [LaunchSpec([*command, *job.program], given)]


def _without_proxy(interface: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Ranks reach horovodrun's server by HTTP, and never by a proxy."""
    if not any(name.lower() == "http_proxy" for name in environment):
        return {}
    names, address = ("no_proxy", "NO_PROXY"), address_of(interface)
    return {name: ",".join(filter(None, [environment.get(name), address])) for name in names}


def become_horovodrun(spec: LaunchSpec, environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by horovodrun: the supervisor is for jobs with a fixed number of ranks."""
    public, private = credentials.separated(passed_on(environment))
    for name in private:  # there is no agent that could receive them
        print(f"hvdtrain: {name} holds credentials, so the ranks of an elastic job do not get it", file=sys.stderr)
    try:
        os.execvpe(spec.command[0], spec.command, {**public, **spec.variables})
    except OSError as error:
        raise UserError(f"horovodrun cannot be started ({error.strerror})", "build it with make setup") from None
