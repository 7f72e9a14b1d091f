"""The command line of training: `Config` and `RuntimeOptions`, with the defaults of a recipe or of a recorded run."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import tyro

from hvdtrain.cli.parser import check_choices
from hvdtrain.config.options import Config, Framework
from hvdtrain.config.recipes import RECIPES, from_recipe
from hvdtrain.config.record import recorded
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.errors import UserError


@dataclass(frozen=True)
class TrainingOptions:
    """Train LeNet with data parallelism."""

    result: tyro.conf.OmitArgPrefixes[Config]
    runtime: tyro.conf.OmitArgPrefixes[RuntimeOptions]


def parse(argv: list[str], program: str, framework: Framework | None) -> tuple[Config, RuntimeOptions]:
    """The options of a training command line.

    program: its name in --help. framework: the only one accepted, if any. Raises UserError for a value that cannot
    work; an unknown option is printed and raises SystemExit with status 2.
    """
    check_choices(argv, Config, RuntimeOptions)
    defaults = _defaults(argv)
    if framework:
        defaults = dataclasses.replace(defaults, framework=framework)
    options = tyro.cli(
        TrainingOptions,
        prog=program,
        args=argv,
        default=TrainingOptions(defaults, RuntimeOptions()),
    )
    config = options.result
    if framework and config.framework != framework:
        raise UserError(
            f"--framework {config.framework}: {program} trains in {framework}",
            f"use python -m hvdtrain.{config.framework}_lenet",
        )
    return config, options.runtime


def options_for_defaults(argv: list[str]) -> argparse.Namespace:
    """The options that decide the defaults of the others: recipe, resume, framework and strategy."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--recipe", choices=RECIPES, default="digits")
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--framework", choices=get_args(Framework))
    parser.add_argument("--strategy")
    try:
        known = parser.parse_known_args(argv)[0]
        if [] not in vars(known).values():  # argparse's value of --recipe=--
            return known
    except argparse.ArgumentError:
        pass
    return parser.parse_args([])  # tyro finds the same error, and explains it


def _defaults(argv: list[str]) -> Config:
    """The defaults of options: those of the run to resume, or of the recipe."""
    known = options_for_defaults(argv)
    return recorded(known.resume) if known.resume else from_recipe(known.recipe)
