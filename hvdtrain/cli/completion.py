"""python -m hvdtrain completion: what a shell needs to complete commands and options."""

from __future__ import annotations

import argparse
import functools
import importlib
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

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


RUNS = {"run_folder": "ls -d runs/* 2>/dev/null", "run_name": "ls runs 2>/dev/null"}
"""Shell commands that print the runs in the folder where the shell is."""
TAKE_NAMES = ("show", "diff", "replay", "watch")
"""Commands that take a run's name as well as its folder."""
RUN_ARGUMENTS = ("run", "runs", "checkpoint", "resume", "weights")

BASH = r"""
# What follows -- is the command line of a program: hvdtrain's own are completed as if the line began there.
_hvdtrain() {
  local -a line=()
  local index
  for ((index = 1; index <= COMP_CWORD; index++)); do  # bash makes three words of --option=value
    if [[ ${COMP_WORDS[index]} != = ]]; then line+=("${COMP_WORDS[index]}")
    elif ((index == COMP_CWORD)); then line+=(''); fi
  done
  for ((index = ${#line[@]} - 2; index >= 0; index--)); do
    [[ ${line[index]} != -- ]] || break
  done
  if ((index >= 0)); then
    local programs='train launch'  # of a sweep
    [[ " ${line[*]:0:index} " != *\ launch\ * ]] || programs='hvdtrain python'
    line=("${line[@]:index + 1}")
    case "${line[*]}" in
      hvdtrain\ * | */hvdtrain\ *) line=("${line[@]:1}") ;;
      *python*\ -m\ hvdtrain\ *) line=("${line[@]:3}") ;;
      *python*\ -m\ hvdtrain.*_lenet\ *) line=(train "${line[@]:3}") ;;
      train\ * | launch\ *) ;;  # of a sweep
      *)
        [[ ${#line[@]} = 1 ]] || programs=''
        [[ ${line[*]} != *-m\ * ]] || programs="hvdtrain $(printf 'hvdtrain.%s_lenet ' torch mxnet tensorflow)"
        COMPREPLY=($(compgen -W "$programs" -- "${line[-1]}"))
        return ;;
    esac
  fi
  local -a COMP_WORDS=(hvdtrain "${line[@]}")
  local COMP_CWORD=${#line[@]}
  _shtab_hvdtrain
}
complete -o bashdefault -o default -F _hvdtrain hvdtrain"""


@exit_status()
def main(argv: list[str]) -> None:
    """Print the script for a shell; ends the process with status 2 for another one."""
    options = parser().parse_args(argv)
    with needed_by("completion", "completion"):
        import shtab

    print(shtab.complete(_all_commands(shtab.FILE), shell=options.shell), end=BASH * (options.shell == "bash") + "\n")


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


def _all_commands(file: dict[str, Any]) -> argparse.ArgumentParser:
    """One parser of all commands, from those that the commands use. file: how shells complete the name of a file."""
    program = argparse.ArgumentParser("hvdtrain", description="Train with data parallelism.")
    commands = program.add_subparsers(dest="command")
    names, names_or_files = _values()
    for command in COMMANDS:
        made = importlib.import_module(f"hvdtrain.cli.{command}").parser()
        runs = "run_name" if command in TAKE_NAMES else "run_folder"
        # Its own --help stays, which some commands print by themselves.
        for action in made.all_actions():
            if action.dest in RUN_ARGUMENTS and not (command == "train" and action.dest == "runs"):
                action.complete = _or_files(file, runs, RUNS[runs])
            elif command == "train" and action.dest in names_or_files:
                listed = shlex.join(names_or_files[action.dest])
                action.complete = _or_files(file, action.dest, f"printf '%s\\n' {listed}")
            elif _takes_path(action):
                action.complete = file
            elif command == "train" and action.dest in names:
                action.choices = names[action.dest]
        commands.add_parser(command, help=made.description, parents=[made], add_help=False)
    return program


def _values() -> tuple[dict[str, Iterable[str]], dict[str, Iterable[str]]]:
    """By the options of training, names that they take: alone, and next to files."""
    from hvdtrain.config import forms, rules
    from hvdtrain.datasets import registry
    from hvdtrain.networks.registry import NETWORKS
    from hvdtrain.runs import trackers

    return {
        "strategy": dict.fromkeys((*rules.OVER_HOROVOD, *rules.SINGLE, *rules.COMPRESSING, "help")),
        "compression": (forms.NONE, forms.FP16, *forms.PACKED, f"{forms.POWERSGD}:2"),
        "schedule": forms.SCHEDULES,
        "tracker": trackers.BUILT_IN,
    }, {"model": NETWORKS, "data": registry.NAMES}


def _or_files(file: dict[str, Any], name: str, command: str) -> dict[str, Any]:
    """How shells complete one of the words that a command prints, or a file. name: of those words."""
    function = f"_hvdtrain_file_or_{name}"  # with _file, by which shtab lets bash quote names and mark folders
    bash = f'{function}() {{ compgen -W "$({command})" -- "$1"; compgen -f -- "$1"; }}\n'
    zsh = f'{function}() {{ compadd -- ${{(f)"$({command})"}}; _files; }}\n'
    preamble = {"bash": bash, "zsh": zsh}
    return {**file, "bash": function, "zsh": function, "fish": f"({command}) {file['fish']}", "preamble": preamble}


def _takes_path(action: argparse.Action) -> bool:
    kind = action.type.args[-1] if isinstance(action.type, functools.partial) else action.type
    return Path in (kind, *get_args(kind))
