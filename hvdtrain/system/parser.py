"""Command lines whose errors are one line, which names what was probably meant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from hvdtrain.errors import UserError
from hvdtrain.system.text import did_you_mean


class Parser(argparse.ArgumentParser):
    """argparse's parser: an invalid command line raises UserError, with suggestions for misspelt options and choices.

    Options may be between positional arguments.
    """

    _given: Sequence[str] = ()

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options. Raises UserError for invalid ones."""
        rest = any(action.nargs in (argparse.PARSER, argparse.REMAINDER) for action in self._actions)
        parse = super().parse_args if rest else super().parse_intermixed_args
        return parse(args, namespace)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = list(args or ())
        return super().parse_known_args(args, namespace)

    def print_help(self, file: Any = None) -> None:
        """Print, and unlike argparse raise OSError if that fails."""
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        hint = "".join(f"; {name} is no option{meant}" for name, meant in self._misspelt())
        raise UserError(message + hint, f"{self.prog} --help lists the options")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            where = " ".join([*action.option_strings[-1:], str(value)])
            reason = f"{where}: no such choice{did_you_mean(str(value), choices)}"
            raise UserError(reason, f"choose one of {', '.join(choices)}", option=action.dest)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # argparse makes of `--option=--`: in older Pythons an empty list, in newer ones the text.
        if action.option_strings and "--" in arg_strings:
            self.error(f"argument {action.option_strings[-1]}: expected one argument")
        return super()._get_values(action, arg_strings)

    def _misspelt(self) -> Iterator[tuple[str, str]]:
        """The options given that do not exist but are close to one that does, and that one."""
        known = set(self._options())
        end = self._given.index("--") if "--" in self._given else len(self._given)
        for name in (word.partition("=")[0] for word in self._given[:end]):
            if name.startswith("--") and name not in known and (meant := did_you_mean(name, known)):
                yield name, meant

    def _options(self) -> Iterator[str]:
        """The options of this parser, and of the commands below it."""
        for action in self._actions:
            yield from action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    yield from command._options()
