"""Options that never change the result of a run: where it is stored, what it uses of this machine, how it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hvdtrain.errors import UserError


@dataclass(frozen=True)
class RuntimeOptions:
    """Where a run lies, what it uses of this machine, and how it is shown; none of it changes the result."""

    runs: Path = Path("runs")
    """Folder of all runs."""
    name: str = ""
    """Name of this run's folder; by default made of data, framework, strategy and time."""
    resume: Path | None = None
    """Run folder or checkpoint to continue from; its recorded options become the defaults."""
    auto_resume: bool = False
    """Go on in the folder of --name where it holds a checkpoint, else begin there: for jobs that are started again."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """auto takes a GPU where the framework sees one."""
    elastic: bool = False
    """Ranks may come and go (Horovod Elastic); started by launch horovodrun --elastic."""
    devices: int = 0
    """Devices of one process, for strategies that use several; 0 takes all its GPUs, or two parts of the CPU."""
    offline: bool = False
    """Never touch the network."""
    checkpoint_every: int = 0
    """Steps between checkpoints, beside the one at each epoch's end; 0 for none."""
    keep: int = 3
    """Newest checkpoints to keep, beside the best."""
    profile: int = 0
    """Steps measured at the end without joining gradients, to tell computing from communicating; 0 for none."""
    hang_timeout: float = 0.0
    """Seconds without a step that end the job, with every rank's stacks; 0 for ten of the longest step, 30 at least."""
    check_sync: int = 0
    """Steps between comparisons of all ranks' parameter checksums; 0 compares at the start and at the end."""
    log_every: int = 20
    """Steps between two records of loss and speed."""
    tensorboard: bool = False
    """Write TensorBoard events as well."""
    quiet: bool = False
    """Show nothing on the console but errors."""

    def __post_init__(self) -> None:
        for name, least in PLACES_LEAST.items():
            if getattr(self, name) < least:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: give {least} or more")
        if self.auto_resume and (self.resume or not self.name):
            raise UserError("--auto-resume: give the run a --name, by which it is found again, and no --resume")


PLACES_LEAST = {
    "keep": 1,
    "log_every": 1,
    "checkpoint_every": 0,
    "check_sync": 0,
    "devices": 0,
    "profile": 0,
    "hang_timeout": 0,
}
