"""The hosts of a job: from -H, from a hostfile, or from a Slurm allocation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.jobs.job import Host
from hvdtrain.system import slurm
from hvdtrain.system.network import HOST_NAME

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
    found = []
    for number, line in enumerate(lines, 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        match = re.fullmatch(r"(\S+)(?:\s+slots\s*=\s*(\d{1,6}))?(?:\s+max[-_]slots\s*=\s*\d+)?", entry)
        if not match or not _is_entry(*match.groups()):
            raise UserError(f"--hostfile {path}: line {number} is {entry!r}", FORM)
        found.append(Host(match[1], int(match[2] or 1)))
    if not found:
        raise UserError(f"--hostfile {path} names no host", FORM)
    return _unique(found)


def _is_entry(name: str, slots: str | None) -> bool:
    return bool(HOST_NAME.fullmatch(name)) and (slots is None or int(slots) > 0)


def _unique(hosts: list[Host]) -> tuple[Host, ...]:
    name, times = max(Counter(host.name for host in hosts).items(), key=lambda item: item[1])
    if times > 1:
        raise UserError(f"host {name} is named more than once", f"name it once, with all its slots: {name}:{times}")
    return tuple(hosts)


def slurm_hosts(environment: Mapping[str, str]) -> tuple[Host, ...]:
    """The hosts of this Slurm allocation and their tasks. Raises UserError if Slurm's variables are inconsistent."""
    names = slurm.hostnames(environment["SLURM_JOB_NODELIST"])
    counts = slurm.tasks_per_node(environment.get("SLURM_TASKS_PER_NODE") or f"1(x{len(names)})")
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
