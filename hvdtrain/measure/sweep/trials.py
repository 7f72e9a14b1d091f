"""The trials of a sweep: which options each has, the name of its run, and the record of all in the sweep's folder."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import shlex
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from hvdtrain.config import sources
from hvdtrain.config.option import arguments, as_json, key
from hvdtrain.config.options import AUTO_RESUME
from hvdtrain.config.sources import check_recorded
from hvdtrain.errors import UserError
from hvdtrain.measure.sweep.ranges import Range
from hvdtrain.system.files import read_json, write_outputs
from hvdtrain.system.text import did_you_mean, to_json

FILE = "sweep.json"
LOCK_S = 60.0
"""How long a process waits for another one that writes the tables."""
LONGEST_NAME = 120
"""Longer names of runs, and those with characters that are special in file names, end with a checksum."""
GIVEN_TO_TRIALS = {name: about.in_sweep for name, about in sources.FACTS.items() if about.in_sweep}
"""The options that a sweep gives to each trial itself, and what to do instead."""

RANKS = "ranks"
"""The only option of a trial that is not one of training: `launch` gets it."""
RANK_OPTIONS = ("-n", "-np", "--ranks")
"""The option of `launch`."""

ARGUMENT = "arg."
"""Before the name of an argument of a task, whose values are texts."""
DASHES = "--"
"""Before the name of an option of the program's own, whose values are texts."""
OWN_OPTION = re.compile(r"--[A-Za-z][\w.-]*")

Settings = dict[str, list[Any]]
"""Values of each option to combine, by its name in Python; of a search also ranges: `[Range(...)]`."""


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
        """Without the number of ranks and the program's own, and with the arguments of a task as --arg has them."""
        options = {name: value for name, value in self.options.items() if name in sources.KINDS}
        arguments = [f"{name[len(ARGUMENT) :]}={value}" for name, value in self.options.items() if is_argument(name)]
        return {**options, **({"arg": tuple(arguments)} if arguments else {})}

    def arguments(self, folder: Path) -> list[str]:
        """What is added to the command line of training. folder: the sweep's."""
        given = {"seed": self.seed, "runs": folder, "name": self.name, "resume": AUTO_RESUME}
        own = [f"{name}={value}" for name, value in self.options.items() if name.startswith(DASHES)]
        return [*own, *arguments({**self.training_options, **given})]

    def command(self, command: list[str], folder: Path) -> list[str]:
        """The command line of its job. command: what follows `hvdtrain`. folder: the sweep's."""
        return [*self.launched(command), *self.arguments(folder)]

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


def is_argument(name: str) -> bool:
    """Whether this is an argument of a task, and no option."""
    return name.startswith(ARGUMENT)


def is_text(name: str) -> bool:
    """Whether its values are texts, as hvdtrain does not know what they mean."""
    return is_argument(name) or name.startswith(DASHES)


def written(name: str) -> str:
    """The name of an option or of a task's argument as users write it."""
    return name if is_text(name) else key(name)


def parse_settings(
    texts: list[str], has_task: bool = False, is_foreign: bool = False, of_task: Collection[str] = ()
) -> Settings:
    """The settings of `--set NAME=V1,V2`. Raises UserError for names and values that no trial can have.

    has_task: whether the trials train a task: a name that is no option of training is then an argument of it.
    of_task: names of its arguments, as far as they are known; others must not be close to that of an option. In any
    case `--set arg.NAME=V1,V2` is, and `--set arg=NAME=V1,NAME=V2`, which has each as training gets it. is_foreign:
    whether the program may have options of its own, as a script has: `--set --NAME=V1,V2` gives it `--NAME=V1`.
    """
    settings: Settings = {}
    for text in texts:
        where = f"--set {text}"
        name, sign, values = map(str.strip, text.partition("="))
        if not sign:
            raise UserError(f"{where}: no values", "write --set NAME=VALUE,VALUE, such as --set lr=0.05,0.1")
        parts = [part.strip() for part in values.split(",")]
        if name == "arg":
            name, parts = _of_one_argument(parts, where)
        name = f"{ARGUMENT}{name}" if name in of_task and name not in sources.KINDS else name
        name = _find(name, where, has_task, is_foreign)
        if name in GIVEN_TO_TRIALS:
            raise UserError(f"{where}: a sweep sets --{key(name)} itself", GIVEN_TO_TRIALS[name])
        if name in settings or name.removeprefix(DASHES).replace("-", "_") in settings:
            raise UserError(f"{where}: {written(name)} has values already", "write all after one --set")
        if "" in parts:
            raise UserError(f"{where}: a value is empty", "write values with one comma between them")
        settings[name] = _values(name, parts, where)
    return settings


def _values(name: str, parts: list[str], where: str) -> list[Any]:
    """The values of an option, each once, or the one range. Raises UserError for what it cannot have."""
    drawn = Range.parse(parts[0], where)
    if drawn is None:
        return list(dict.fromkeys(from_text(name, part, where) for part in parts))
    if len(parts) > 1:
        raise UserError(f"{where}: a range and other values", "give either a range or values")
    for end in drawn.ends:
        from_text(name, end, where)
    return [drawn]


def from_text(name: str, text: str, where: str) -> Any:
    """The value of an option, a task's argument or the number of ranks. Raises UserError beginning with `where`."""
    if name == RANKS:
        return int(text)
    return text if is_text(name) else sources.from_text(name, text, where)


def _find(name: str, where: str, has_task: bool, is_foreign: bool) -> str:
    """The name in Python of an option, or that of an argument of a task, after `ARGUMENT`, or as the program has it."""
    if OWN_OPTION.fullmatch(name):
        if is_foreign and name[2:].replace("-", "_") not in GIVEN_TO_TRIALS:
            return name
        name = name[2:]
    argument = name.removeprefix(ARGUMENT)
    if is_argument(name) and argument.isidentifier():
        return name
    try:
        return sources.find(name, where)
    except UserError as error:
        if not argument.isidentifier():
            raise
        if has_task and not did_you_mean(key(name), map(key, sources.KINDS)):
            return f"{ARGUMENT}{name}"
        remedy = f"{error.remedy}; for an argument of a task write --set {ARGUMENT}{name}=..."
        raise UserError(error.reason, remedy) from None


def _of_one_argument(parts: list[str], where: str) -> tuple[str, list[str]]:
    """Name and values of `NAME=V1`, `NAME=V2`. Raises UserError for different names."""
    pairs = [part.partition("=") for part in parts]
    names = {name for name, _, _ in pairs}
    if len(names) > 1 or not all(sign and name.isidentifier() for name, sign, _ in pairs):
        raise UserError(f"{where}: is not of one argument", "write --set arg.NAME=V1,V2 for each argument of the task")
    return f"{ARGUMENT}{names.pop()}", [value for _, _, value in pairs]


def parse_ranks(text: str, command: list[str]) -> list[int]:
    """The numbers of `--np N1,N2`. Raises UserError for others, and for a command that starts no ranks."""
    numbers = text.split(",")
    if not all(number.isascii() and number.isdecimal() and int(number[:9]) > 0 for number in numbers):
        raise UserError(f"--np {text:.80}: is invalid", "give positive integers, for example 1,2,4")
    if command and (command[0] != "launch" or "--" not in command):
        reason = f"--np {text:.80}: only a command with launch has a number of ranks, and -- before its program"
        raise UserError(reason, "write -- launch local -- python -m hvdtrain.torch_lenet OPTIONS")
    words = command[: command.index("--")] if command else []
    if any(word.partition("=")[0] in RANK_OPTIONS for word in words):
        raise UserError(f"--np {text:.80}: launch has a number of ranks already", "leave out its -n")
    return list(dict.fromkeys(int(number) for number in numbers))


def plan(settings: Settings, seeds: int) -> list[Trial]:
    """All trials. Those of a seed follow each other, so that an interrupted sweep has compared all combinations."""
    names = sorted(settings)
    combinations = list(itertools.product(*(settings[name] for name in names)))
    return [Trial(dict(zip(names, values, strict=True)), seed) for seed in range(seeds) for values in combinations]


def is_complete(trial: Trial, folder: Path, expected: dict[str, Any]) -> bool:
    """Whether the trial's result exists in the sweep's folder.

    expected: options as JSON values, with which it is run. Raises UserError if it was begun with others.
    """
    run = folder / trial.name
    if (run / "config.json").is_file():
        check_recorded(run, expected)
    return (run / "result.json").is_file()


class SweepRecord:
    """The sweep's command, and all trials that it has had, in `sweep.json`."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        """Read the record of the folder, if there is one. Raises UserError if it is of another command, or damaged."""
        self._path, self.command = folder / FILE, command
        self.trials: list[Trial] = []
        if not self._path.exists():
            return
        known, self.trials = _recorded(self._path)
        if known != command:
            reason = f"{folder} holds a sweep of another command: {' '.join(known)}"
            raise UserError(reason, "repeat that command, or give another --output")

    @classmethod
    def read(cls, folder: Path) -> SweepRecord:
        """That of a folder, whatever its command is. Raises UserError if it has no trials, or is damaged."""
        command, trials = _recorded(folder / FILE) if (folder / FILE).exists() else ([], [])
        if not trials:
            raise UserError(f"--output {folder} holds no sweep", "name the folder of one with --output")
        return cls(folder, command)

    def add(self, trials: list[Trial]) -> None:
        """Write the record with these trials in addition. Raises UserError if that fails."""
        self.trials += [trial for trial in trials if trial not in self.trials]
        folder = self._path.parent
        records = [
            {
                "options": as_json(trial.options),
                "seed": trial.seed,
                "command_line": shlex.join(["hvdtrain", *trial.command(self.command, folder)]),
            }
            for trial in self.trials
        ]
        content = to_json({"command": self.command, "trials": records}, indent=1) + "\n"
        write_outputs(folder, "--output", {FILE: content})


def _recorded(path: Path) -> tuple[list[str], list[Trial]]:
    """The command and the trials of a record. Raises UserError if it is damaged."""
    try:
        content = read_json(path)
        command, trials = content["command"], [_from_json(record) for record in content["trials"]]
        if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
            raise TypeError(f"command is {command!r:.80}")
        return command, trials
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path}: no valid record of a sweep ({error})", "remove it, or give another --output"
        ) from None


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Only one process at a time reads and writes the sweep's record and tables: those of an array run at once."""
    lock = FileLock(folder / f".{FILE}.lock", timeout=LOCK_S)
    with contextlib.suppress(OSError, NotImplementedError, Timeout):  # a shared folder may have no locks
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _from_json(record: dict[str, Any]) -> Trial:
    options, seed = record["options"], record["seed"]
    if type(seed) is not int:
        raise TypeError(f"seed is {seed!r:.80}")
    return Trial({name: _value(name, value) for name, value in sorted(options.items())}, seed)


def _value(name: str, value: Any) -> Any:
    if is_text(name) and isinstance(value, str):
        return value
    if name != RANKS:
        return sources.from_toml(name, value, FILE)
    if type(value) is not int or value < 1:
        raise ValueError(f"{RANKS} is {value!r:.80}")
    return value
