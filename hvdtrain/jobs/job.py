"""The description of a job, from which every launcher's command line is built, and the hosts in it.

Hosts are named by -H, by a hostfile, or by a Slurm allocation.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.system import rank_info
from hvdtrain.system.network import HOST_NAME
from hvdtrain.system.rank_info import START_TIMEOUT_S


class Host(NamedTuple):
    name: str
    slots: int
    """The number of ranks that may run on it."""


class SshAccess(NamedTuple):
    """How ssh reaches the other hosts, beyond what its own configuration says."""

    port: int = 0
    """0: the default."""
    key: str = ""
    """The path of a private key; empty: the default ones."""

    @property
    def arguments(self) -> list[str]:
        """Options of ssh."""
        return [*(["-p", str(self.port)] if self.port else []), *(["-i", self.key] if self.key else [])]


DEFAULT_ACCESS = SshAccess()


@dataclass(frozen=True)
class ElasticOptions:
    """Horovod's elastic mode: the number of ranks changes while the job runs."""

    min_ranks: int
    max_ranks: int
    """0: no limit."""
    host_discovery_script: Path | None = None
    """Prints the hosts that are available, as name:slots."""
    on_public_address: bool = False
    """Whether the rendezvous may listen on an address that the internet reaches."""


@dataclass(frozen=True)
class Job:
    """Which program runs on how many ranks, and where. Nothing in it changes a result."""

    program: tuple[str, ...]
    ranks: int
    hosts: tuple[Host, ...] = ()
    """Empty: this host, or those of the batch system."""
    allocation: tuple[Host, ...] = ()
    """Without `hosts`: the batch system's hosts, and how many ranks it would start on each; empty: this host."""
    interface: str | None = None
    """Network interface between the hosts."""
    ssh: SshAccess = DEFAULT_ACCESS
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the user asked for: --env, and Horovod's own settings."""
    controller: str = "gloo"
    """What Horovod coordinates its ranks with: gloo or mpi."""
    mpi: str = ""
    """srun's --mpi."""
    nodes: int = 0
    """srun's --nodes; 0: the batch system decides."""
    mpi_prefix: str = ""
    """The folder of Open MPI on all hosts; empty where it is the system's."""
    container: str = ""
    """Image in which the ranks run: a .sif file for Apptainer, else a name for Slurm's pyxis."""
    oversubscribe: bool = False
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    """Cores of this host; other hosts are assumed to have as many."""
    as_root: bool = field(default_factory=lambda: os.geteuid() == 0)
    start_timeout_s: float = START_TIMEOUT_S
    """Between the registration of the first rank and that of the last one; then until all have initialized Horovod."""
    time_limit_s: float | None = None
    output_dir: Path | None = None
    elastic: ElasticOptions | None = None

    @property
    def ranks_per_host(self) -> int:
        """Ranks of the host that has most."""
        if self.nodes:
            return -(-self.ranks // self.nodes)
        if self.hosts or self.allocation:
            return max(count for _, count in placed(self.ranks, self.hosts or self.allocation))
        return self.ranks

    @property
    def threads(self) -> int:
        """Cores for each rank's own threads."""
        return max(self.cores // self.ranks_per_host, 1)

    @property
    def crowded(self) -> bool:
        """Whether there are more ranks than cores, so that ranks must yield while they wait."""
        return self.ranks_per_host > self.cores


class RestartPolicy(NamedTuple):
    """How often a job is restarted after a failure, and with how few ranks."""

    limit: int = 0
    min_ranks: int = 0
    """0: all ranks that the job asks for."""


def placed(ranks: int, hosts: tuple[Host, ...]) -> list[Host]:
    """The number of ranks of each host: hosts are filled in their order, as horovodrun and mpirun do."""
    left, hosts_used = ranks, []
    for name, slots in hosts:
        hosts_used.append(Host(name, min(slots, left)))
        left -= hosts_used[-1].slots
    return [host for host in hosts_used if host.slots] or list(hosts[:1])


def check_job(job: Job) -> list[str]:
    """Warnings about a job that runs, but not as expected. Raises UserError for a job that cannot run."""
    if job.ranks < 1:
        raise UserError(f"-n {job.ranks} is invalid", "give 1 or more")
    if not job.program:
        raise UserError("no program to start", "write it after --, such as -- python -m hvdtrain.torch_lenet")
    hosts = job.hosts or job.allocation
    slots = sum(host.slots for host in hosts)
    if hosts and job.ranks > slots and not job.oversubscribe:
        listed = ", ".join(f"{name}:{count}" for name, count in hosts)
        raise UserError(
            f"{job.ranks} ranks, but {slots} slot(s) ({listed})", "name more slots or hosts, or give --oversubscribe"
        )
    if job.crowded:
        return [f"{job.ranks_per_host} ranks share {job.cores} core(s): the job runs, but slower than with {job.cores}"]
    return []


def check_policy(policy: RestartPolicy, job: Job) -> None:
    """Raise UserError for a policy that does not fit the job."""
    if policy.limit < 0:
        raise UserError(f"--restarts {policy.limit} is invalid", "give 0 or more")
    if policy.min_ranks and not policy.limit:
        raise UserError(
            f"--min-np {policy.min_ranks} has no effect without --restarts or --elastic", "give --restarts N as well"
        )
    if not 0 <= policy.min_ranks <= job.ranks:
        raise UserError(f"--min-np {policy.min_ranks} is out of range", f"give 1 to {job.ranks}, the number of ranks")


FORM = "write lines of the form: name slots=N"


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Hosts of `node1:4,node2:4`. Raises UserError if the text is not of that form or names a host twice."""
    return _unique([_host(part.strip(), text) for part in text.split(",")])


def _host(part: str, text: str) -> Host:
    match = re.fullmatch(r"(\S+?)(?::(\d{1,6}))?", part)
    if not match or not _is_entry(*match.groups()):
        raise UserError(f"-H {text!r}: {part!r} is not a host", "write name:slots with commas: -H node1:4,node2:4")
    return Host(match[1], int(match[2] or 1))


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """Hosts of a file of `name slots=N` lines, the format of mpirun and horovodrun; # begins a comment.

    Raises UserError if the file cannot be read or a line is of another form.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--hostfile {path} cannot be read ({error})", f"give a readable file; {FORM}") from None
    hosts = []
    for number, line in enumerate(lines, 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        match = re.fullmatch(r"(\S+)(?:\s+slots\s*=\s*(\d{1,6}))?(?:\s+max[-_]slots\s*=\s*\d+)?", entry)
        if not match or not _is_entry(*match.groups()):
            raise UserError(f"--hostfile {path}: line {number} is {entry!r}", FORM)
        hosts.append(Host(match[1], int(match[2] or 1)))
    if not hosts:
        raise UserError(f"--hostfile {path} names no host", FORM)
    return _unique(hosts)


def _is_entry(name: str, slots: str | None) -> bool:
    return bool(HOST_NAME.fullmatch(name)) and (slots is None or int(slots) > 0)


def _unique(hosts: list[Host]) -> tuple[Host, ...]:
    name, times = max(Counter(host.name for host in hosts).items(), key=lambda item: item[1])
    if times > 1:
        raise UserError(f"host {name} is named more than once", f"name it once, with all its slots: {name}:{times}")
    return tuple(hosts)


def slurm_hosts(environment: Mapping[str, str]) -> tuple[Host, ...]:
    """The hosts of this Slurm allocation and their tasks. Raises UserError if Slurm's variables are inconsistent."""
    names = rank_info.slurm_hosts(environment["SLURM_JOB_NODELIST"])
    counts = rank_info.slurm_tasks_per_node(environment.get("SLURM_TASKS_PER_NODE") or f"1(x{len(names)})")
    number = environment.get("SLURM_JOB_NUM_NODES", str(len(names)))
    if len(names) != len(counts) or number != str(len(names)):
        raise UserError(
            "SLURM_JOB_NODELIST, SLURM_JOB_NUM_NODES and SLURM_TASKS_PER_NODE contradict each other",
            "name the hosts with -H",
        )
    return tuple(map(Host, names, counts))


def slurm_allocation(launcher: str, ranks: int, environment: Mapping[str, str]) -> tuple[Host, ...]:
    """The hosts on which mpirun and srun start ranks in a Slurm allocation; empty without one.

    mpirun fills each host up to its number of tasks, srun spreads the ranks over all of them. Raises UserError if
    Slurm's variables are inconsistent.
    """
    if launcher not in ("mpirun", "srun") or "SLURM_JOB_NODELIST" not in environment:
        return ()
    hosts = slurm_hosts(environment)
    return tuple(Host(name, -(-ranks // len(hosts))) for name, _ in hosts) if launcher == "srun" else hosts
