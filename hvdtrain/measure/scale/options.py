"""The options of `python -m hvdtrain scale`."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from hvdtrain.errors import UserError

MOST_RANKS = 1 << 20
NUMBER_BYTES = 4
Library = Literal["auto", "horovod-gloo", "horovod-mpi", "gloo", "ring", "mpi", "nccl"]
AlgorithmOption = Literal["auto", "ring", "recursive-doubling", "rabenseifner", "hierarchical"]


@dataclass(frozen=True)
class ScaleOptions:
    """Predict speed, efficiency, time and cost of training on more ranks than were measured."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of finished runs of one network; several differ in batch size or machine."""
    allreduce: tuple[Path, ...] = ()
    """Tables of `bench allreduce` (allreduce.json); several of different numbers of ranks fit better."""
    library: Library = "auto"
    """Library of the allreduce; auto takes that of the runs' strategy, else Horovod over Gloo."""
    algorithm: AlgorithmOption = "auto"
    """Algorithm of the allreduce; auto takes what the library uses."""
    latency_us: float | None = None
    """Latency of a message between hosts in microseconds, in place of a table's."""
    bandwidth_gb_s: float | None = None
    """Bandwidth of a host's network link in GB/s, in each direction, in place of a table's."""
    local_latency_us: float | None = None
    """The same between the ranks of a host; default: as between hosts."""
    local_bandwidth_gb_s: float | None = None
    """The same between the ranks of a host; default: as between hosts."""
    ranks: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    """Numbers of ranks to predict."""
    ranks_per_host: int = 1
    """Ranks of each host."""
    scaling: Literal["weak", "strong"] = "weak"
    """weak: each rank has as many images as in the run; strong: the run's global batch is divided."""
    overlap: float | None = None
    """Share of the communication hidden behind backward, of what could be: 0 to 1; default: by library."""
    messages: int = 0
    """Messages of a step's gradients; 0 takes the best number."""
    cycle_ms: float = 0.0
    """Longest wait of Horovod for its cycle: 0 for the event-driven core, 1 for one as published."""
    gradient_mb: float | None = None
    """Gradients of a step in MB of 10^6 bytes; default: those of the run's network."""
    spread: float | None = None
    """Standard deviation of a rank's step time, as a share of it; default: measured in the run."""
    storage_images_per_s: float | None = None
    """Images per second that shared storage delivers to all hosts together; default: no limit."""
    host_mtbf_hours: float | None = None
    """Mean time between failures of a host; default: no failures."""
    checkpoint_s: float = 1.0
    """Time to write a checkpoint."""
    restart_s: float = 60.0
    """Time from a failure to the next step."""
    epochs: float | None = None
    """Passes over the training images; default: those of the run."""
    images: float | None = None
    """Training images of an epoch; default: those of the run."""
    price_per_host_hour: float = 0.0
    """Price of a host for an hour, in any currency."""
    output: Path = Path("runs/scale")
    """Folder for scale.md, scale.json and scale.png."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise UserError("no run is given", "give the folder of a finished run, such as runs/NAME")
        if not all(0 < number <= MOST_RANKS for number in self.ranks) or not self.ranks:
            raise UserError("--ranks: invalid numbers", f"give integers from 1 to {MOST_RANKS:,}, such as 1 8 64")
        for field in dataclasses.fields(self):
            value, option = getattr(self, field.name), f"--{field.name.replace('_', '-')}"
            if isinstance(value, int | float) and not (0 <= value < math.inf):
                raise UserError(f"{option} {value} is invalid", "give a number of 0 or more")
            if value == 0 and field.name in POSITIVE:
                raise UserError(f"{option} 0 is invalid", "give a number above 0")
        if self.gradient_mb is not None and self.gradient_mb * 1e6 < NUMBER_BYTES:
            raise UserError(
                f"--gradient-mb {self.gradient_mb} is less than one number", f"give {NUMBER_BYTES}e-6 or more"
            )
        if self.overlap is not None and self.overlap > 1:
            raise UserError(f"--overlap {self.overlap} is invalid", "give a share from 0 to 1")
        for where in ("", "local_"):
            given = [getattr(self, f"{where}{what}") for what in ("latency_us", "bandwidth_gb_s")]
            if given.count(None) == 1:
                option = f"--{where.replace('_', '-')}"
                raise UserError(f"only one of {option}latency-us and {option}bandwidth-gb-s is given", "give both")
        if not self.allreduce and self.latency_us is None:
            raise UserError(
                "nothing tells how fast the network is",
                "give --allreduce FILE (from python -m hvdtrain bench allreduce), or --latency-us and --bandwidth-gb-s",
            )


POSITIVE = {
    "ranks_per_host",
    "bandwidth_gb_s",
    "local_bandwidth_gb_s",
    "gradient_mb",
    "storage_images_per_s",
    "host_mtbf_hours",
    "epochs",
    "images",
}
"""Options that 0 makes meaningless."""
