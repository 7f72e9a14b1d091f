"""The command line of a sweep: its options, with the values and ranges of --set, and the program that it trains."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from hvdtrain.config import sources
from hvdtrain.config.option import ARGUMENT, key
from hvdtrain.config.option_parser import OptionParser, parser_of
from hvdtrain.errors import UserError
from hvdtrain.jobs.own_program import own_program
from hvdtrain.jobs.sbatch import last_task
from hvdtrain.measure.sweep.trials import (
    DASHES,
    GIVEN_TO_TRIALS,
    OF_TASK,
    RANKS,
    Settings,
    SweepOptions,
    ends,
    from_text,
    parse_range,
    written,
)
from hvdtrain.system import removed
from hvdtrain.system.command import joined

PROGRAM = "python -m hvdtrain sweep"
TASK = "SLURM_ARRAY_TASK_ID"


def parser() -> OptionParser:
    made = parser_of(SweepOptions, PROGRAM, removed.SWEEP)
    made.usage = f"{PROGRAM} [OPTIONS] -- COMMAND..."
    return made


def parse(words: list[str]) -> SweepOptions:
    """The sweep's own options. Raises UserError for values that no sweep can have."""
    return SweepOptions(**parser().parse(joined(words, "--set")))


def parse_settings(options: SweepOptions, command: list[str]) -> Settings:
    """The values and ranges of --set. Raises UserError for names and values that no trial can have.

    command: of the trials. If it is launch with a program that is not hvdtrain's, `--set --NAME=V1,V2` is an option of
    this program.
    """
    settings: Settings = {}
    for text in options.set:
        where = f"--set {text}"
        given, sign, values = map(str.strip, text.partition("="))
        if not sign:
            raise UserError(f"{where}: no values", "write --set NAME=VALUE,VALUE, such as --set lr=0.05,0.1")
        name = _find(given, where, command)
        option = name.removeprefix(DASHES).replace("-", "_")
        if option in GIVEN_TO_TRIALS:
            raise UserError(f"{where}: a sweep sets --{key(option)} itself", GIVEN_TO_TRIALS[option])
        if name in settings or option in settings:
            raise UserError(f"{where}: {written(name)} has values already", "write all after one --set")
        settings[name] = _values(name, [part.strip() for part in values.split(",")], where)
        if options.trials is None and not isinstance(settings[name], list):
            raise UserError(f"{where}: a range is for a search", "give --trials N, the number of combinations to draw")
    if RANKS in settings and command[:1] == ["launch"] and "--" not in command:
        reason = f"--set {RANKS}: the command has no launch with -- before its program"
        raise UserError(reason, "write -- train OPTIONS, or -- launch local -- PROGRAM OPTIONS")
    return settings


def _find(name: str, where: str, command: list[str]) -> str:
    """The name in Python of an option of training; others, and those of a task's arguments, as they are written."""
    is_argument = name.startswith(ARGUMENT) and name.removeprefix(ARGUMENT).isidentifier()
    is_own = name.startswith(DASHES) and command[:1] == ["launch"] and not own_program(command, "train")
    if name == RANKS or is_argument or is_own:
        return name
    remedy = f"for an argument of the task write --set {ARGUMENT}NAME=V1,V2"
    try:
        found = sources.find(name.removeprefix(DASHES), where)
    except UserError as error:
        raise UserError(error.reason, f"{error.remedy}; {remedy}") from None
    if found == OF_TASK:
        raise UserError(f"{where}: names no argument", remedy)
    return found


def _values(name: str, parts: list[str], where: str) -> Any:
    """The values of an option, each once, or the range. Raises UserError for what it cannot have."""
    if "" in parts:
        raise UserError(f"{where}: a value is empty", "write values with one comma between them")
    drawn = parse_range(parts[0], where)
    if drawn is None:
        return list(dict.fromkeys(from_text(name, part, where) for part in parts))
    if len(parts) > 1:
        raise UserError(f"{where}: a range and other values", "give either a range or values")
    ends(name, drawn, where)
    return drawn


def trial_number(options: SweepOptions, count: int, environment: Mapping[str, str] = os.environ) -> int | None:
    """The only trial to run, of `count`; None for all of them. Raises UserError for a number that no trial has."""
    given, task = options.trial, environment.get(TASK, "")
    if given is None and not options.dry_run and task.isdecimal() and len(task) < 10:
        given = int(task)
    if given is not None and given >= count:
        where = f"--trial {given}" if options.trial is not None else f"{TASK}={given}"
        known = f"the sweep has {count} trials, 0 to {count - 1}" if count > 1 else "the sweep has only trial 0"
        raise UserError(f"{where}: {known}", f"give one of them; for all with Slurm, --array 0-{count - 1}")
    return given


def check_trials(words: list[str], command: list[str], array: str) -> None:
    """Raises UserError for a sweep that could not start in a batch job. array: the tasks that are asked for, if any."""
    options = parse(words)
    settings = parse_settings(options, command)
    if array and options.trials:
        reason = f"--array {array}: the trials of a search are drawn one after the other"
        raise UserError(reason, "leave it out; the same command may run in several jobs at once")
    if array:
        count = options.seeds * math.prod(map(len, settings.values()))
        trial_number(options, count, {TASK: str(last_task(array))})
