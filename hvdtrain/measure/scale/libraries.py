"""The libraries that strategies use for their allreduce: what each measures, calls and overlaps."""

from __future__ import annotations

from typing import NamedTuple

from hvdtrain.measure.scale.communication import Coordination

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

    @property
    def row_coordination(self) -> Coordination | None:
        """How the ranks agreed before each call that the row measured: with a cycle, the row is one without Horovod."""
        return None if self.coordination and self.coordination.cycle_s else self.coordination


def library(name: str, cycle_s: float = 0.0) -> Library:
    """The library of a name in NAMES. cycle_s: Horovod's cycle; 0 for its event-driven background thread.

    With a cycle, Horovod over Gloo or MPI is modeled as Gloo or MPI itself, with an agreement and half a cycle before
    each call: all of it goes by Gloo's ring then, and times that were measured with a cycle do not tell anything of
    allreduces that are shorter.
    """
    if not name.startswith("horovod"):
        return Library(name, name, overlaps=name in ("gloo", "nccl"))
    own = name.removeprefix("horovod-")
    if cycle_s:
        return Library(own, own, Coordination(own, cycle_s), overlaps=True)
    algorithm, row = ("horovod-gloo", "horovod over Gloo") if own == "gloo" else ("mpi", "horovod over MPI")
    return Library(row, algorithm, Coordination(algorithm), overlaps=True)
