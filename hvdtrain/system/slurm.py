"""The short forms in which Slurm writes lists of nodes and of tasks per node."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from hvdtrain.errors import UserError

MAX_HOSTS = 1 << 16
MAX_NAME = 253
"""Characters of a host name in DNS (RFC 1035)."""


def hostnames(nodes: str) -> list[str]:
    """The hosts of Slurm's node list: node01, node02, node07 and other of `node[01-02,07],other`.

    Raises UserError where it is not as Slurm writes it.
    """
    words = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", nodes)
    if ",".join(words) != nodes or not words or "[]" in nodes:
        raise UserError(f"the node list {nodes!r} is not as Slurm writes it, such as node[01-04,07]; start by srun")
    return _few((host for word in words for host in _expanded(word)), nodes)


def _few(names: Iterable[str], nodes: str) -> list[str]:
    """The names, taken one by one: a short list may stand for more than memory holds."""
    found = list(itertools.islice(names, MAX_HOSTS + 1))
    if len(found) > MAX_HOSTS:
        raise UserError(f"the node list {nodes!r:.80} names more than {MAX_HOSTS} hosts; start by srun")
    return found


def _expanded(word: str) -> list[str]:
    """The hosts of one name that may hold ranges."""
    found = [""]
    for plain, ranges in re.findall(r"([^\[]*)(?:\[([^\]]*)\])?", word):
        if len(found[0]) + len(plain) > MAX_NAME:  # before as many of them are made as it says
            raise UserError(f"the node list {word!r:.80} holds a name that no host can have; start by srun")
        choices = _few((name for part in ranges.split(",") for name in _numbers(part)), word) if ranges else [""]
        found = _few((f"{host}{plain}{choice}" for host in found for choice in choices), word)
    return found


def _numbers(part: str) -> list[str]:
    """`07`, or `01` to `04` of 01-04, with as many digits."""
    match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if not match or not first <= last < first + MAX_HOSTS:
        raise UserError(f"the node list's range {part!r} is not as Slurm writes it, such as 01-04; start by srun")
    return [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]


def tasks_per_node(text: str) -> list[int]:
    """Slurm's short form: [2, 2, 2, 1] of `2(x3),1`. Raises UserError where it is another."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,5})\))?", part)
        if not match:
            raise UserError(f"tasks per node {text!r} are not as Slurm writes them, such as 2(x3),1; start by srun")
        counts += [int(match[1])] * int(match[2] or 1)
        if len(counts) > MAX_HOSTS:
            raise UserError(f"tasks per node {text!r:.80} are those of more than {MAX_HOSTS} hosts; start by srun")
    return counts
