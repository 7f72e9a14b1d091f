"""The options of a job of several ranks: those of `launch`, and of training where it starts its ranks itself."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.system.command import Parser, dashed
from hvdtrain.system.rank_info import START_TIMEOUT_S

KINDS = ("hosts", "growth")
"""The kinds of options, as in LAUNCHERS, of training that starts its ranks itself."""
RANKS = "Start N ranks here, as hvdtrain launch local does, or on --hosts, and train in them, not in this process."


def options_of_training(shows_all: bool = True) -> Parser:
    """The parent of training's parser: there none is required, and none has a value unless it is given.

    shows_all: else --help shows only the number of ranks.
    """
    made = Parser(add_help=False)
    add_job_options(made, KINDS, has_on_end=False)
    for action in made.all_actions():
        action.required, action.default = False, argparse.SUPPRESS
        text = f"{action.help}"
        action.help = f"{text[0].upper()}{text[1:]}" if shows_all else argparse.SUPPRESS
        action.help = RANKS if action.dest == "ranks" else action.help
    return made


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line of training: the words that are for what starts its ranks, and the others."""
    known = _by_name()
    of_job: list[str] = []
    others: list[str] = []
    left = list(map(dashed, words))
    while left:
        word = left.pop(0)
        action = known.get(word.partition("=")[0]) or known.get(word[:2])  # -n2
        (of_job if action else others).append(word)
        if action and word in known and action.nargs != 0:
            of_job += [left.pop(0)] if left else []
    return of_job, others


@functools.cache
def _by_name() -> dict[str, argparse.Action]:
    return {name: action for action in options_of_training().all_actions() for name in action.option_strings}


def add_job_options(command: argparse.ArgumentParser, kinds: Sequence[str], has_on_end: bool = True) -> None:
    """The options of one launcher. kinds: those that it has beyond the common ones, as in its entry of LAUNCHERS."""
    add = command.add_argument_group("ranks and hosts").add_argument
    add("-n", "-np", "--ranks", type=int, required=True, metavar="N", help="number of ranks")
    if "hosts" in kinds:
        add("-H", "--hosts", metavar="A:2,B:2", help="hosts and their slots, reached by ssh")
        add("--hostfile", type=Path, metavar="FILE", help="file with a line for each host: name slots=N")
    if "slurm" in kinds:
        add("--nodes", type=int, default=0, metavar="N", help="number of nodes to run on")
        add("--mpi", default="", metavar="TYPE", help="pmix or pmi2, if srun --mpi=list shows it")
    if "container" in kinds:
        add("--container", default="", metavar="IMAGE",
            help="a .sif file (Apptainer), or with srun an image for pyxis")  # fmt: skip
    if "growth" in kinds:
        add("--max-np", type=count, default=0, metavar="N",
            help="with --survive: grow up to N ranks where hosts have slots (default: -n)")  # fmt: skip
    add_common_options(command, has_on_end)


def count(text: str) -> int:
    """A number of 0 or more; argparse prints the error."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is invalid; give 0 or more")
    return value


def positive(text: str) -> float:
    """A time in seconds; argparse prints the error."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def add_common_options(command: argparse.ArgumentParser, has_on_end: bool = True) -> None:
    """Options of all launchers and of sbatch. has_on_end: False for training, whose option of this name is its own."""
    add = command.add_argument_group("failures and limits").add_argument
    add("--survive", action="store_true",
        help="go on in memory when ranks are lost, start them again, and take new ones; needs --shards of training "
             "(see docs/launch.md)")  # fmt: skip
    add("--restarts", type=count, default=0, metavar="N",
        help="restart the job up to N times after failures (default: 0)")  # fmt: skip
    add("--min-np", "--min-ranks", type=count, default=0, metavar="N",
        help="end, or restart, with fewer ranks (default: 1 with --survive, all with --restarts)")  # fmt: skip
    add("--start-timeout", type=positive, default=START_TIMEOUT_S, metavar="S",
        help=f"seconds to wait for other hosts, then until all ranks have registered, and then until their library "
             f"connects them (default: {START_TIMEOUT_S:g})")  # fmt: skip
    add = command.add_argument_group("environment and output").add_argument
    add("--interface", metavar="NAME", help="network interface between the hosts, such as eth0")
    add("--env", action="append", default=[], metavar="NAME[=VALUE]",
        help="set a variable for the ranks, or pass it on")  # fmt: skip
    add("--output-dir", type=Path, metavar="DIR", help="also write each rank's output to files")
    if has_on_end:
        add("--on-end", default="", metavar="COMMAND",
            help="shell command to run after the job, with HVDTRAIN_STATUS and more in its environment")  # fmt: skip
    add("--dry-run", action="store_true", help="print the command line, ready to paste, and start nothing")
