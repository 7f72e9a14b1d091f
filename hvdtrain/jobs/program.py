"""The program that the launcher starts: whether it can resume by itself, and the folder of its run."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.system.files import read_toml

MODULE_OPTION = re.compile(r"-[bBdEiIOPqsSuvx]*m(.*)")
"""The interpreter's -m, with others in one argument (-um), or with its module (-mhvdtrain)."""
TRAINING_MODULE = re.compile(r"hvdtrain\.(torch|mxnet|tensorflow)_lenet")
"""Modules that have the options --name, --runs and --auto-resume, as `hvdtrain train` has."""
TRAINING_FILE = re.compile(r"(.*/)?hvdtrain/(torch|mxnet|tensorflow)_lenet\.py")
PATHS = ("--runs", "--resume")
"""Options whose values in a file may begin with ~."""
RUNS = "runs"
"""Their default for --runs."""
SWEEP = "runs/sweep"
"""The default for --output of a sweep."""


class OwnProgram(NamedTuple):
    """One of hvdtrain's own training programs."""

    framework: str
    """The only one in which it trains; empty for `hvdtrain train`."""
    options: tuple[str, ...]


def own_program(program: Sequence[str]) -> OwnProgram | None:
    """The program, perhaps started by another one (env, nice, nsys), if it is one of hvdtrain's own, else None."""
    for index, argument in enumerate(program):
        following = [*program[index + 1 : index + 3], "", ""]
        if file := TRAINING_FILE.fullmatch(argument):
            return OwnProgram(file[2], tuple(program[index + 1 :]))
        if Path(argument).name == "hvdtrain" and following[0].isalpha():  # a command of hvdtrain follows
            return OwnProgram("", tuple(program[index + 2 :])) if following[0] == "train" else None
        found = MODULE_OPTION.fullmatch(argument)
        if not found:
            continue
        module, rest = (found[1], program[index + 1 :]) if found[1] else (following[0], program[index + 2 :])
        if module.partition(".")[0] == "hvdtrain":
            if entry := TRAINING_MODULE.fullmatch(module):
                return OwnProgram(entry[1], tuple(rest))
            return OwnProgram("", tuple(rest[1:])) if module == "hvdtrain" and [*rest[:1]] == ["train"] else None
    return None


def is_own(program: Sequence[str]) -> bool:
    """Whether it is one of hvdtrain's own training programs."""
    return own_program(program) is not None


class SweepProgram(NamedTuple):
    """`hvdtrain sweep`, which starts a job for each of its trials."""

    start: tuple[str, ...]
    """What starts it, up to the word sweep."""
    options: tuple[str, ...]
    """Its own."""
    command: tuple[str, ...]
    """What each trial runs, after --, without the name of this program: train or launch, and their options."""

    @property
    def folder(self) -> str:
        return _argument(self.options, "--output") or _argument(self.options, "--out") or SWEEP


def sweep_program(program: Sequence[str]) -> SweepProgram | None:
    """The program, perhaps started by another one, if it is a sweep, else None."""
    own = program[: program.index("--")] if "--" in program else program
    for index, argument in enumerate(own):
        by_module = own[index - 2 : index] == ["-m", "hvdtrain"] or own[index - 1 : index] == ["-mhvdtrain"]
        if argument == "sweep" and (by_module or (index and Path(own[index - 1]).name == "hvdtrain")):
            command = without_program(program[len(own) + 1 :])
            return SweepProgram(tuple(own[: index + 1]), tuple(own[index + 1 :]), tuple(command))
    return None


def without_program(words: Sequence[str]) -> list[str]:
    """A command line of hvdtrain from its command on, without `hvdtrain` or `python -m hvdtrain` before it."""
    if list(words[:1]) == ["hvdtrain"]:
        return list(words[1:])
    return list(words[3:] if list(words[1:3]) == ["-m", "hvdtrain"] else words)


def option_value(program: Sequence[str], option: str) -> str:
    """The value of `--option VALUE` or `--option=VALUE`, the last one; else that of the file of --config, if there is.

    Empty where the option is missing. Only hvdtrain's own programs have such a file.
    """
    found = _argument(program, option)
    value = None if found else _from_file(program, option)
    if not isinstance(value, str):
        return found
    return os.path.expanduser(value) if option in PATHS else value


def resumes_itself(program: Sequence[str]) -> bool:
    """Whether the program has --auto-resume, on its command line or in the file of --config."""
    return "--auto-resume" in program or _from_file(program, "--auto-resume") is True


def _argument(program: Sequence[str], option: str) -> str:
    found = ""
    for argument, following in zip(program, [*program[1:], ""], strict=True):
        if argument == option:
            found = following
        elif argument.startswith(f"{option}="):
            found = argument.partition("=")[2]
    return found


def _from_file(program: Sequence[str], option: str) -> Any:
    """The value of an option in the file of --config, which may name it with - or with _; None without such a file.

    A file that cannot be read counts as empty: each rank reads it, too, and explains what is wrong.
    """
    path, key = _argument(program, "--config"), option.removeprefix("--")
    if path and is_own(program):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            content = read_toml(Path(path))
            return content.get(key, content.get(key.replace("-", "_")))
    return None


def resumable(program: tuple[str, ...]) -> tuple[str, ...]:
    """The program with the options by which it resumes when the same command line is started again.

    A program that is not hvdtrain's own is unchanged. Raises UserError for --resume, which would start from the same
    checkpoint each time.
    """
    if not is_own(program) or resumes_itself(program):
        return program
    if option_value(program, "--resume"):
        raise UserError(
            "--restarts resumes from the run's own folder, which --resume contradicts",
            "give the run's --name and --runs, and no --resume",
        )
    named = () if option_value(program, "--name") else ("--name", time.strftime("job-%Y%m%d-%H%M%S"))
    return (*program, *named, "--auto-resume")


def run_folder(program: Sequence[str]) -> Path | None:
    """The folder of the program's run; None for a program that does not resume by its name."""
    name = option_value(program, "--name")
    return Path(option_value(program, "--runs") or RUNS) / name if name and resumes_itself(program) else None
