"""The options of python -m hvdtrain launch."""

from __future__ import annotations

import argparse
from pathlib import Path

from hvdtrain.jobs import horovod_options
from hvdtrain.jobs.job import START_TIMEOUT_S
from hvdtrain.jobs.slurm import sbatch
from hvdtrain.system.command import Parser

EXAMPLES = """examples:
  python -m hvdtrain launch local -n 2 -- python -m hvdtrain.torch_lenet
  python -m hvdtrain launch horovodrun -n 4 -H node1:2,node2:2 --interface eth0 -- python -m hvdtrain.mxnet_lenet
  python -m hvdtrain launch mpirun -n 4 --dry-run -- python -m hvdtrain.tensorflow_lenet
  python -m hvdtrain launch sbatch --nodes 2 --ranks-per-node 4 --time 1:00:00 -- python -m hvdtrain.torch_lenet
  python -m hvdtrain launch status
"""
DESCRIPTIONS = {
    "local": "all ranks on this host; needs neither MPI nor horovodrun",
    "horovodrun": "Horovod's launcher, with Gloo or MPI, on this host or on hosts reached by ssh",
    "mpirun": "Open MPI's launcher, on this host, on hosts reached by ssh, or in a Slurm allocation",
    "srun": "Slurm's launcher, in an allocation or in one of its own: with Gloo, or with MPI by --mpi",
    "sbatch": "write a batch script for Slurm; with --submit submit it",
    "status": "show the jobs that launch sbatch --submit has submitted: state, time, run and its step",
    "cancel": "end submitted jobs: those that run write a checkpoint first",
}


def parse(argv: list[str]) -> argparse.Namespace:
    """The options; exits with status 2 where they are invalid."""
    parser = Parser(
        prog="python -m hvdtrain launch",
        description="Start the ranks of a job and supervise them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="launcher", required=True)
    for name, description in DESCRIPTIONS.items():
        command = commands.add_parser(name, help=description, description=description)
        if name in ("status", "cancel"):
            (_add_status_options if name == "status" else _add_cancel_options)(command)
            continue
        if name == "sbatch":
            sbatch.add_options(command)
        else:
            _add_job_options(command, name)
        if name in ("horovodrun", "mpirun", "sbatch"):
            _add_ssh_options(command)
        _add_common_options(command)
        horovod_options.add_options(command)
        command.add_argument("program", nargs=argparse.REMAINDER, help="program and its options, after --")
    options = parser.parse_args(_joined(argv))
    if options.launcher in ("status", "cancel"):
        return options
    options.program = options.program[1:] if options.program[:1] == ["--"] else options.program
    return options


def _joined(argv: list[str]) -> list[str]:
    """The command line with `--sbatch=OPTION`: argparse takes what begins with a dash for an option of its own."""
    end = argv.index("--") if "--" in argv else len(argv)
    words: list[str] = []
    for word in argv[:end]:
        if words[-1:] == ["--sbatch"]:
            words[-1] += f"={word}"
        else:
            words.append(word)
    return [*words, *argv[end:]]


def _add_job_options(command: argparse.ArgumentParser, launcher: str) -> None:
    """Options of one launcher."""
    command.add_argument("-n", "-np", "--ranks", type=int, required=True, metavar="N", help="number of ranks")
    if launcher in ("horovodrun", "mpirun"):
        _add_host_options(command)
    if launcher == "horovodrun":
        _add_elastic_options(command)
        which = command.add_mutually_exclusive_group()
        which.add_argument("--gloo", dest="controller", action="store_const", const="gloo", default="gloo",
                           help="coordinate the ranks with Gloo (default)")  # fmt: skip
        which.add_argument("--mpi", dest="controller", action="store_const", const="mpi",
                           help="coordinate the ranks with MPI; horovodrun then calls mpirun")  # fmt: skip
    if launcher in ("mpirun", "srun"):
        command.add_argument("--container", default="", metavar="IMAGE",
                             help="a .sif file (Apptainer), or with srun an image for pyxis")  # fmt: skip
    if launcher == "srun":
        command.add_argument("--nodes", type=int, default=0, metavar="N", help="number of nodes to run on")
        command.add_argument("--mpi", default="", metavar="TYPE", help="pmix or pmi2, if srun --mpi=list shows it")


def _add_host_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("-H", "--hosts", metavar="A:2,B:2", help="hosts and their slots, reached by ssh")
    command.add_argument("--hostfile", type=Path, metavar="FILE", help="file with a line for each host: name slots=N")
    command.add_argument("--oversubscribe", action="store_true", help="allow more ranks than slots")
    command.add_argument(
        "--min-np", "--min-ranks", dest="min_ranks", type=int, default=0, metavar="N",
        help="with --restarts or --elastic: continue with as few as N ranks if hosts stop responding (default: all)",
    )  # fmt: skip


def _add_ssh_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--ssh-port", type=int, default=0, metavar="N", help="port of sshd on the other hosts")
    command.add_argument("--ssh-key", type=Path, metavar="FILE", help="private key for ssh to the other hosts")


def _add_status_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("jobs", nargs="*", metavar="JOB", help="number of a job, or NUMBER_TASK of an array (default: those that wait "
        "or run, and the last ten)")  # fmt: skip
    add("--all", action="store_true", help="show all jobs that were submitted")
    add("--tasks", action="store_true", help="show each task of an array in a line of its own")
    add("--json", action="store_true", help="print a JSON list in place of a table")


def _add_cancel_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("jobs", nargs="*", metavar="JOB", help="number of a job, or NUMBER_TASK of an array")
    add("--all", action="store_true", help="end all jobs that were submitted, after a question")
    add("--yes", action="store_true", help="with --all: do not ask")
    add("--now", action="store_true", help="do not wait for a checkpoint")


def _add_elastic_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--elastic", action="store_true", help="Horovod's elastic mode (PyTorch, TensorFlow; see docs/faults.md)")
    add("--max-np", type=int, default=0, metavar="N", help="with --elastic: maximum number of ranks")
    add("--host-discovery-script", type=Path, metavar="FILE",
        help="with --elastic: prints the available hosts, as name:slots")  # fmt: skip
    add("--elastic-on-public-address", action="store_true",
        help="with --elastic: allow a public address; whoever reaches it can run code as you")  # fmt: skip


def positive(text: str) -> float:
    """A time in seconds; argparse prints the error."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def _add_common_options(command: argparse.ArgumentParser) -> None:
    """Options of all launchers and of sbatch."""
    add = command.add_argument
    add("--interface", metavar="NAME", help="network interface between the hosts, such as eth0")
    add(
        "--env", action="append", default=[], metavar="NAME[=VALUE]", help="set a variable for the ranks, or pass it on"
    )
    add("--output-dir", type=Path, metavar="DIR", help="write each rank's output to files, too")
    add("--time-limit", metavar="TIME", help="stop with a checkpoint after seconds, M:S or H:M:S")
    add("--start-timeout", type=positive, default=START_TIMEOUT_S, metavar="S",
        help=f"seconds to wait until all ranks have registered, and then until their library connects them "
             f"(default: {START_TIMEOUT_S:g})")  # fmt: skip
    add(
        "--restarts", type=int, default=0, metavar="N", help="restart the job up to N times after failures (default: 0)"
    )
    add("--on-end", default="", metavar="COMMAND",
        help="shell command to run after the job, with HVDTRAIN_STATUS and more in its environment")  # fmt: skip
    add("--dry-run", action="store_true", help="print the command line, ready to paste, and start nothing")
