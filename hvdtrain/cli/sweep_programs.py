"""The programs that trials of a sweep run, and the options of training with which they are recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hvdtrain.cli import launch, launch_options
from hvdtrain.cli.training_program import Training, training_program
from hvdtrain.config.option import arguments, as_json, key
from hvdtrain.config.sources import CommandLine, check_recorded, to_record
from hvdtrain.errors import UserError
from hvdtrain.jobs.launchers import LAUNCHERS
from hvdtrain.measure.sweep.trials import GIVEN_TO_TRIALS, OF_TASK, RESUME, Trial


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
        line = CommandLine.read(given, training.program, training.framework)
        config, _ = line.options()
    except UserError as error:
        which = f"the trials with {trial.label}" if trial.label else "the trials' command"
        raise UserError(f"{which}: {error.reason}", error.remedy, option=error.option) from None
    names = [setting.partition("=")[0] for setting in getattr(config, OF_TASK)]
    if repeated := {name for name in names if names.count(name) > 1}:
        reason = f"the trials' command: --{OF_TASK} {min(repeated)} has a value already"
        raise UserError(reason, "leave it out of one of both")
    if line.given.get("help") or line.given.get("print_config"):
        raise UserError("the trials' command prints and trains nothing", "give options of training")
    return {**to_record(config), "seed": trial.seed}


def _training(command: list[str]) -> Training | None:
    """The training program that the command starts; None for one that is not hvdtrain's. Raises UserError."""
    if command[0] == "train":
        return Training("hvdtrain train", None, command[1:])
    options = launch_options.parse(command[1:])
    if options.launcher not in LAUNCHERS:
        reason = f"-- launch {options.launcher}: it starts no job that a sweep can wait for"
        remedy = f"give one of {', '.join(LAUNCHERS)}; a sweep itself may be the program of launch sbatch"
        raise UserError(reason, remedy)
    if not options.program:
        raise UserError("-- launch: no program", "write it after another --, as for launch itself")
    launch.describe(options)
    return training_program(options.program)
