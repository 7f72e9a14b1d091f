"""The options and the trials of a sweep: the options of each, the name of its run, its command line; and ranges."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from hvdtrain.config import sources
from hvdtrain.config.option import ARGUMENT, arguments, as_options, key, option
from hvdtrain.config.options import AUTO_RESUME
from hvdtrain.errors import UserError, needed_by
from hvdtrain.jobs.series import SWEEP
from hvdtrain.runs.run import RecordedRun
from hvdtrain.system.run_end import RunEnd

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

LONGEST_NAME = 120
"""Longer names of runs, and those with characters that are special in file names, end with a checksum."""
GIVEN_TO_TRIALS = {name: about.in_sweep for name, about in sources.FACTS.items() if about.in_sweep}
"""The options that a sweep gives to each trial itself, and what to do instead."""
RESUME: dict[str, Any] = {"resume": AUTO_RESUME}
"""The option with which a trial begins its run or resumes it."""

RANKS = "ranks"
"""The only option of a trial that is not one of training: `launch` gets it."""
OF_TASK = "arg"
"""The option of training that gives an argument to a task."""
DASHES = "--"
"""Before the name of an option of the program's own, whose values are texts."""

COMPLETE: Final = "complete"
PRUNED: Final = "pruned"
"""What becomes of a trial that is not run again."""
RANGE = re.compile(r"(float|int|log|logint):(.+)", re.DOTALL)
DIGITS = 6
"""Significant digits of a drawn number: all that matter, in names of runs that can be read."""
REMEDY = (
    "write log:1e-4:1e-1 (evenly by the logarithm), float:0:0.5 (evenly), int:8:64 or logint:8:512 (integers); "
    "float and int may have a step, as int:8:64:8"
)

Settings = dict[str, Any]
"""The list of values of each option, by its name in Python; of a search also ranges, which are distributions."""


class Trial(NamedTuple):
    options: dict[str, Any]
    """By their names in Python, in alphabetical order."""
    seed: int

    @property
    def label(self) -> str:
        """The options as text; empty for a sweep over seeds only."""
        return ", ".join(f"{written(name)} {shown(value)}" for name, value in self.options.items())

    @property
    def name(self) -> str:
        """The name of its run, which no other combination of options has: `lr=0.1,momentum=0.9,seed=0`."""
        values = [(written(name).removeprefix(DASHES), shown(value)) for name, value in self.options.items()]
        exact = ",".join(f"{name}={value.replace(',', ',,')}" for name, value in [*values, ("seed", str(self.seed))])
        safe = re.sub(r"[^A-Za-z0-9=,._+-]", "-", exact)
        if safe == exact and len(exact) <= LONGEST_NAME:
            return exact
        checksum = hashlib.sha256(exact.encode("utf-8", "surrogateescape")).hexdigest()[:8]
        return f"{safe[:LONGEST_NAME]}-{checksum}"

    @property
    def training_options(self) -> dict[str, Any]:
        """Without the number of ranks and the program's own, and with the arguments of a task as training gets them."""
        options = {name: value for name, value in self.options.items() if name in sources.KINDS}
        given = [f"{name[len(ARGUMENT) :]}={text}" for name, text in self.options.items() if name.startswith(ARGUMENT)]
        return {**options, **({OF_TASK: tuple(given)} if given else {})}

    def command(self, command: list[str], folder: Path) -> list[str]:
        """The command line of its job. command: what follows `hvdtrain`. folder: the sweep's."""
        own = [f"{name}={value}" for name, value in self.options.items() if name.startswith(DASHES)]
        given = {"seed": self.seed, "runs": folder, "name": self.name, **RESUME}
        return [*self.launched(command), *own, *arguments({**self.training_options, **given})]

    def status(self, folder: Path) -> str:
        """COMPLETE if its run in the sweep's folder has a result, else how that ended; empty if it has not."""
        if (folder / self.name / "result.json").is_file():
            return COMPLETE
        end = RunEnd.read(folder / self.name)
        return end.status if end else ""

    def run(self, folder: Path) -> RecordedRun:
        """Its run in the sweep's folder, whose settings also have the options that training does not record."""
        run = RecordedRun(folder / self.name).require()
        recorded = {RANKS, *run.options, *run.settings}
        run.settings.update({name: shown(value) for name, value in self.options.items() if name not in recorded})
        return run

    def launched(self, command: list[str]) -> list[str]:
        """The command of the sweep, with the number of ranks if trials have their own."""
        if RANKS not in self.options:
            return command
        end = command.index("--") if "--" in command else len(command)
        return [*command[:end], "-n", str(self.options[RANKS]), *command[end:]]


def shown(value: Any) -> str:
    """A value as users write it."""
    if type(value) is tuple:  # and no range
        return " ".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_text(name: str) -> bool:
    """Whether its values are texts, as hvdtrain does not know what they mean."""
    return name.startswith((ARGUMENT, DASHES))


def written(name: str) -> str:
    """The name of an option or of a task's argument as users write it."""
    return name if is_text(name) else key(name)


def from_text(name: str, text: str, where: str) -> Any:
    """The value of an option, a task's argument or the number of ranks. Raises UserError beginning with `where`."""
    if name != RANKS:
        return text if is_text(name) else sources.from_text(name, text, where)
    if not (text.isascii() and text.isdecimal() and int(text[:9]) > 0):
        raise UserError(f"{where}: {text:.80} is no number of ranks", "give positive integers, for example 1,2,4")
    return int(text)


def import_optuna() -> Any:
    """The package, which takes a second to import. Raises MissingPackage where it is missing."""
    with needed_by("a sweep", "sweep"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def parse_range(text: str, where: str) -> BaseDistribution | None:
    """The range that a text describes; None for a text that is a value. Raises UserError for an invalid one."""
    match = RANGE.fullmatch(text)
    if not match:
        return None
    distributions, is_of_integers = import_optuna().distributions, match[1].endswith("int")
    number, kind = (int, distributions.IntDistribution) if is_of_integers else (float, distributions.FloatDistribution)
    try:
        low, high, *steps = map(number, match[2].split(":"))
        if len(steps) > 1 or not all(map(math.isfinite, (low, high, *steps))):
            raise ValueError("give two finite numbers, and perhaps a step")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a step that does not lead to `high` ends before it
            found = kind(low, high, match[1].startswith("log"), *steps)
    except (ValueError, OverflowError) as error:
        raise UserError(f"{where}: {text:.80} is no range ({error})", REMEDY) from None
    if found.single():
        raise UserError(f"{where}: {text:.80} has only one value", REMEDY)
    return found


def text_of(value: Any, distribution: Any) -> str:
    """A choice or a drawn number as users write it."""
    if not isinstance(value, float) or not hasattr(distribution, "low"):
        return str(value)
    return str(min(max(float(f"{value:.{DIGITS}g}"), distribution.low), distribution.high))


def plan(settings: Settings, seeds: int) -> list[Trial]:
    """All trials. Those of a seed follow each other, so that an interrupted sweep has compared all combinations."""
    names = sorted(settings)
    combinations = list(itertools.product(*(settings[name] for name in names)))
    return [Trial(dict(zip(names, values, strict=True)), seed) for seed in range(seeds) for values in combinations]


def ends(name: str, values: Any, where: str) -> list[Any]:
    """The first and the last value of an option's list or range. Raises UserError beginning with `where`."""
    if isinstance(values, list):
        return [values[0], values[-1]]
    return [from_text(name, text_of(end, values), where) for end in (values.low, values.high)]


def corners(settings: Settings) -> list[Trial]:
    """Trials with the first and with the last value of each option, by which options can be checked."""
    values = {name: ends(name, settings[name], "--set") for name in sorted(settings)}
    return [Trial({name: both[place] for name, both in values.items()}, 0) for place in (0, 1)]


@dataclass(frozen=True)
class SweepOptions:
    """Train with all combinations of some options, or with those that Optuna draws, each in a job of its own, and
    compare the results. COMMAND is what follows `hvdtrain` on a command line: train, or launch with a training program.
    Each trial adds its options, and the folder and name of its run, to the end of it.
    """

    set: tuple[str, ...] = option((), is_repeated=True)
    """NAME=V1,V2 for an option of training, `ranks` for those that launch starts, an argument of the task (arg.NAME) or
    an option of a script's own (--NAME); with several --set, all combinations. With --trials also a range:
    NAME=log:LOW:HIGH, float:LOW:HIGH, int:LOW:HIGH or logint:LOW:HIGH. Commas in brackets or quotes do not divide."""
    seeds: int = option(1, minimum=1)
    """Train each combination with the seeds 0 to N-1."""
    output: Path = option(Path(SWEEP))
    """Folder for the runs and the report; trials in it that are complete are not run again."""
    trials: int | None = option(None, minimum=1)
    """Draw N combinations by Optuna, instead of training all; the same command continues, also with a larger N."""
    sampler: Literal["tpe", "random"] = option("tpe")
    """What draws them."""
    pruner: Literal["median", "halving", "none"] = option("median")
    """Ends trials that do worse than others: below the median at the same evaluation, or by successive halving."""
    trial: int | None = option(None, minimum=0)
    """Run only this trial, from 0 on in the order of --dry-run; default in an array of Slurm: that of the task."""
    table: bool = option(False, is_switch=True)
    """Run nothing: write and print the report on the trials in --output."""
    dry_run: bool = option(False, is_switch=True)
    """Print the command line of each trial, and start nothing."""

    def __post_init__(self) -> None:
        as_options(self)
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
