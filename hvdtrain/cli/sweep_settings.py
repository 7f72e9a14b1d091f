"""The command line of a sweep: its options, with the values and ranges of --set, and the program that it trains."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvdtrain.cli import launch_options
from hvdtrain.config import sources
from hvdtrain.config.option import ARGUMENT, arguments, as_json, key
from hvdtrain.config.option_parser import OptionParser, parser_of
from hvdtrain.config.sources import CommandLine, check_recorded, to_record
from hvdtrain.errors import UserError
from hvdtrain.jobs.launchers import LAUNCHERS
from hvdtrain.jobs.own_program import OwnProgram, own_program
from hvdtrain.jobs.sbatch import last_task
from hvdtrain.measure.sweep.trials import (
    DASHES,
    GIVEN_TO_TRIALS,
    OF_TASK,
    RANKS,
    RESUME,
    Settings,
    SweepOptions,
    Trial,
    corners,
    ends,
    from_text,
    parse_range,
    plan,
    written,
)
from hvdtrain.system.command import joined
from hvdtrain.system.text import did_you_mean

PROGRAM = "python -m hvdtrain sweep"
TASK = "SLURM_ARRAY_TASK_ID"
COMMANDS = ("train", "launch")
BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"))
OPEN, QUOTED = re.compile(r"""\s*(["'])(?!.*\1)""", re.DOTALL), re.compile(r"""(["'])((?:(?!\1).)*)\1$""", re.DOTALL)
"""A quote that is not closed, and a text in quotes."""


def parser() -> OptionParser:
    made = parser_of(SweepOptions, PROGRAM)
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
        settings[name] = _values(name, _divided(name, values, where), where)
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


def _divided(name: str, text: str, where: str) -> list[str]:
    """The values between commas that are not within brackets or quotes. Raises UserError where these are not closed."""
    if name in ("class_weights", "columns") and text[:1] not in ("'", '"'):
        return [text]  # a list itself
    parts: list[str] = []
    for piece in text.split(","):
        is_open = parts and (OPEN.match(parts[-1]) or any(parts[-1].count(a) > parts[-1].count(b) for a, b in BRACKETS))
        parts.append(f"{parts.pop()},{piece}" if is_open else piece)
    if OPEN.match(parts[-1]) or any(a in text and text.count(a) != text.count(b) for a, b in BRACKETS):
        raise UserError(f"{where}: a bracket or quote is not closed", "close those within a value, or leave them out")
    # An argument keeps its quotes, as --arg reads it as Python does.
    return [part.strip() if name.startswith(ARGUMENT) else QUOTED.sub(r"\2", part.strip()) for part in parts]


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
    """Raise UserError for a sweep that could not start in a batch job. array: the tasks that are asked for, if any."""
    options = parse(words)
    settings = parse_settings(options, command)
    if array and options.trials:
        reason = f"--array {array}: the trials of a search are drawn one after the other"
        raise UserError(reason, "leave it out; the same command may run in several jobs at once")
    planned = [] if options.trials else plan(settings, options.seeds)
    if array:
        trial_number(options, len(planned), {TASK: str(last_task(array))})
    for trial in planned or corners(settings):
        check_trial(trial, command, options.output)


def check_trial(trial: Trial, command: list[str], folder: Path) -> None:
    """Raise UserError for options that no training accepts, and if the trial's run was begun with others."""
    options = expected(trial, command)
    if (folder / trial.name / "config.json").is_file():
        check_recorded(folder / trial.name, options)


def expected(trial: Trial, command: list[str]) -> dict[str, Any]:
    """The options as JSON values with which the trial's run will be recorded.

    Raises UserError for options that no training accepts; of an unknown program, these are only the trial's own.
    """
    training = _training(trial.launched(command))
    if training is None:
        options = as_json(trial.training_options)
        options.pop(OF_TASK, None)  # the program may give arguments of its own
        return {**options, "seed": trial.seed}
    for name, remedy in GIVEN_TO_TRIALS.items():
        if any(word.partition("=")[0] == f"--{key(name)}" for word in training.options):
            raise UserError(f"-- {command[0]} ... --{key(name)}: a sweep sets that itself", remedy)
    given = [*training.options, *arguments({**trial.training_options, "name": trial.name, **RESUME})]
    try:
        line = CommandLine.read(given, training.name, training.framework)
        config, _ = line.options()
    except UserError as error:
        which = f"the trials with {trial.label}" if trial.label else "the trials' command"
        raise UserError(f"{which}: {error.reason}", error.remedy, option=error.option) from None
    if line.given.get("help") or line.given.get("print_config"):
        raise UserError("the trials' command prints and trains nothing", "give options of training")
    return {**to_record(config), "seed": trial.seed}


def of_launch(command: list[str]) -> list[str]:
    """The arguments of `launch` by which a trial's command starts ranks; empty for training in one process."""
    return launch_options.of_training(command[1:], ["hvdtrain", "train"]) if command[0] == "train" else command[1:]


def _training(command: list[str]) -> OwnProgram | None:
    """The training program that the command starts; None for one that is not hvdtrain's. Raises UserError."""
    if not command or command[0] not in COMMANDS:
        what = f"-- {command[0]}: a sweep runs train or launch{did_you_mean(command[0], COMMANDS)}" if command else ""
        remedy = "write -- train OPTIONS, or -- launch local -n 2 -- PROGRAM OPTIONS"
        raise UserError(what or "no command to run", remedy)
    if not (words := of_launch(command)):
        return own_program(["hvdtrain", *command], "train")
    options = launch_options.parse(words)
    if options.launcher not in LAUNCHERS:
        reason = f"-- launch {options.launcher}: it starts no job that a sweep can wait for"
        remedy = f"give one of {', '.join(LAUNCHERS)}; a sweep itself may be the program of launch sbatch"
        raise UserError(reason, remedy)
    if not options.program:
        raise UserError("-- launch: no program", "write it after another --, as for launch itself")
    return own_program(options.program, "train")
