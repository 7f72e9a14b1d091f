"""The libraries that strategies use for their allreduce: what each measures, calls and overlaps."""

from __future__ import annotations

from typing import NamedTuple

from hvdtrain.scale.communication import Coordination

AS_SHIPPED = ", as shipped"
"""The end of the names of rows with Horovod's background thread as published."""
NAMES = {
    "horovod-gloo": "Horovod over Gloo",
    "horovod-mpi": "Horovod over MPI",
    "gloo": "Gloo",
    "ring": "hvdtrain's ring",
    "mpi": "MPI",
    "nccl": "NCCL",
}
"""The choices of --library, as sentences name them."""


class Library(NamedTuple):
    """What the model knows of a library."""

    row: str
    """Its name in the tables of `bench allreduce`."""
    algorithm: str
    """A key of `algorithms.CHOICES`."""
    coordination: Coordination | None = None
    """How ranks agree before each allreduce, which only Horovod's do."""
    overlaps: bool = False
    """Whether its strategies send gradients while backward computes others."""


def library(name: str, cycle_s: float = 0.0) -> Library:
    """The library of a name in NAMES. cycle_s: Horovod's cycle; 0 for its event-driven background thread.

    With a cycle, all of Horovod over Gloo goes by Gloo's ring, as the allreduce of small arrays by recursive doubling
    belongs to the event-driven thread (docs/horovod.md).
    """
    of_gloo = "gloo" if cycle_s else "horovod-gloo"
    end = AS_SHIPPED if cycle_s else ""
    if name == "horovod-gloo":
        return Library(f"horovod over Gloo{end}", of_gloo, Coordination(of_gloo, cycle_s), overlaps=True)
    if name == "horovod-mpi":
        return Library(f"horovod over MPI{end}", "mpi", Coordination("mpi", cycle_s), overlaps=True)
    return Library(name, name, overlaps=name in ("gloo", "nccl"))
