"""The options of `python -m hvdtrain scale`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hvdtrain.config.option import option, positional
from hvdtrain.config.validity import check_ranges
from hvdtrain.errors import UserError

MAX_RANKS = 1 << 20
NUMBER_BYTES = 4
NETWORK, JOB, COST = "network", "job", "failures and cost"
"""The options' groups in --help."""
Library = Literal["auto", "horovod-gloo", "horovod-mpi", "gloo", "ring", "mpi", "nccl"]
AlgorithmOption = Literal["auto", "ring", "recursive-doubling", "rabenseifner", "hierarchical"]


@dataclass(frozen=True)
class ScaleOptions:
    """Predict speed, efficiency, time and cost of training on more ranks than were measured."""

    runs: tuple[Path, ...] = positional()
    """Folders of finished runs of one network; several differ in batch size or machine."""
    allreduce: tuple[Path, ...] = option((), NETWORK)
    """Tables of `bench allreduce` (allreduce.json); several of different numbers of ranks fit better."""
    library: Library = option("auto", NETWORK)
    """Library of the allreduce; auto takes that of the runs' strategy, else Horovod over Gloo."""
    algorithm: AlgorithmOption = option("auto", NETWORK)
    """Algorithm of the allreduce; auto takes what the library uses."""
    latency_us: float | None = option(None, NETWORK, minimum=0)
    """Latency of a message between hosts in microseconds, in place of a table's."""
    bandwidth_gb_s: float | None = option(None, NETWORK, above=0)
    """Bandwidth of a host's network link in GB/s, in each direction, in place of a table's."""
    local_latency_us: float | None = option(None, NETWORK, minimum=0)
    """The same between the ranks of a host; default: as between hosts."""
    local_bandwidth_gb_s: float | None = option(None, NETWORK, above=0)
    """The same between the ranks of a host; default: as between hosts."""
    ranks: tuple[int, ...] = option((1, 2, 4, 8, 16, 32, 64, 128, 256), JOB)
    """Numbers of ranks to predict."""
    ranks_per_host: int = option(1, JOB, above=0)
    """Ranks of each host."""
    scaling: Literal["weak", "strong"] = option("weak", JOB)
    """weak: each rank has as many images as in the run; strong: the run's global batch is divided."""
    overlap: float | None = option(None, NETWORK, minimum=0, maximum=1)
    """Share of the communication hidden behind backward, of what could be: 0 to 1; default: by library."""
    messages: int = option(0, NETWORK, minimum=0)
    """Messages of a step's gradients; 0 takes the best number."""
    cycle_ms: float = option(0.0, NETWORK, minimum=0)
    """Longest wait of Horovod for its cycle: 0 for the event-driven core, 1 for one as published."""
    gradient_mb: float | None = option(None, NETWORK, above=0)
    """Gradients of a step in MB of 10^6 bytes; default: those of the run's network."""
    spread: float | None = option(None, JOB, minimum=0)
    """Standard deviation of a rank's step time, as a share of it; default: measured in the run."""
    storage_images_per_s: float | None = option(None, JOB, above=0)
    """Images per second that shared storage delivers to all hosts together; default: no limit."""
    host_mtbf_hours: float | None = option(None, COST, above=0)
    """Mean time between failures of a host; default: no failures."""
    checkpoint_s: float = option(1.0, COST, minimum=0)
    """Time to write a checkpoint."""
    restart_s: float = option(60.0, COST, minimum=0)
    """Time from a failure to the next step."""
    epochs: float | None = option(None, JOB, above=0)
    """Passes over the training images; default: those of the run."""
    images: float | None = option(None, JOB, above=0)
    """Training images of an epoch; default: those of the run."""
    price_per_host_hour: float = option(0.0, COST, minimum=0)
    """Price of a host for an hour, in any currency."""
    output: Path = option(Path("runs/scale"))
    """Folder for scale.md, scale.json and scale.png."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise UserError("no run is given", "give the folder of a finished run, such as runs/NAME")
        if not all(0 < number <= MAX_RANKS for number in self.ranks) or not self.ranks:
            raise UserError("--ranks: invalid numbers", f"give integers from 1 to {MAX_RANKS:,}, such as 1 8 64")
        check_ranges(self)
        if self.gradient_mb is not None and self.gradient_mb * 1e6 < NUMBER_BYTES:
            raise UserError(
                f"--gradient-mb {self.gradient_mb} is less than one number", f"give {NUMBER_BYTES}e-6 or more"
            )
        for where in ("", "local_"):
            given = [getattr(self, f"{where}{what}") for what in ("latency_us", "bandwidth_gb_s")]
            if given.count(None) == 1:
                prefix = f"--{where.replace('_', '-')}"
                raise UserError(f"only one of {prefix}latency-us and {prefix}bandwidth-gb-s is given", "give both")
        if not self.allreduce and self.latency_us is None:
            raise UserError(
                "nothing tells how fast the network is",
                "give --allreduce FILE (from python -m hvdtrain bench allreduce), or --latency-us and --bandwidth-gb-s",
            )
