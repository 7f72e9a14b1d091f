"""The description of a job, from which every launcher's words are made."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hvdtrain.errors import UserError


class Host(NamedTuple):
    name: str
    slots: int
    """Ranks that it takes."""


@dataclass(frozen=True)
class Job:
    """What is to run where. Nothing in it decides a result."""

    program: tuple[str, ...]
    ranks: int
    hosts: tuple[Host, ...] = ()
    """Empty: this host, or those of the batch system."""
    interface: str | None = None
    """Network interface between the hosts."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the user asked for: --env, and Horovod's own options."""
    controller: str = "gloo"
    """By which Horovod's ranks agree: gloo or mpi."""
    mpi: str = ""
    """srun's --mpi."""
    nodes: int = 0
    """srun's --nodes; 0: as the batch system likes."""
    mpi_prefix: str = ""
    """Where Open MPI lies on all hosts, if not where the system has its own."""
    container: str = ""
    """Image in which the ranks run: a .sif file for Apptainer, else a name for Slurm's pyxis."""
    oversubscribe: bool = False
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    """Of this host, and by guess of the others."""
    as_root: bool = field(default_factory=lambda: os.geteuid() == 0)
    start_timeout_s: float = 120
    """From the first rank's coming to the last one's."""
    time_limit_s: float | None = None
    output_dir: Path | None = None

    @property
    def ranks_a_host(self) -> int:
        """Of the host that has most."""
        if self.hosts:
            return max(count for _, count in placed(self.ranks, self.hosts))
        return -(-self.ranks // self.nodes) if self.nodes else self.ranks

    @property
    def threads(self) -> int:
        """Cores for each rank's own threads."""
        return max(self.cores // self.ranks_a_host, 1)

    @property
    def crowded(self) -> bool:
        """More ranks than cores: they must yield while they wait."""
        return self.ranks_a_host > self.cores


def placed(ranks: int, hosts: tuple[Host, ...]) -> list[Host]:
    """How many ranks each host gets, in their order, as horovodrun and mpirun fill them."""
    left, found = ranks, []
    for name, slots in hosts:
        found.append(Host(name, min(slots, left)))
        left -= found[-1].slots
    return [host for host in found if host.slots] or list(hosts[:1])


NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Hosts of `node1:4,node2:4`. Raises UserError where it is not of that form, or a host is there twice."""
    return _unique([_host(part.strip(), text) for part in text.split(",")])


def _host(part: str, text: str) -> Host:
    match = re.fullmatch(rf"({NAME})(?::(\d{{1,6}}))?", part)
    if not match or (match[2] and int(match[2]) == 0):
        raise UserError(f"-H {text!r}: {part!r} is no host; write name:slots, with commas between: -H node1:4,node2:4")
    return Host(match[1], int(match[2] or 1))


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """Hosts of a file of `name slots=N` lines, as mpirun and horovodrun read it; # begins a remark.

    Raises UserError where the file cannot be read or a line is of another form.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"--hostfile {path}: it cannot be read ({error}); give a file of 'name slots=N' lines"
        ) from None
    found = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        match = re.fullmatch(rf"({NAME})(?:\s+slots\s*=\s*(\d{{1,6}}))?(?:\s+max[-_]slots\s*=\s*\d+)?", words)
        if not match or (match[2] and int(match[2]) == 0):
            raise UserError(f"--hostfile {path}: line {number} is {words!r}; write: name slots=N")
        found.append(Host(match[1], int(match[2] or 1)))
    if not found:
        raise UserError(f"--hostfile {path}: no host in it; write lines of: name slots=N")
    return _unique(found)


def _unique(hosts: list[Host]) -> tuple[Host, ...]:
    twice, times = max(Counter(host.name for host in hosts).items(), key=lambda item: item[1])
    if times > 1:
        raise UserError(f"host {twice} is named twice: name it once, with all its slots: {twice}:{times}")
    return tuple(hosts)


def check(job: Job) -> list[str]:
    """Sentences for the user about a job that runs, but not as he may think. Raises UserError for one that cannot."""
    if job.ranks < 1:
        raise UserError(f"-n {job.ranks}: give 1 or more")
    if not job.program:
        raise UserError("no program to start: python -m hvdtrain launch local -n 2 -- python -m hvdtrain.torch_lenet")
    slots = sum(host.slots for host in job.hosts)
    if job.hosts and job.ranks > slots and not job.oversubscribe:
        listed = ", ".join(f"{name}:{count}" for name, count in job.hosts)
        raise UserError(
            f"{job.ranks} ranks, but {slots} slot(s) ({listed}): name more slots or hosts, or give --oversubscribe"
        )
    if job.crowded:
        return [
            f"{job.ranks_a_host} ranks on {job.cores} core(s) take turns: the job works, more slowly than with "
            f"{job.cores}"
        ]
    return []
