"""The options of python -m hvdtrain sweep, before -- and the command of its trials."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping
from pathlib import Path

from hvdtrain.cli.training_program import training_program
from hvdtrain.errors import UserError
from hvdtrain.jobs.series import SWEEP, without_program
from hvdtrain.jobs.slurm.submissions import array_tasks
from hvdtrain.measure.sweep.ranges import Range
from hvdtrain.measure.sweep.search import PRUNERS, SAMPLERS, Rules
from hvdtrain.measure.sweep.trials import RANKS, Settings, parse_ranks, parse_settings, written
from hvdtrain.system.command import Parser, joined
from hvdtrain.system.python_files import class_arguments, is_reference
from hvdtrain.system.text import did_you_mean

EXAMPLES = """COMMAND is what follows `hvdtrain` on a command line: train, or launch with a training program.
Each trial adds its options, and the folder and name of its run, to the end of it.

examples:
  hvdtrain sweep --set lr=0.05,0.1 --seeds 3 -- launch local -n 2 -- python -m hvdtrain.torch_lenet --epochs 3
  hvdtrain sweep --set lr=0.05,0.1 --set batch-size=32,64 -- train --config run.toml
  hvdtrain sweep --set width=8,16 --set lr=0.05,0.1 -- train mytask.py:Task --strategy single
  hvdtrain sweep --set lr=log:1e-4:1e-1 --set width=int:8:64 --trials 20 -- train mytask.py:Task --strategy single
  hvdtrain sweep --set --hidden=8,16 -- launch local -n 2 -- python script.py --epochs 3
  hvdtrain sweep --np 1,2,3 --set optimizer=sgd,adam -- launch local -- python -m hvdtrain.torch_lenet --shards 8
"""
COMMANDS = ("train", "launch")
TASK = "SLURM_ARRAY_TASK_ID"


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="python -m hvdtrain sweep",
        usage="python -m hvdtrain sweep [--set NAME=V1,V2,...]... [--np N1,N2,...] [--seeds N] [--output DIR] "
        "[--trials N [--sampler NAME] [--sampler-seed N] [--pruner NAME]] [--trial N] [--table] [--dry-run] "
        "-- COMMAND...",
        description="Train with all combinations of some options, or with those that Optuna draws, each in a job of "
        "its own, and compare the results.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--set", dest="settings", action="append", default=[], metavar="NAME=V1,V2",
        help="values of an option of training, of an argument of the task (also arg.NAME=V1,V2), or of an option of "
             "a script's own (--NAME=V1,V2); with several --set, all combinations. With --trials also a range: "
             "log:LOW:HIGH, float:LOW:HIGH, int:LOW:HIGH or logint:LOW:HIGH")  # fmt: skip
    add("--np", default="", metavar="N1,N2", help="numbers of ranks, which launch gets instead of its option -n")
    add("--seeds", type=int, default=1, metavar="N", help="train each combination with the seeds 0 to N-1 (default: 1)")
    add(
        "--output",
        "--out",
        type=Path,
        default=Path(SWEEP),
        metavar="DIR",
        help=f"folder for the runs and the tables; trials in it that are complete are not run again (default: {SWEEP})",
    )
    add("--trials", type=int, metavar="N",
        help="draw N combinations by Optuna, instead of training all; the same command continues, also with a larger "
             "N")  # fmt: skip
    add("--sampler", choices=SAMPLERS, default=SAMPLERS[0], help=f"what draws them (default: {SAMPLERS[0]})")
    add("--sampler-seed", type=int, default=0, metavar="N", help="seed of what draws them (default: 0)")
    add("--pruner", choices=PRUNERS, default=PRUNERS[0],
        help="end trials that do worse than others: below the median at the same evaluation, by successive halving, or "
             f"none (default: {PRUNERS[0]})")  # fmt: skip
    add("--trial", type=int, metavar="N",
        help="run only this trial, from 0 on in the order of --dry-run (default in an array job of Slurm: "
             f"{TASK})")  # fmt: skip
    add("--table", action="store_true", help="run nothing: write and print the table of the trials in --output")
    add("--dry-run", action="store_true", help="print the command line of each trial, and start nothing")
    return made


def split(argv: list[str]) -> tuple[list[str], list[str]]:
    """The sweep's own options, and the command after --, without the name of this program. Raises UserError."""
    end = argv.index("--") if "--" in argv else len(argv)
    words, command = joined(argv[:end], "--set"), without_program(argv[end + 1 :])
    if "-h" in words or "--help" in words or ("--table" in words and not command):
        return words, command
    remedy = "write -- train OPTIONS, or -- launch local -n 2 -- python -m hvdtrain.torch_lenet OPTIONS"
    if not command:
        raise UserError("no command to run", remedy)
    if command[0] not in COMMANDS:
        raise UserError(f"-- {command[0]}: a sweep runs train or launch{did_you_mean(command[0], COMMANDS)}", remedy)
    return words, command


def parse(words: list[str]) -> argparse.Namespace:
    """The sweep's own options. Raises UserError for values that no sweep can have."""
    options = parser().parse_args(words)
    for name in ("seeds", "trials"):
        if (number := getattr(options, name)) is not None and number < 1:
            raise UserError(f"--{name} {number} is too small", "give 1 or more")
    if options.trials is None:
        for name in ("sampler", "sampler_seed", "pruner"):
            if getattr(options, name) != parser().get_default(name):
                option = name.replace("_", "-")
                raise UserError(f"--{option}: belongs to a search", "give --trials N, the number of trials")
    elif options.trial is not None:
        reason = "--trial: the trials of a search are drawn one after the other"
        raise UserError(reason, "leave it out; the same command may run several times at once")
    return options


def rules(options: argparse.Namespace) -> Rules:
    """How a search goes."""
    return Rules(options.trials, options.sampler, options.pruner, options.seeds, options.sampler_seed)


def settings(options: argparse.Namespace, command: list[str]) -> Settings:
    """The values to combine. command: of the trials; empty where it is not known.

    Raises UserError for values that no trial can have.
    """
    ranks = {RANKS: parse_ranks(options.np, command)} if options.np else {}
    given = {
        **parse_settings(options.settings, not command or _has_task(command), _is_foreign(command), _of_task(command)),
        **ranks,
    }
    drawn = next((name for name, values in given.items() if isinstance(values[0], Range)), None)
    if drawn and options.trials is None:
        reason = f"--set {written(drawn)}={given[drawn][0]}: a range is for a search"
        raise UserError(reason, "give --trials N, the number of combinations to draw")
    if options.trials and not given:
        raise UserError("--trials: nothing to draw", "give --set NAME=log:LOW:HIGH, or other ranges or values")
    return given


def _has_task(command: list[str]) -> bool:
    return any(is_reference(word.removeprefix("--model=")) for word in command)


def _of_task(command: list[str]) -> list[str]:
    """The names of the arguments of the task in the command, as far as its file says them."""
    task = next((word.removeprefix("--model=") for word in command if is_reference(word.removeprefix("--model="))), "")
    return class_arguments(task) if task else []


def _is_foreign(command: list[str]) -> bool:
    """Whether the command's program may have options that are not hvdtrain's."""
    return not command or (command[0] == "launch" and training_program(command) is None)


def trial_number(options: argparse.Namespace, count: int, environment: Mapping[str, str] = os.environ) -> int | None:
    """The only trial to run, of `count`; None for all of them. Raises UserError for a number that no trial has."""
    given, task = options.trial, environment.get(TASK, "")
    if given is None and not options.dry_run and task.isdecimal() and len(task) < 10:
        given = int(task)
    if given is not None and not 0 <= given < count:
        where = f"--trial {given}" if options.trial is not None else f"{TASK}={given}"
        raise UserError(f"{where}: {_range(count)}", f"give one of them; for all with Slurm, --array 0-{count - 1}")
    return given


def check_trials(words: list[str], command: list[str], array: str) -> None:
    """Raises UserError for a sweep that could not start in a batch job. array: the tasks that are asked for, if any."""
    options = parse(words)
    parse_settings(options.settings, _has_task(command), _is_foreign(command), _of_task(command))
    given = settings(options, [])
    if options.trials:
        if array:
            reason = f"--array {array}: the trials of a search are drawn one after the other"
            raise UserError(reason, "leave it out; the same command may run in several jobs at once")
        return
    count = options.seeds * math.prod(map(len, given.values()))
    if array and options.trial is None and (last := array_tasks(array).last) >= count:
        raise UserError(f"--array {array}: task {last} has no trial, as {_range(count)}", f"give --array 0-{count - 1}")


def _range(count: int) -> str:
    return f"the sweep has {count} trials, 0 to {count - 1}" if count > 1 else "the sweep has only trial 0"
