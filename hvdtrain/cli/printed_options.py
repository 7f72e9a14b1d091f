"""`--print-config`: all options of a run with their values, and where each came from."""

from __future__ import annotations

import dataclasses
import io
import sys
from pathlib import Path

from hvdtrain.cli.training_options import CommandLine, ParsedOptions, options_for_defaults
from hvdtrain.config import option_values
from hvdtrain.config.options import Config, Framework
from hvdtrain.config.recipes import RECIPES
from hvdtrain.errors import UserError
from hvdtrain.system.text import printable


def show(line: CommandLine, parsed: ParsedOptions, framework: Framework | None) -> None:
    """Print the options as TOML, which --config reads. framework: what the entry point trains in, if only one.

    Raises UserError for text that no TOML file can hold.
    """
    text = as_toml(line, parsed, framework)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as TOML files are
    print(text, end="")


def as_toml(line: CommandLine, parsed: ParsedOptions, framework: Framework | None) -> str:
    """One line for each option: its value, and as a comment its origin. Values that are not set are comments."""
    sources = origins(line, framework)
    values = {
        one.name: getattr(options, one.name)
        for options in (parsed.config, parsed.runtime)
        for one in dataclasses.fields(options)
    }
    entries = [(_entry(name, value), printable(sources[name])) for name, value in values.items()]
    width = min(max(len(entry) for entry, _ in entries), 40)
    return "".join(f"{entry:{width}}  # {source}\n" for entry, source in entries)


def origins(line: CommandLine, framework: Framework | None) -> dict[str, str]:
    """Where the value of each option comes from: the last of these that has it."""
    known = options_for_defaults(line.arguments)
    found = dict.fromkeys(option_values.KINDS, "default")
    if known.resume:
        found |= {one.name: f"run {known.resume}" for one in dataclasses.fields(Config)}
    else:
        found |= dict.fromkeys(RECIPES[known.recipe], f"recipe {known.recipe}")
    found |= {"framework": "entry point"} if framework else {}
    found |= dict.fromkeys(line.from_file, f"file {line.path}")
    return found | dict.fromkeys(line.given & found.keys(), "command line")


def _entry(name: str, value: object) -> str:
    if value is None:
        return f"# {option_values.key(name)} ="
    assert isinstance(value, str | int | float | Path | tuple)
    try:
        str(value).encode()
    except UnicodeEncodeError:
        option = f"--{option_values.key(name)} {value}"
        raise UserError(f"{option}: is not UTF-8, as TOML is", "rename it, or leave out --print-config") from None
    return f"{option_values.key(name)} = {option_values.to_toml(value)}"
