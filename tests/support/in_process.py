"""Trainings and commands in the process of a test, which has imported the framework already: no start of a process."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from hvdtrain.__main__ import main
from hvdtrain.config.sources import CommandLine
from hvdtrain.runs import plots
from hvdtrain.training import train as training


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """As in a new process: variables that a framework sets end with it.

    Without what takes most of the time of a small run: its plots, and the wait for the disk.
    """
    with mock.patch.dict(os.environ), mock.patch.object(plots, "plot_metrics"), mock.patch.object(os, "fsync"):
        yield


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """`quickly`, in this folder."""
    here = os.getcwd()
    with quickly():
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)


def train_here(folder: Path, framework: str, *options: str) -> Path:
    """Train with these options, alone; the run's folder, named `run` without `--name`. Raises what training raises."""
    named = () if {"--name", "--resume"} & {*options} else ("--name", "run")
    given = ("--strategy", "single") if not {"--strategy", "--resume"} & {*options} else ()
    with inside(folder):
        config, runtime = CommandLine.read([*given, *named, "--quiet", *options], "train", framework).options()
        return folder / training.train(config, runtime, lambda: [])


def command(folder: Path, *words: str) -> tuple[int, str]:
    """Exit status and output of `hvdtrain WORDS` in this folder."""
    output = io.StringIO()
    with inside(folder), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            main(list(words))
        except SystemExit as end:
            return int(end.code or 0), output.getvalue()
    return 0, output.getvalue()
