"""The command line of a sweep: its options, with the values and ranges of --set, and the number of a trial."""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Mapping
from typing import Any

from hvdtrain.cli.training_program import training_program
from hvdtrain.config import sources
from hvdtrain.config.option import key
from hvdtrain.config.option_parser import OptionParser
from hvdtrain.errors import UserError
from hvdtrain.jobs.slurm.sbatch import last_task
from hvdtrain.measure.sweep import ranges
from hvdtrain.measure.sweep.options import SweepOptions
from hvdtrain.measure.sweep.trials import (
    ARGUMENT,
    DASHES,
    GIVEN_TO_TRIALS,
    OF_TASK,
    RANKS,
    Settings,
    from_text,
    written,
)
from hvdtrain.system import removed
from hvdtrain.system.command import joined
from hvdtrain.system.python_files import class_arguments, is_reference
from hvdtrain.system.text import did_you_mean

PROGRAM = "python -m hvdtrain sweep"
RANK_OPTIONS = {"-n", "-np", "--ranks"}
"""The option of `launch`."""
TASK = "SLURM_ARRAY_TASK_ID"
OWN_OPTION = re.compile(r"--[A-Za-z][\w.-]*")


def parser() -> OptionParser:
    made = OptionParser(PROGRAM, inspect.getdoc(SweepOptions) or "", replacements=removed.SWEEP)
    made.usage = f"{PROGRAM} [OPTIONS] -- COMMAND..."
    made.add(SweepOptions)
    return made


def parse(words: list[str]) -> SweepOptions:
    """The sweep's own options. Raises UserError for values that no sweep can have."""
    return SweepOptions(**parser().parse(joined(words, "--set")))


def parse_settings(options: SweepOptions, command: list[str]) -> Settings:
    """The values and ranges of `--set NAME=V1,V2`. Raises UserError for names and values that no trial can have.

    command: of the trials; empty where it is not known. If it trains a task, a name that is no option of training is an
    argument of the task; `set.NAME` always is one. `--set --NAME=V1,V2` gives `--NAME=V1` to a program that is not
    hvdtrain's.
    """
    settings: Settings = {}
    for text in options.set:
        where = f"--set {text}"
        given, sign, values = map(str.strip, text.partition("="))
        if not sign:
            raise UserError(f"{where}: no values", "write --set NAME=VALUE,VALUE, such as --set lr=0.05,0.1")
        name = _find(given, where, command)
        if name in GIVEN_TO_TRIALS:
            raise UserError(f"{where}: a sweep sets --{key(name)} itself", GIVEN_TO_TRIALS[name])
        if name in settings or name.removeprefix(DASHES).replace("-", "_") in settings:
            raise UserError(f"{where}: {written(name)} has values already", "write all after one --set")
        settings[name] = _values(name, [part.strip() for part in values.split(",")], where)
        if options.trials is None and not isinstance(settings[name], list):
            raise UserError(f"{where}: a range is for a search", "give --trials N, the number of combinations to draw")
    launcher = command[: command.index("--")] if command[:1] == ["launch"] and "--" in command else []
    if RANKS in settings and command and (not launcher or {word.partition("=")[0] for word in launcher} & RANK_OPTIONS):
        reason = f"--set {RANKS}: the command has no launch without a number of ranks, or no -- before its program"
        raise UserError(reason, "write -- launch local -- python -m hvdtrain.torch_lenet OPTIONS")
    return settings


def _values(name: str, parts: list[str], where: str) -> Any:
    """The values of an option, each once, or the range. Raises UserError for what it cannot have."""
    if "" in parts:
        raise UserError(f"{where}: a value is empty", "write values with one comma between them")
    drawn = ranges.parse(parts[0], where)
    if drawn is None:
        return list(dict.fromkeys(from_text(name, part, where) for part in parts))
    if len(parts) > 1:
        raise UserError(f"{where}: a range and other values", "give either a range or values")
    for end in ranges.ends(drawn):
        from_text(name, end, where)
    return drawn


def _find(name: str, where: str, command: list[str]) -> str:
    """The name in Python of an option, or that of an argument of a task, after `ARGUMENT`, or as the program has it."""
    if OWN_OPTION.fullmatch(name):
        is_foreign = not command or (command[0] == "launch" and training_program(command) is None)
        if is_foreign and name[2:].replace("-", "_") not in GIVEN_TO_TRIALS:
            return name
        name = name[2:]
    if name == RANKS:
        return name
    if name == OF_TASK:
        raise UserError(f"{where}: names no argument", f"write --set {ARGUMENT}NAME=V1,V2 for an argument of the task")
    argument, task = name.removeprefix(ARGUMENT), _task(command)
    is_argument = argument.isidentifier()
    if is_argument and (argument != name or (name not in sources.KINDS and name in class_arguments(task))):
        return f"{ARGUMENT}{argument}"
    try:
        return sources.find(name, where)
    except UserError as error:
        if is_argument and (task or not command) and not did_you_mean(key(name), map(key, sources.KINDS)):
            return f"{ARGUMENT}{name}"
        if not is_argument:
            raise
        remedy = f"{error.remedy}; for an argument of a task write --set {ARGUMENT}{name}=..."
        raise UserError(error.reason, remedy) from None


def _task(command: list[str]) -> str:
    """The task in the command; empty where it names none."""
    words = (word.removeprefix("--model=") for word in command)
    return next((word for word in words if is_reference(word)), "")


def trial_number(options: SweepOptions, count: int, environment: Mapping[str, str] = os.environ) -> int | None:
    """The only trial to run, of `count`; None for all of them. Raises UserError for a number that no trial has."""
    given, task = options.trial, environment.get(TASK, "")
    if given is None and not options.dry_run and task.isdecimal() and len(task) < 10:
        given = int(task)
    if given is not None and given >= count:
        where = f"--trial {given}" if options.trial is not None else f"{TASK}={given}"
        raise UserError(f"{where}: {_range(count)}", f"give one of them; for all with Slurm, --array 0-{count - 1}")
    return given


def check_trials(words: list[str], command: list[str], array: str) -> None:
    """Raises UserError for a sweep that could not start in a batch job. array: the tasks that are asked for, if any."""
    options = parse(words)
    settings = parse_settings(options, command)
    if array and options.trials:
        reason = f"--array {array}: the trials of a search are drawn one after the other"
        raise UserError(reason, "leave it out; the same command may run in several jobs at once")
    count = options.seeds * math.prod(len(values) for values in settings.values() if isinstance(values, list))
    if array and options.trial is None and (last := last_task(array)) >= count:
        raise UserError(f"--array {array}: task {last} has no trial, as {_range(count)}", f"give --array 0-{count - 1}")


def _range(count: int) -> str:
    return f"the sweep has {count} trials, 0 to {count - 1}" if count > 1 else "the sweep has only trial 0"
