"""Slurm's compact notation for lists of nodes and of tasks per node."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from hvdtrain.errors import UserError
from hvdtrain.system.network import HOST_NAME

MAX_HOSTS = 1 << 16
MAX_NAME = 253
"""Characters of a host name in DNS (RFC 1035)."""
REMEDY = "start with srun or sbatch, and leave SLURM_* variables unchanged"


def hostnames(nodes: str) -> list[str]:
    """The hosts of Slurm's node list: node01, node02, node07 and other for `node[01-02,07],other`.

    Raises UserError if the list is not as Slurm writes it.
    """
    names = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", nodes)
    if ",".join(names) != nodes or not names or "[]" in nodes:
        raise UserError(f"the node list {nodes!r} is not as Slurm writes it, such as node[01-04,07]", REMEDY)
    found = _limited((host for name in names for host in _expanded(name)), nodes)
    if not all(map(HOST_NAME.fullmatch, found)):
        raise UserError(f"the node list {nodes!r:.80} holds what is not the name of a host", REMEDY)
    return found


def _limited(names: Iterable[str], nodes: str) -> list[str]:
    """All names, unless there are too many: a short list may expand to more than fit into memory. Raises UserError."""
    found = list(itertools.islice(names, MAX_HOSTS + 1))
    if len(found) > MAX_HOSTS:
        raise UserError(f"the node list {nodes!r:.80} names more than {MAX_HOSTS} hosts", REMEDY)
    return found


def _expanded(name: str) -> list[str]:
    """The hosts of one name that may hold ranges."""
    found = [""]
    for plain, ranges in re.findall(r"([^\[]*)(?:\[([^\]]*)\])?", name):
        if len(found[0]) + len(plain) > MAX_NAME:  # checked before the names are multiplied
            raise UserError(f"the node list {name!r:.80} holds a name that is too long for a host", REMEDY)
        parts = ranges.split(",") if ranges else []
        choices = _limited((number for part in parts for number in _numbers(part)), name) or [""]
        found = _limited((f"{host}{plain}{choice}" for host in found for choice in choices), name)
    return found


def _numbers(part: str) -> list[str]:
    """`07`, or `01` to `04` for 01-04, with as many digits."""
    match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if not match or not first <= last < first + MAX_HOSTS:
        raise UserError(f"the range {part!r} of the node list is not as Slurm writes it, such as 01-04", REMEDY)
    return [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]


def tasks_per_node(text: str) -> list[int]:
    """Tasks of each node: [2, 2, 2, 1] for `2(x3),1`. Raises UserError if the text is not as Slurm writes it."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,5})\))?", part)
        if not match:
            raise UserError(f"tasks per node {text!r} are not as Slurm writes them, such as 2(x3),1", REMEDY)
        counts += [int(match[1])] * int(match[2] or 1)
        if len(counts) > MAX_HOSTS:
            raise UserError(f"tasks per node {text!r:.80} are for more than {MAX_HOSTS} hosts", REMEDY)
    return counts
