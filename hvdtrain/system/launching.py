"""The process that has started this rank: what all ranks of a host have from it, and what it has set for each."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hvdtrain.system import agent_pipe, rank_info
from hvdtrain.system.processes import environment_of, parent_of


def affinity(own: frozenset[int]) -> frozenset[int]:
    """The hardware threads that the launcher on this host may use; `own`, this process's, where that is not known."""
    try:
        return frozenset(os.sched_getaffinity(_launcher() or os.getpid()))
    except OSError:
        return own


def has_default(name: str) -> bool:
    """Whether a launcher has set this variable of its own accord, and not because its user had set it."""
    environment = environment_of(_launcher())
    return bool(environment) and name not in environment


def _launcher() -> int:
    """The nearest ancestor that belongs to no rank, or to another one; 0 if it is in another namespace.

    A rank's other processes are shells around its program, and its agent.
    """
    source = rank_info.detect().source

    def is_of_rank(environment: Mapping[str, str]) -> bool:
        same = source in os.environ and environment.get(source) == os.environ[source]
        return same or agent_pipe.SUPERVISOR in environment

    process = os.getppid()
    while process > 1 and is_of_rank(environment_of(process)):
        process = parent_of(process)
    return process
