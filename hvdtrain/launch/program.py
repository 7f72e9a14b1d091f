"""What the launcher knows of the program that it starts: whether it goes on by itself, and in which folder."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.errors import UserError

OWN = re.compile(r"hvdtrain(\.(torch|mxnet|tensorflow)_lenet)?")
"""Modules that know --name, --runs and --auto-resume."""
RUNS = "runs"
"""Where they put runs, if --runs does not tell."""


def is_own(program: Sequence[str]) -> bool:
    modules = [program[i + 1] for i, word in enumerate(program[:-1]) if word == "-m"]
    return bool(modules and OWN.fullmatch(modules[0]))


def value(program: Sequence[str], option: str) -> str:
    """Of `--option VALUE` or `--option=VALUE`, the last one; empty where it is not there."""
    found = ""
    for word, following in zip(program, [*program[1:], ""], strict=True):
        if word == option:
            found = following
        elif word.startswith(f"{option}="):
            found = word.partition("=")[2]
    return found


def resumable(program: tuple[str, ...]) -> tuple[str, ...]:
    """The program with what it takes to go on where it ended, when it is started again by the same words.

    A program that is not hvdtrain's own stays as it is. Raises UserError for --resume, which would begin at the same
    checkpoint each time.
    """
    if not is_own(program) or "--auto-resume" in program:
        return program
    if value(program, "--resume"):
        raise UserError("--restarts goes on in the run's folder by itself: give its --name and --runs, and no --resume")
    named = () if value(program, "--name") else ("--name", time.strftime("job-%Y%m%d-%H%M%S"))
    return (*program, *named, "--auto-resume")


def run_folder(program: Sequence[str]) -> Path | None:
    """Where the run lies; None for a program that does not go on in the folder of its name."""
    name = value(program, "--name")
    return Path(value(program, "--runs") or RUNS) / name if name and "--auto-resume" in program else None
