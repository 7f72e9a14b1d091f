"""The command line of training: `Config` and `RuntimeOptions`, from a recipe, a recorded run, a file and arguments."""

from __future__ import annotations

import argparse
import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

import tyro

from hvdtrain.cli.parser import check_choices
from hvdtrain.config import option_values
from hvdtrain.config.file import read_options
from hvdtrain.config.options import Config, Framework
from hvdtrain.config.recipes import RECIPES, from_recipe
from hvdtrain.config.record import recorded
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.system.python_files import is_script


@dataclass(frozen=True)
class TrainingOptions:
    """Train LeNet with data parallelism."""

    result: tyro.conf.OmitArgPrefixes[Config]
    runtime: tyro.conf.OmitArgPrefixes[RuntimeOptions]
    config: Path | None = None
    """TOML file with options, such as lr = 0.1; the command line overrides it."""
    print_config: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print each option with where its value came from, as a file for --config, and exit."""


class CommandLine(NamedTuple):
    """What the user gave: arguments, and the options in the file that they name."""

    argv: list[str]
    path: Path | None = None
    from_file: dict[str, Any] = {}  # noqa: RUF012  (a NamedTuple's default is never written to)
    """By their names in Python."""

    @classmethod
    def read(cls, argv: list[str]) -> CommandLine:
        """Read the file of --config, if there is one. Raises UserError."""
        paths = _known(argv).config
        if len(paths) > 1:
            raise UserError("--config is given twice", "give one file, and other options on the command line")
        return cls(argv, paths[0], read_options(paths[0])) if paths else cls(argv)

    @property
    def arguments(self) -> list[str]:
        """The options of the file as arguments, before those of the command line, which override them."""
        return [*option_values.arguments(self.from_file), *self.argv]

    @property
    def given(self) -> set[str]:
        """The options on the command line, by their names in Python."""
        names = {one.partition("=")[0][2:].replace("-", "_") for one in self.argv if one.startswith("--")}
        return names | {name.removeprefix("no_") for name in names}


class ParsedOptions(NamedTuple):
    """The options of a training command line."""

    config: Config
    runtime: RuntimeOptions
    print_config: bool = False


def parse(argv: list[str], program: str, framework: Framework | None) -> tuple[Config, RuntimeOptions]:
    """The options of a training command line, as `parse_line` finds them."""
    return parse_line(CommandLine.read(argv), program, framework)[:2]


def parse_line(line: CommandLine, program: str, framework: Framework | None) -> ParsedOptions:
    """The options of a training command line.

    program: its name in --help. framework: the only one accepted, if any. Raises UserError for a value that cannot
    work; an unknown option is printed and raises SystemExit with status 2.
    """
    check_choices(line.argv, Config, RuntimeOptions)
    defaults = _defaults(line)
    if framework:
        defaults = dataclasses.replace(defaults, framework=framework)
    try:
        options = tyro.cli(
            TrainingOptions,
            prog=program,
            args=line.arguments,
            default=TrainingOptions(defaults, RuntimeOptions()),
        )
    except UserError as error:
        raise _located(error, line) from None
    config = options.result
    if options.config != line.path:
        raise UserError(f"--config {options.config}: cannot be read", "give a TOML file with options")
    if framework and config.framework != framework:
        reason = f"--framework {config.framework}: {program} trains in {framework}"
        remedy = "leave it out" if is_script(program) else f"use python -m hvdtrain.{config.framework}_lenet"
        raise _located(UserError(reason, remedy), line)
    return ParsedOptions(config, options.runtime, options.print_config)


def _located(error: UserError, line: CommandLine) -> UserError:
    """The error of an option, with the file where its value is from one."""
    option = re.match(r"--([\w-]+)", error.reason)
    name = option[1].replace("-", "_") if option else ""
    if name not in line.from_file or name in line.given:
        return error
    return UserError(f"--config {line.path}: {error.reason}", error.remedy)


def options_for_defaults(arguments: list[str]) -> argparse.Namespace:
    """The options that decide the defaults of the others: recipe, resume, framework and strategy.

    arguments: those of a CommandLine.
    """
    return _known(arguments)


def _known(arguments: list[str]) -> argparse.Namespace:
    """The options that are needed before all others are parsed."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--recipe", choices=RECIPES, default="digits")
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--framework", choices=get_args(Framework))
    parser.add_argument("--strategy")
    parser.add_argument("--config", type=Path, action="append", default=[])
    try:
        known = parser.parse_known_args(arguments)[0]
        if [] not in [known.recipe, known.resume, known.framework, known.strategy, *known.config]:
            return known  # argparse's value of --recipe=-- is []
    except argparse.ArgumentError:
        pass
    return parser.parse_args([])  # tyro finds the same error, and explains it


def _defaults(line: CommandLine) -> Config:
    """The defaults of options: those of the run to resume, or of the recipe."""
    known = options_for_defaults(line.arguments)
    try:
        return recorded(known.resume) if known.resume else from_recipe(known.recipe)
    except UserError as error:
        raise _located(error, line) from None
