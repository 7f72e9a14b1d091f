"""The launchers, by name, and what starts the ranks of a job with each: command lines, never strings for a shell."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.jobs.hosts import Host, other_hosts, placed, ssh
from hvdtrain.jobs.job import (
    CONTROL_VARIABLES,
    OF_HOST,
    Job,
    LaunchSpec,
    agent_command,
    has_other_hosts,
    in_container,
    passed_on,
    variables,
)
from hvdtrain.jobs.memberships import Place, Places
from hvdtrain.system import rank_info
from hvdtrain.system.resources import CORES_PER_TASK


def build_rank(job: Job, environment: Mapping[str, str], place: Place) -> LaunchSpec:
    # Rank 0 shows a progress bar, which needs the terminal itself.
    terminal = place.rank == 0 and job.launcher == "local" and not job.output_dir and os.isatty(1) and os.isatty(2)
    flags = ["--gloo", *(["--survive"] if job.survives else []), *(["--on-terminal"] if terminal else [])]
    values = map(str, (place.rank, job.max_ranks, place.local_rank))
    identity = dict(zip(rank_info.VARIABLES[rank_info.LAUNCH], values, strict=True))
    slots = dict(job.hosts or job.allocation).get(place.host, job.ranks_per_host)
    # The same while ranks are lost and come, as a rank's share of the cores depends on it.
    identity[rank_info.LOCAL_SIZE[0]] = str(min(slots, job.ranks_per_host))
    here = LaunchSpec(agent_command(job, *flags), {**variables(job, environment), **identity}, place.rank, terminal)
    if job.launcher == "srun":
        return here._replace(command=[*_srun(job, place.host), *here.command])
    if other_hosts([Host(place.host, 1)]):
        return here._replace(command=ssh(place.host, "sh"), remote=tuple(here.command))
    return here


def _srun(job: Job, node: str) -> list[str]:
    """A step of one task on a node of the allocation, which shares the node with the steps of other ranks.

    It has all cores of the node that the job has: with --cpus-per-task, several steps would get the same ones.
    """
    command = ["srun", "--overlap", "--nodes", "1", "--ntasks", "1", "--nodelist", node, "--mpi", "none"]
    command += ["--kill-on-bad-exit=0", "--unbuffered", "--cpu-bind", "none"]
    return [*command, *in_container(job)]


def build_ranks(job: Job, environment: Mapping[str, str]) -> list[LaunchSpec]:
    """launch local, and jobs that survive: one process for each rank, without MPI or horovodrun."""
    return [build_rank(job, environment, place) for place in Places.of_job(job).take(0)]


def build_srun(job: Job, environment: Mapping[str, str]) -> list[LaunchSpec]:
    """launch srun: one srun for all ranks, with Gloo alone or with an MPI that Slurm starts (--mpi pmix)."""
    command = ["srun", "--ntasks", str(job.ranks)]
    command += ["--nodes", str(job.nodes)] if job.nodes else []
    # The agents end the other ranks, sooner than srun does, and the message names the rank that failed first.
    command += ["--mpi", job.mpi or "none", "--kill-on-bad-exit=0", "--unbuffered"]
    if CORES_PER_TASK in environment:  # sbatch's, which srun does not inherit since Slurm 22.05
        command += ["--cpus-per-task", environment[CORES_PER_TASK]]
    command += in_container(job)
    gloo = () if job.mpi else ("--gloo",)
    if job.mpi:
        _parameters(job, environment)
    return [LaunchSpec([*command, *agent_command(job, *gloo)], variables(job, environment))]


def build_mpirun(job: Job, environment: Mapping[str, str]) -> list[LaunchSpec]:
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
    chosen = _parameters(job, environment)
    yields = (job.crowded or job.threads == 1) and "mpi_yield_when_idle" not in chosen
    command += ["--mca", "mpi_yield_when_idle", "1"] if yields else []
    # A shell that ssh starts does not have the PATH of this one.
    command += ["--prefix", job.mpi_prefix] if job.hosts and job.mpi_prefix else []
    if not job.interface and any(re.fullmatch(r"(btl|oob)_tcp_if_\w+", name) for name in chosen):
        return command  # it takes either a list of interfaces to use or of those not to use
    # Between the ranks, and between the daemons of hosts, to which these do not lead.
    choice, names = ("include", job.interface) if job.interface else ("exclude", "lo,docker0,virbr0")
    for layer in ("btl", "oob") if job.hosts or (job.interface and has_other_hosts(job, environment)) else ():
        command += ["--mca", f"{layer}_tcp_if_{choice}", names]
    return command


def _parameters(job: Job, environment: Mapping[str, str]) -> set[str]:
    """Names of Open MPI's parameters that the user or the site sets. Raises UserError for one against the job."""
    site = Path(job.mpi_prefix, "etc") if job.mpi_prefix else Path("/etc/openmpi")
    texts = [f"{name}=" for name in (*environment, *job.environment)]
    for file in (site / "openmpi-mca-params.conf", Path(environment.get("HOME", "/"), ".openmpi", "mca-params.conf")):
        with contextlib.suppress(OSError):
            texts.append(file.read_text(errors="replace"))
    chosen = {*re.findall(r"^[ \t]*(?:OMPI_MCA_)?(\w+)[ \t]*=", "\n".join(texts), re.MULTILINE)}
    has_hosts = job.hosts or has_other_hosts(job, environment)
    wrong = (r"\w+_tcp_if_exclude" if job.interface else "") if has_hosts else r"orte_default_\w+"
    for name in filter(re.compile(wrong).fullmatch, chosen):
        reason = f"Open MPI's {name} is set (OMPI_MCA_{name} or mca-params.conf), and contradicts options of the job"
        raise UserError(reason, f"remove it, or {'--interface' if has_hosts else 'name the hosts by -H or --hostfile'}")
    return chosen


def mpirun_here(ranks: int) -> list[str]:
    """mpirun and its options for ranks on this host."""
    return base_command(Job((), ranks, launcher="mpirun"), os.environ)


def listed(hosts: Sequence[Host]) -> str:
    """Hosts as mpirun and horovodrun take them: node1:2,node2:2."""
    return ",".join(f"{name}:{slots}" for name, slots in hosts)


def installation_folder(environment: Mapping[str, str]) -> str:
    """The folder that Open MPI is installed in; empty where it is the system's, which every shell finds."""
    path = shutil.which("mpirun", path=environment.get("PATH"))
    folder = os.path.dirname(os.path.dirname(os.path.abspath(path))) if path else ""
    return "" if folder in ("", "/", "/usr", "/usr/local") else folder


def build_horovodrun(job: Job, environment: Mapping[str, str]) -> list[LaunchSpec]:
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
    else:
        command += ["-H", f"127.0.0.1:{job.ranks}"]  # not localhost, which resolves nowhere without /etc/hosts
    agent, folder = agent_command(job), os.getcwd()
    if other_hosts(job.hosts) and shlex.quote(folder) != folder:  # a Horovod without the patch does not quote it
        in_folder = ["sh", "-c", 'cd "$0" && exec "$@"']
        command, agent = [*in_folder, "/", *command], [*in_folder, folder, *agent]
    return [LaunchSpec([*command, *agent], variables(job, environment), shows_variables=True)]


def sent(job: Job) -> str:
    """A command like those that the launcher sends to login shells of other hosts; empty where any shell runs it."""
    # mpirun takes them for shells of the kind of this one.
    assigns = job.mpi_prefix and "csh" not in os.environ.get("SHELL", "")
    commands = {"horovodrun": "true >/dev/null 2>&1", "mpirun": "A=1 && export A" if assigns else ""}
    return "" if job.survives else commands.get(job.launcher, "")


class Launcher(NamedTuple):
    build: Callable[[Job, Mapping[str, str]], list[LaunchSpec]]
    """Makes what starts a job: one LaunchSpec for each rank, or one for all of them. It gets the variables of the
    process that launches, with CONTROL_VARIABLES if there is a supervisor."""
    about: str
    options: tuple[str, ...] = ()
    """The kinds of options that it has beyond those of all launchers, as config/job_options.py names them."""
    in_allocation: Literal["", "named", "filled", "spread"] = ""
    """How it gets to the hosts of a Slurm allocation: they are named to it; or it knows them, and fills one after the
    other, or spreads the ranks over all of them. Empty: it stays on this host."""


LAUNCHERS = {
    "local": Launcher(build_ranks, "all ranks on this host; needs neither MPI nor horovodrun", ()),
    "horovodrun": Launcher(
        build_horovodrun,
        "Horovod's launcher, with Gloo, on this host or on hosts reached by ssh",
        ("hosts", "growth"),
        in_allocation="named",
    ),
    "mpirun": Launcher(
        build_mpirun,
        "Open MPI's launcher, on this host, on hosts reached by ssh, or in a Slurm allocation",
        ("hosts", "growth", "container"),
        in_allocation="filled",
    ),
    "srun": Launcher(
        build_srun,
        "Slurm's launcher, in an allocation or in one of its own: with Gloo, or with MPI by --mpi",
        ("growth", "container", "slurm"),
        in_allocation="spread",
    ),
}


def build(job: Job, environment: Mapping[str, str]) -> list[LaunchSpec]:
    """The command lines that start a job. Raises UserError for what the launcher cannot do."""
    return (build_ranks if job.survives else LAUNCHERS[job.launcher].build)(job, environment)
