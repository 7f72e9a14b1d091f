"""The program that the launcher starts: whether it can resume by itself, and the folder of its run."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.errors import UserError

ENTRY_POINT = re.compile(r"hvdtrain\.(torch|mxnet|tensorflow)_lenet")
"""Modules that have the options --name, --runs and --auto-resume, as `hvdtrain train` has."""
RUNS = "runs"
"""Their default for --runs."""


def is_own(program: Sequence[str]) -> bool:
    """Whether it is one of hvdtrain's own training programs."""
    module = next((list(program[i + 1 :]) for i, argument in enumerate(program) if argument == "-m"), None)
    if module is None:
        return bool(program) and [Path(program[0]).name, *program[1:2]] == ["hvdtrain", "train"]
    return module[:2] == ["hvdtrain", "train"] or bool(module and ENTRY_POINT.fullmatch(module[0]))


def option_value(program: Sequence[str], option: str) -> str:
    """The value of `--option VALUE` or `--option=VALUE`, the last one; empty where the option is missing."""
    found = ""
    for argument, following in zip(program, [*program[1:], ""], strict=True):
        if argument == option:
            found = following
        elif argument.startswith(f"{option}="):
            found = argument.partition("=")[2]
    return found


def resumable(program: tuple[str, ...]) -> tuple[str, ...]:
    """The program with the options by which it resumes when the same command line is started again.

    A program that is not hvdtrain's own is unchanged. Raises UserError for --resume, which would start from the same
    checkpoint each time.
    """
    if not is_own(program) or "--auto-resume" in program:
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
    return Path(option_value(program, "--runs") or RUNS) / name if name and "--auto-resume" in program else None
