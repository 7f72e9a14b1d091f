"""The hosts of a job: from -H, from a hostfile, or from a Slurm allocation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.launch.job import Host
from hvdtrain.system import slurm

NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
FORM = "write lines of the form: name slots=N"


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Hosts of `node1:4,node2:4`. Raises UserError if the text is not of that form or names a host twice."""
    return _unique([_host(part.strip(), text) for part in text.split(",")])


def _host(part: str, text: str) -> Host:
    match = re.fullmatch(rf"({NAME})(?::(\d{{1,6}}))?", part)
    if not match or (match[2] and int(match[2]) == 0):
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
        match = re.fullmatch(rf"({NAME})(?:\s+slots\s*=\s*(\d{{1,6}}))?(?:\s+max[-_]slots\s*=\s*\d+)?", entry)
        if not match or (match[2] and int(match[2]) == 0):
            raise UserError(f"--hostfile {path}: line {number} is {entry!r}", FORM)
        found.append(Host(match[1], int(match[2] or 1)))
    if not found:
        raise UserError(f"--hostfile {path} names no host", FORM)
    return _unique(found)


def _unique(hosts: list[Host]) -> tuple[Host, ...]:
    name, times = max(Counter(host.name for host in hosts).items(), key=lambda item: item[1])
    if times > 1:
        raise UserError(f"host {name} is named more than once", f"name it once, with all its slots: {name}:{times}")
    return tuple(hosts)


def slurm_hosts(environment: Mapping[str, str]) -> tuple[Host, ...]:
    """The hosts of this Slurm allocation and their tasks. Raises UserError if Slurm's variables are inconsistent."""
    names = slurm.hostnames(environment["SLURM_JOB_NODELIST"])
    counts = slurm.tasks_per_node(environment.get("SLURM_TASKS_PER_NODE") or f"1(x{len(names)})")
    if len(names) != len(counts):
        raise UserError(
            "SLURM_JOB_NODELIST and SLURM_TASKS_PER_NODE are of different lengths", "name the hosts with -H"
        )
    return tuple(map(Host, names, counts))
