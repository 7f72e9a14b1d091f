"""The parser of a command line whose options are the fields of dataclasses."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from hvdtrain.config.option import (
    SHOWN_CHARACTERS,
    Option,
    accepted,
    alternatives,
    choices,
    facts,
    invalid,
    key,
    texts,
    types,
)
from hvdtrain.system.command import Parser, dashed
from hvdtrain.system.files import NOT_LOCAL, is_url

Kind = TypeVar("Kind")


def parser_of(kind: type, program: str) -> OptionParser:
    """The parser of a program whose options are a dataclass; the docstring of this is the program's description."""
    parser = OptionParser(program, inspect.getdoc(kind) or "")
    parser.add(kind)
    return parser


def read_arguments(kind: type[Kind], program: str, argv: list[str]) -> Kind:
    """A dataclass of options, from a command line. Raises UserError for invalid options."""
    return kind(**parser_of(kind, program).parse(argv))


class OptionParser(Parser):
    """A parser made from dataclasses of options, which may be written with underscores in place of dashes."""

    def __init__(self, program: str, description: str, **settings: Any) -> None:
        usage = f"{program} [OPTIONS]"
        super().__init__(prog=program, usage=usage, description=description.replace("%", "%%"), **settings)
        self._several: set[str] = set()

    def add(self, kind: type, defaults: Any = None, hidden: Collection[str] = ()) -> None:
        """Add the options of a dataclass. defaults: of this class, those that --help shows; it omits those hidden."""
        for field in dataclasses.fields(kind):
            about = facts(kind)[field.name]
            group = self._group(about.group) if about.group else self
            default = getattr(defaults, field.name) if defaults else field.default
            text = argparse.SUPPRESS if field.name in hidden else _help(texts(kind)[field.name], default)
            self._add(group, field.name, about, kind, text)

    def parse(self, argv: list[str]) -> dict[str, Any]:
        """The options that are given, by their names in Python. Raises UserError."""
        given = vars(self.parse_args(list(map(dashed, argv))))
        return {name: tuple(value) if name in self._several else value for name, value in given.items()}

    def _group(self, title: str) -> Any:
        """The group of this heading, which several dataclasses may have options in."""
        known = [group for group in self._action_groups if group.title == title]
        return known[0] if known else self.add_argument_group(title)

    def _add(self, group: Any, name: str, about: Option, kind: type, text: str) -> None:
        of_type = types(kind)[name]
        is_tuple = get_origin(of_type) is tuple
        item = get_args(of_type)[0] if is_tuple else of_type
        settings: dict[str, Any] = {"help": text, "default": argparse.SUPPRESS}
        self._several |= {name} if is_tuple else set()
        if item is bool:
            settings["action"] = "store_true" if about.is_switch else argparse.BooleanOptionalAction
        else:
            settings |= {"type": functools.partial(_argument, name, item), "metavar": _metavar(item)}
            if get_origin(item) is Literal:
                settings["choices"] = get_args(item)  # for the completion of shells: `type` refuses others
            if is_tuple:
                settings |= {"action": "append"} if about.is_repeated else {"nargs": "*"}
        if about.is_positional:
            self.usage = f"{self.usage} {name.upper()}{'...' * is_tuple}"
            settings |= {"metavar": name.upper()} | ({"nargs": "+"} if is_tuple else {})
            group.add_argument(name, **settings)
        else:
            group.add_argument(f"--{key(name)}", **settings)


def _argument(name: str, kind: Any, text: str) -> Any:
    if Path in alternatives(kind) and is_url(text):
        raise invalid(name, text, NOT_LOCAL)
    return accepted(name, text, kind, f"--{key(name)} {text[:SHOWN_CHARACTERS]}", strict=False)


def _metavar(kind: Any) -> str:
    names = {int: "N", float: "X", Path: "PATH", str: "TEXT"}
    return "|".join([*(names[one] for one in alternatives(kind) if one in names), *choices(kind)])


def _help(text: str, default: Any) -> str:
    """An option's text in --help, with its default if it has one that says something."""
    if default is False or default is dataclasses.MISSING or default in (None, "", ()):
        return text.replace("%", "%%")
    words = default if isinstance(default, tuple) else ("yes" if default is True else default,)
    return f"{text.removesuffix('.')} (default: {' '.join(map(str, words))})".replace("%", "%%")
