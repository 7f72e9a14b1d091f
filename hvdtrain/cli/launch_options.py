"""The options of python -m hvdtrain launch."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvdtrain.config import rules
from hvdtrain.jobs import sbatch
from hvdtrain.jobs.launchers import LAUNCHERS
from hvdtrain.system import removed
from hvdtrain.system.command import Parser, joined
from hvdtrain.system.rank_info import START_TIMEOUT_S

EXAMPLES = """examples:
  python -m hvdtrain launch local -n 2 -- python -m hvdtrain.torch_lenet
  python -m hvdtrain launch horovodrun -n 4 -H node1:2,node2:2 --interface eth0 -- python -m hvdtrain.mxnet_lenet
  python -m hvdtrain launch mpirun -n 4 --dry-run -- python -m hvdtrain.tensorflow_lenet
  python -m hvdtrain launch sbatch --nodes 2 --ranks-per-node 4 --time 1:00:00 -- python -m hvdtrain.torch_lenet
"""


def parser() -> Parser:
    made = Parser(
        prog="python -m hvdtrain launch",
        description="Start the ranks of a job and supervise them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = made.add_subparsers(dest="launcher", required=True, metavar="LAUNCHER", title="launchers and commands")
    for name, launcher in LAUNCHERS.items():
        _add_job_options(_add_command(commands, name, launcher.about), launcher.options)
    about = "write a batch script for Slurm; with --submit submit it"
    _add_batch_options(_add_command(commands, "sbatch", about))
    return made


def parse(argv: list[str]) -> argparse.Namespace:
    """The options; exits with status 2 where they are invalid. Raises UserError where they do not go together."""
    if argv and argv[0] in removed.LAUNCH_COMMANDS:
        raise removed.error(f"launch {argv[0]}", removed.LAUNCH_COMMANDS[argv[0]], "a command")
    end = argv.index("--") if "--" in argv else len(argv)
    options = parser().parse_args([*joined(argv[:end], "--sbatch"), *argv[end:]])
    options.program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if options.launcher == "sbatch":
        options.ranks = options.nodes * options.ranks_per_node
    rules.check_launch(**vars(options), is_allocated="SLURM_JOB_NODELIST" in os.environ)
    return options


def _add_command(commands: Any, name: str, about: str) -> argparse.ArgumentParser:
    usage = f"python -m hvdtrain launch {name} [OPTIONS] -- PROGRAM [ARGUMENTS...]"
    return commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.", usage=usage,
                               replacements=removed.LAUNCH)  # fmt: skip


def _add_job_options(command: argparse.ArgumentParser, kinds: Sequence[str]) -> None:
    """The options of one launcher. kinds: those that it has beyond the common ones, as in its entry of LAUNCHERS."""
    command.set_defaults(hosts=None, hostfile=None, max_np=0, nodes=0, container="", mpi="")  # of other launchers
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
    _add_common_options(command)


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


def _add_common_options(command: argparse.ArgumentParser) -> None:
    """Options of all launchers and of sbatch."""
    add = command.add_argument_group("failures and limits").add_argument
    add("--survive", action="store_true",
        help="go on in memory when ranks are lost, start them again, and take new ones; needs --shards of training "
             "(see docs/launch.md)")  # fmt: skip
    add("--restarts", type=count, default=0, metavar="N",
        help="restart the job up to N times after failures (default: 0)")  # fmt: skip
    add("--min-np", "--min-ranks", type=count, default=0, metavar="N",
        help="end, or restart, with fewer ranks (default: 1 with --survive, all with --restarts)")  # fmt: skip
    add("--start-timeout", type=positive, default=START_TIMEOUT_S, metavar="S",
        help=f"seconds to wait until all ranks have registered, and then until their library connects them "
             f"(default: {START_TIMEOUT_S:g})")  # fmt: skip
    add = command.add_argument_group("environment and output").add_argument
    add("--interface", metavar="NAME", help="network interface between the hosts, such as eth0")
    add("--env", action="append", default=[], metavar="NAME[=VALUE]",
        help="set a variable for the ranks, or pass it on")  # fmt: skip
    add("--output-dir", type=Path, metavar="DIR", help="also write each rank's output to files")
    add("--on-end", default="", metavar="COMMAND",
        help="shell command to run after the job, with HVDTRAIN_STATUS and more in its environment")  # fmt: skip
    add("--dry-run", action="store_true", help="print the command line, ready to paste, and start nothing")
    command.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)  # the usage has it


def _add_batch_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("what Slurm is asked for").add_argument
    add("--nodes", type=int, required=True, metavar="N", help="number of nodes")
    add("--ranks-per-node", type=int, required=True, metavar="N", help="with GPUs: one rank per GPU")
    add("--time", default="1:00:00", metavar="D-H:M:S", help="time limit (default: 1:00:00)")
    add("--via", choices=sbatch.VIAS, default="srun", help="launcher that starts the ranks (default: srun)")
    add("--mpi", default="", metavar="TYPE", help="srun's --mpi (pmix, pmi2); without it Gloo only")
    add("--gpus-per-node", default="", metavar="[TYPE:]N", help="GPUs of each node")
    add("--partition", default="", metavar="NAME", help="partition (queue)")
    add("--account", default="", metavar="NAME", help="account to charge")
    add("--job-name", default="hvdtrain", metavar="NAME", help="name in squeue (default: hvdtrain)")
    add("--container", default="", metavar="IMAGE", help="a .sif file (Apptainer), or an image for pyxis")
    add("--signal-before", type=int, default=120, metavar="S",
        help="seconds before the time limit at which the ranks write a last checkpoint (default: 120)")  # fmt: skip
    add("--no-requeue", action="store_true", help="do not resume after the time limit or the loss of a node")
    add("--array", default="", metavar="0-9",
        help="one task for each number, such as 0-9, 0-9%%2 (two at a time) or 1,3,5; of a sweep, each trains "
             "the trial of its number")  # fmt: skip
    add("--sbatch", action="append", default=[], metavar="OPTION",
        help='any other option of sbatch, such as --sbatch "--qos=high"; may be given several times')  # fmt: skip
    add("--submit", action="store_true", help="submit the script (default: print it)")
    _add_common_options(command)
