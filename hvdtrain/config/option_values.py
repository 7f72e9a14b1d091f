"""Options of training outside of the command line: names and values as users write them, in TOML or as text."""

from __future__ import annotations

import contextlib
import json
import math
import os
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from hvdtrain.config.options import Config
from hvdtrain.config.record import has_type
from hvdtrain.config.runtime import RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.system.text import did_you_mean

KINDS: dict[str, Any] = {**get_type_hints(Config), **get_type_hints(RuntimeOptions)}
"""The type of each option, by its name in Python."""
SHOWN_CHARACTERS = 80
"""How much of an invalid value a message shows."""


def key(name: str) -> str:
    """An option as users write it in a file: `batch-size`."""
    return name.replace("_", "-")


def find(written: str, where: str) -> str:
    """The name in Python of an option that a user wrote with dashes or underscores.

    where: the beginning of the message of the UserError that an unknown name raises.
    """
    name = written.replace("-", "_")
    if name not in KINDS:
        hint = did_you_mean(key(name), map(key, KINDS))
        raise UserError(f"{where}: training has no option {written!r}{hint}", "hvdtrain train --help lists all")
    return name


def from_toml(name: str, value: Any, where: str) -> Any:
    """The option's value, from a value of a TOML file. Raises UserError, whose message begins with `where`."""
    kind = KINDS[name]
    takes_path = Path in (kind, *get_args(kind))
    if isinstance(value, str) and "\0" in value:
        raise UserError(f"{where}: the value of {key(name)} has a null character", "remove it")
    if isinstance(value, str) and (takes_path or name == "data"):
        value = os.path.expanduser(value)  # as a shell does
    if isinstance(value, str) and takes_path:
        return Path(value)
    if get_origin(kind) is tuple and isinstance(value, list) and has_type(value, kind):
        return tuple(value)
    if not has_type(value, kind):
        raise _not_accepted(name, _shown(value), where, value)
    return value


def from_text(name: str, text: str, where: str) -> Any:
    """The option's value, from a text such as one on a command line. Raises UserError beginning with `where`."""
    for kind in _alternatives(KINDS[name]):
        if kind in (int, float):
            with contextlib.suppress(ValueError):
                if math.isfinite(number := kind(text)):
                    return number
        if kind is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if kind in (str, Path) or text in get_args(kind):
            return kind(text) if kind is Path else text
    raise _not_accepted(name, text[:SHOWN_CHARACTERS], where, text)


def arguments(values: dict[str, Any]) -> list[str]:
    """The command-line arguments that give these options these values; none of them is None."""
    given = []
    for name, value in values.items():
        if isinstance(value, bool):
            given.append(f"--{'' if value else 'no-'}{key(name)}")
        else:
            given += [f"--{key(name)}={one}" for one in (value if isinstance(value, tuple | list) else (value,))]
    return given


def to_toml(value: bool | int | float | str | Path | tuple[str, ...]) -> str:
    """A value in TOML. Texts are quoted, with escapes for characters that would not print."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(to_toml, value))}]"
    if isinstance(value, str | Path):
        return '"' + "".join(_escaped(one) for one in str(value)) + '"'
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _escaped(character: str) -> str:
    if character in '\\"':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08X}"


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """The types that an option accepts in addition to None."""
    if get_origin(kind) is tuple:
        return ()
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return tuple(one for one in kinds if one is not NoneType)


def _choices(kind: Any) -> list[str]:
    return [choice for one in _alternatives(kind) for choice in get_args(one)]


def _accepted(kind: Any) -> str:
    """What an option accepts, for the remedy of a message."""
    if get_origin(kind) is tuple:
        return "an array of texts in quotes"
    names = {bool: "true or false", int: "an integer", float: "a number", str: "text in quotes", Path: "text in quotes"}
    kinds = [names[one] for one in _alternatives(kind) if one in names]
    choices = ", ".join(map(json.dumps, _choices(kind)))
    return " or ".join([*kinds, *([choices if kinds else f"one of {choices}"] if choices else [])])


def _not_accepted(name: str, shown: str, where: str, value: Any) -> UserError:
    hint = did_you_mean(value, _choices(KINDS[name])) if isinstance(value, str) else ""
    return UserError(f"{where}: {key(name)} = {shown} is not valid{hint}", f"give {_accepted(KINDS[name])}")


def _shown(value: Any) -> str:
    """An invalid value of a TOML file in a message."""
    if isinstance(value, list):
        return "an array"
    text = to_toml(value) if isinstance(value, bool | int | float | str) else str(value)  # dates and times
    return text[:SHOWN_CHARACTERS]
