"""The options of python -m hvdtrain launch."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from hvdtrain.config import rules
from hvdtrain.config.job_options import add_common_options, add_job_options, split
from hvdtrain.errors import UserError
from hvdtrain.jobs import sbatch
from hvdtrain.jobs.launchers import LAUNCHERS
from hvdtrain.jobs.own_program import own_program
from hvdtrain.system.command import Parser, joined

EXAMPLES = """examples:
  python -m hvdtrain launch local -n 2 -- python -m hvdtrain.torch_lenet     (or hvdtrain train -n 2)
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
        command = _add_command(commands, name, launcher.about)
        command.set_defaults(hosts=None, hostfile=None, max_np=0, nodes=0, container="", mpi="")  # of other launchers
        add_job_options(command, launcher.options)
    about = "write a batch script for Slurm; with --submit submit it"
    _add_batch_options(_add_command(commands, "sbatch", about))
    return made


def parse(argv: list[str]) -> argparse.Namespace:
    """The options; exits with status 2 where they are invalid. Raises UserError where they do not go together."""
    end = argv.index("--") if "--" in argv else len(argv)
    options = parser().parse_args([*joined(argv[:end], "--sbatch"), *argv[end:]])
    options.program = options.program[1:] if options.program[:1] == ["--"] else options.program
    _check_ranks_once(options.program)
    if options.launcher == "sbatch":
        options.ranks = options.nodes * options.ranks_per_node
    rules.check_launch(**vars(options), is_allocated="SLURM_JOB_NODELIST" in os.environ)
    return options


def of_training(words: Sequence[str], start: Sequence[str]) -> list[str]:
    """The command line of `launch` for training that starts its ranks itself; empty for training that does not.

    words: options of training. start: what starts it in each rank.
    """
    of_job, others = split(words)
    launcher = "horovodrun" if any(word.startswith(("-H", "--host")) for word in of_job) else "local"
    return [launcher, *of_job, "--", *start, *others] if of_job else []


def _check_ranks_once(program: Sequence[str]) -> None:
    """Raise UserError for a program that would start ranks in each of its own."""
    training, sweep = own_program(program, "train"), own_program(program, "sweep")
    words: Sequence[str] = training.options if training else ()
    if sweep:
        command = sweep.split()[1]
        words = command[1:] if command[:1] == ["train"] else ()
    if given := split(words)[0]:
        raise UserError(f"-- ... train {given[0]}: launch starts the ranks", "give its options before the --")


def _add_command(commands: Any, name: str, about: str) -> argparse.ArgumentParser:
    usage = f"python -m hvdtrain launch {name} [OPTIONS] -- PROGRAM [ARGUMENTS...]"
    made = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.", usage=usage)
    made.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)  # the usage has it
    return made


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
    add_common_options(command)
