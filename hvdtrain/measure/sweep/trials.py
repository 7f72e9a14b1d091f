"""The trials of a sweep: the options of each, the name of its run and its command line."""

from __future__ import annotations

import hashlib
import itertools
import re
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.config import sources
from hvdtrain.config.option import arguments, key
from hvdtrain.config.options import AUTO_RESUME
from hvdtrain.errors import UserError
from hvdtrain.measure.sweep import ranges
from hvdtrain.system.run_end import RunEnd

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
ARGUMENT = f"{OF_TASK}."
"""Before the name of an argument of a task, whose values are texts."""
DASHES = "--"
"""Before the name of an option of the program's own, whose values are texts."""

COMPLETE, PRUNED = "complete", "pruned"
"""What becomes of a trial that is not run again."""

Settings = dict[str, Any]
"""The list of values of each option, by its name in Python; of a search also ranges, which are distributions."""


class Trial(NamedTuple):
    """One job of a sweep."""

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
        values = {**self.options, "seed": self.seed}
        exact = ",".join(f"{written(name).removeprefix(DASHES)}={shown(value)}" for name, value in values.items())
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

    def launched(self, command: list[str]) -> list[str]:
        """The command of the sweep, with the number of ranks if trials have their own."""
        if RANKS not in self.options:
            return command
        end = command.index("--")
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


def plan(settings: Settings, seeds: int) -> list[Trial]:
    """All trials. Those of a seed follow each other, so that an interrupted sweep has compared all combinations."""
    names = sorted(settings)
    combinations = list(itertools.product(*(settings[name] for name in names)))
    return [Trial(dict(zip(names, values, strict=True)), seed) for seed in range(seeds) for values in combinations]


def ends(name: str, values: Any, where: str) -> list[Any]:
    """The first and the last value of an option's list or range. Raises UserError beginning with `where`."""
    if isinstance(values, list):
        return [values[0], values[-1]]
    return [from_text(name, ranges.text_of(end, values), where) for end in (values.low, values.high)]


def corners(settings: Settings) -> list[Trial]:
    """Trials with the first and with the last value of each option, by which options can be checked."""
    values = {name: ends(name, settings[name], "--set") for name in sorted(settings)}
    return [Trial({name: both[place] for name, both in values.items()}, 0) for place in (0, 1)]
