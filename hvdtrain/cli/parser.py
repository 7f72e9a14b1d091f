"""Command lines whose errors name what was probably meant."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from hvdtrain.errors import UserError
from hvdtrain.system.text import did_you_mean


class Parser(argparse.ArgumentParser):
    """argparse's parser, with suggestions for misspelt options and choices."""

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = list(args or ())
        return super().parse_known_args(args, namespace)

    def print_help(self, file: Any = None) -> None:
        """Print, and unlike argparse raise OSError if that fails."""
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        if choice:
            # Pythons from 3.12.8 and 3.13.1 on name the choices without quotation marks.
            hint = did_you_mean(choice[1], re.findall(r"[^', ]+", choice[2]))
        else:
            hint = "".join(f"; {name} is no option{meant}" for name, meant in self._misspelt())
        super().error(message + hint)

    def _misspelt(self) -> Iterator[tuple[str, str]]:
        """The options given that do not exist but are close to one that does, and that one."""
        known = set(self._options())
        end = self._given.index("--") if "--" in self._given else len(self._given)
        for name in (one.partition("=")[0] for one in self._given[:end]):
            if name.startswith("--") and name not in known and (meant := did_you_mean(name, known)):
                yield name, meant

    def _options(self) -> Iterator[str]:
        """The options of this parser, and of the commands below it."""
        for action in self._actions:
            yield from action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    yield from command._options()


def is_no_value(value: object) -> bool:
    """Whether this is what argparse makes of `--option=--`: in older Pythons an empty list, in newer ones the text."""
    return value == [] or str(value) == "--"


def check_choices(argv: list[str], *options: type) -> None:
    """Raise UserError for a value that is close to, but not, one of the choices of an option.

    options: dataclasses whose fields are options, as in tyro, which lists the choices but suggests none.
    """
    given = dict(itertools.pairwise(argv)) | dict(one.split("=", 1) for one in argv if "=" in one)
    for kind in options:
        hints = get_type_hints(kind)
        for field in dataclasses.fields(kind):
            option = f"--{field.name.replace('_', '-')}"
            choices = get_args(hints[field.name]) if get_origin(hints[field.name]) is Literal else ()
            value = given.get(option)
            if choices and value is not None and value not in choices and (meant := did_you_mean(value, choices)):
                raise UserError(f"{option} {value}: no such choice{meant}", f"choose one of {', '.join(choices)}")
