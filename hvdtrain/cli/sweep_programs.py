"""The programs that trials of a sweep run, and the options of training with which they are recorded."""

from __future__ import annotations

from typing import Any

from hvdtrain.cli import launch, launch_options
from hvdtrain.cli.training_program import Training, training_program
from hvdtrain.config.option import arguments, as_json
from hvdtrain.config.sources import CommandLine, to_record
from hvdtrain.errors import UserError
from hvdtrain.jobs.launchers import LAUNCHERS
from hvdtrain.measure.sweep.trials import GIVEN_TO_TRIALS, Trial


def _training(command: list[str]) -> Training | None:
    """The training program that the command starts; None for one that is not hvdtrain's. Raises UserError."""
    if command[0] == "train":
        training: Training | None = Training("hvdtrain train", None, command[1:])
    else:
        training = _launched(command[1:])
    for name, remedy in GIVEN_TO_TRIALS.items():
        option = f"--{name.replace('_', '-')}"
        if training and any(word.partition("=")[0] == option for word in training.options):
            raise UserError(f"-- {command[0]} ... {option}: a sweep sets that itself", remedy)
    return training


def _launched(words: list[str]) -> Training | None:
    """The training program of `launch`; None for one that is not hvdtrain's. Raises UserError for invalid ones."""
    options = launch_options.parse(words)
    if options.launcher == "sbatch":
        reason = "-- launch sbatch: it only submits a job, and a sweep waits for each to end"
        raise UserError(reason, "run the sweep itself in a batch job, with -- launch srun")
    if options.launcher not in LAUNCHERS:
        raise UserError(f"-- launch {options.launcher}: it starts no job", f"give one of {', '.join(LAUNCHERS)}")
    if not options.program:
        raise UserError("-- launch: no program", "write it after another --, as for launch itself")
    launch.describe(options)
    return training_program(options.program)


def expected(trials: list[Trial], command: list[str]) -> dict[str, dict[str, Any]]:
    """By the trials' names, the options as JSON values with which their runs will be recorded.

    Raises UserError for options that no training accepts; of an unknown program, these are only the trial's own.
    """
    by_name, by_label = {}, {}
    for trial in trials:
        options, training = {"seed": trial.seed, **as_json(trial.training_options)}, _training(trial.launched(command))
        if training:
            if trial.label not in by_label:
                by_label[trial.label] = _recorded(trial, training)
            options |= {**by_label[trial.label], "seed": trial.seed}
        else:
            options.pop("arg", None)  # the program may give arguments of its own
        by_name[trial.name] = options
    return by_name


def _recorded(trial: Trial, training: Training) -> dict[str, Any]:
    """Options of training, without those that a sweep sets."""
    given = [*training.options, *arguments(trial.training_options), "--name", trial.name, "--resume", "auto"]
    try:
        line = CommandLine.read(given, training.program, training.framework)
        config, _ = line.options()
    except UserError as error:
        which = f"the trials with {trial.label}" if trial.label else "the trials' command"
        raise UserError(f"{which}: {error.reason}", error.remedy, option=error.option) from None
    arguments_given = [setting.partition("=")[0] for setting in config.arg]
    if repeated := {name for name in arguments_given if arguments_given.count(name) > 1}:
        raise UserError(
            f"the trials' command: --arg {min(repeated)} has a value already", "leave it out of one of both"
        )
    if line.given.get("help") or line.given.get("print_config"):
        raise UserError("the trials' command prints and trains nothing", "give options of training")
    return to_record(config)
