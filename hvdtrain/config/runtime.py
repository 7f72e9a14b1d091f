"""`RuntimeOptions`: where a run is stored, what it uses of this host, how it is shown; none changes its result."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from hvdtrain.config.options import NUMBER_LIMIT
from hvdtrain.config.step_range import StepRange
from hvdtrain.errors import UserError
from hvdtrain.system.rank_info import RUN_NAME

MINIMA = {
    "keep": 1,
    "log_every": 1,
    "checkpoint_every": 0,
    "checkpoint_seconds": 0,
    "check_sync": 0,
    "devices": 0,
    "profile": 0,
    "hang_timeout": 0,
}
"""The smallest value of each option that has one."""
MOST_WORKERS = 256
"""More threads or processes of one rank are a mistake."""
FREE_PER_RANK = frozenset({"runs", "offline", "keep", "hang_timeout", "quiet", "bind", "workers", "device_data"})
FREE_PER_RANK |= {"tracker", "tensorboard", "on_end"}
"""The options that may differ between ranks. The ranks compare all others, as these decide which collectives a rank
calls: with different values, ranks would wait for each other for ever."""


@dataclass(frozen=True)
class RuntimeOptions:
    """What does not change the result of a run; the options in FREE_PER_RANK may differ between ranks."""

    # The texts below the options are their --help.

    runs: Path = Path("runs")
    """Folder that contains all runs."""
    name: str = ""
    """Name of this run's folder; by default data, framework, strategy, number of ranks and time."""
    resume: Path | None = None
    """Run folder or checkpoint to resume; the recorded options become the defaults."""
    auto_resume: bool = False
    """Resume the run --name if it has a checkpoint, else start it: for jobs that are restarted automatically."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Device; auto uses a GPU if the framework finds one."""
    bind: Literal["auto", "none"] = "auto"
    """auto binds each rank to its share of the host's cores where each gets two hardware threads or more."""
    elastic: bool = False
    """Allow ranks to join and leave (Elastic Horovod); start the job with launch horovodrun --elastic."""
    devices: int = 0
    """Devices per process, for strategies that use several; 0 for all its GPUs, or two virtual CPU devices."""
    cuda_graph: bool = False
    """Launch each step as one CUDA graph instead of operation by operation (PyTorch on GPUs)."""
    device_data: Literal["auto", "off"] = "auto"
    """auto keeps training data that is in memory on the GPU, too, if it takes a quarter of its free memory or less."""
    workers: int | Literal["auto"] = "auto"
    """Threads or processes that read rows ahead; auto chooses by the data and the cores of the rank, 0 reads none."""
    offline: bool = False
    """Never access the network."""
    checkpoint_every: int = 0
    """Steps between checkpoints, in addition to those at the end of each epoch; 0 for none."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints, written at the next logging step within 1 % of the time; 0 for none by time."""
    keep: int = 3
    """Number of newest checkpoints to keep, in addition to the best."""
    profile: int = 0
    """Steps timed without communication after training, to split a step's time into its parts; 0 for none."""
    hang_timeout: float = 0.0
    """Seconds without a step after which the job is ended as hung; 0 for ten times the longest step, at least 30."""
    check_sync: int = 0
    """Steps between comparisons of all ranks' parameters; 0 compares them only at the start and the end."""
    log_every: int = 20
    """Steps between logging steps, which record loss and speed and check for stop requests."""
    timeline: str = ""
    """Steps FIRST:LAST, such as 100:110, of which to record what each rank did and waited for, in one file."""
    framework_profiler: bool = False
    """Run the framework's own profiler, too, in the steps of --timeline."""
    tracker: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Where records go, too: tensorboard, mlflow, wandb, prometheus, or a package's; may be given several times."""
    tensorboard: bool = False
    """Short form of --tracker tensorboard."""
    on_end: str = ""
    """Shell command that rank 0 runs when training ends, with HVDTRAIN_STATUS and more in its environment."""
    quiet: bool = False
    """Print only errors on the console."""

    @property
    def trackers(self) -> tuple[str, ...]:
        """The names of all trackers, each once."""
        return tuple(dict.fromkeys([*self.tracker, *(["tensorboard"] if self.tensorboard else [])]))

    def __post_init__(self) -> None:
        for name, minimum in MINIMA.items():
            value, option = getattr(self, name), f"--{name.replace('_', '-')}"
            if not value >= minimum:  # written so that NaN is caught
                raise UserError(f"{option} {value}: must be {minimum} or more")
            if value >= NUMBER_LIMIT:
                raise UserError(f"{option} {value}: is too large")
        if self.workers != "auto" and not 0 <= self.workers <= MOST_WORKERS:
            raise UserError(f"--workers {self.workers}: must be auto, or from 0 to {MOST_WORKERS}")
        if self.timeline:
            StepRange.parse(self.timeline, "--timeline")
        elif self.framework_profiler:
            raise UserError("--framework-profiler: it needs to know for which steps", "give them by --timeline")
        if self.timeline and self.elastic:
            raise UserError("--timeline: an elastic job has no fixed ranks to compare", "leave out --elastic")
        if self.auto_resume and (self.resume or not (self.name or os.environ.get(RUN_NAME))):
            raise UserError("--auto-resume: it finds the run by its name", "give the run a --name, and no --resume")
