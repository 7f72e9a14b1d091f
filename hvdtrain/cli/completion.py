"""python -m hvdtrain completion: what a shell needs to complete commands and options."""

from __future__ import annotations

import argparse
import functools
import importlib
from pathlib import Path
from typing import get_args

from hvdtrain.cli import COMMANDS
from hvdtrain.errors import needed_by
from hvdtrain.system.command import Parser, exit_status

SHELLS = ("bash", "zsh", "tcsh", "fish", "powershell")
EXAMPLES = """in the shell's start-up file (~/.bashrc, ~/.zshrc):
  source <(hvdtrain completion bash)
  source <(hvdtrain completion zsh)
in fish:
  hvdtrain completion fish | source
"""


@exit_status()
def main(argv: list[str]) -> None:
    """Print the script for a shell; ends the process with status 2 for another one."""
    options = parser().parse_args(argv)
    with needed_by("completion", "completion"):
        import shtab

    print(shtab.complete(_all_commands(shtab.FILE), shell=options.shell))


def parser() -> Parser:
    made = Parser(
        prog="python -m hvdtrain completion",
        usage="python -m hvdtrain completion SHELL",
        description="Print a script by which a shell completes commands, options and their values.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"one of {', '.join(SHELLS)}")
    return made


def _all_commands(file: object) -> argparse.ArgumentParser:
    """One parser of all commands, from those that the commands use. file: how shells complete the name of a file."""
    program = argparse.ArgumentParser("hvdtrain", description="Train with data parallelism.")
    commands = program.add_subparsers(dest="command")
    for name, module in COMMANDS.items():
        made = importlib.import_module(f"hvdtrain.{module}").parser()
        # Its own --help stays, which some commands print by themselves.
        for action in made.all_actions():
            if _takes_path(action):
                action.complete = file
        commands.add_parser(name, help=made.description, parents=[made], add_help=False)
    return program


def _takes_path(action: argparse.Action) -> bool:
    kind = action.type.args[-1] if isinstance(action.type, functools.partial) else action.type
    return Path in (kind, *get_args(kind))
