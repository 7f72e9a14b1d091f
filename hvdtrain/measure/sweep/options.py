"""The options of `hvdtrain sweep`, before -- and the command of its trials."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hvdtrain.config.option import option
from hvdtrain.config.validity import check_ranges
from hvdtrain.errors import UserError
from hvdtrain.jobs.series import SWEEP


@dataclass(frozen=True)
class SweepOptions:
    """Train with all combinations of some options, or with those that Optuna draws, each in a job of its own, and
    compare the results. COMMAND is what follows `hvdtrain` on a command line: train, or launch with a training program.
    Each trial adds its options, and the folder and name of its run, to the end of it.
    """

    set: tuple[str, ...] = option((), is_repeated=True)
    """NAME=V1,V2 for an option of training, `ranks` for those that launch starts, an argument of the task (arg.NAME) or
    an option of a script's own (--NAME); with several --set, all combinations. With --trials also a range:
    NAME=log:LOW:HIGH, float:LOW:HIGH, int:LOW:HIGH or logint:LOW:HIGH."""
    seeds: int = option(1, minimum=1)
    """Train each combination with the seeds 0 to N-1."""
    output: Path = option(Path(SWEEP))
    """Folder for the runs and the tables; trials in it that are complete are not run again."""
    trials: int | None = option(None, minimum=1)
    """Draw N combinations by Optuna, instead of training all; the same command continues, also with a larger N."""
    sampler: Literal["tpe", "random"] = option("tpe")
    """What draws them."""
    pruner: Literal["median", "halving", "none"] = option("median")
    """Ends trials that do worse than others: below the median at the same evaluation, or by successive halving."""
    trial: int | None = option(None, minimum=0)
    """Run only this trial, from 0 on in the order of --dry-run; default in an array of Slurm: that of the task."""
    table: bool = option(False, is_switch=True)
    """Run nothing: write and print the table of the trials in --output."""
    dry_run: bool = option(False, is_switch=True)
    """Print the command line of each trial, and start nothing."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.trials is None:
            for name in ("sampler", "pruner"):
                if getattr(self, name) != getattr(SweepOptions, name):
                    raise UserError(f"--{name}: belongs to a search", "give --trials N, the number of trials")
        elif not self.set:
            raise UserError("--trials: nothing to draw", "give --set NAME=log:LOW:HIGH, or other ranges or values")
        elif self.trial is not None or self.dry_run:
            name = "--dry-run" if self.dry_run else "--trial"
            reason = f"{name}: the trials of a search are drawn one after the other, from the results before"
            raise UserError(reason, "leave it out; the same command may run several times at once")

    @property
    def search(self) -> str:
        """What all processes of a search give; empty for a grid, which may grow."""
        given = " ".join(f"--set {text}" for text in sorted(self.set))
        return f"{given} --seeds {self.seeds} --sampler {self.sampler}" if self.trials else ""
