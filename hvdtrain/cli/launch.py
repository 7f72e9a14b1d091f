"""python -m hvdtrain launch {local,horovodrun,mpirun,srun,sbatch}: from one description of a job to its start.

It imports no framework, NumPy neither: it is up at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from hvdtrain.errors import HvdtrainError, UserError
from hvdtrain.launch import command_lines, elastic, horovod_options, hosts
from hvdtrain.launch.command_lines import LaunchSpec
from hvdtrain.launch.job import Host, Job, check, parse_hosts, read_hostfile
from hvdtrain.launch.program import resumable
from hvdtrain.system import slurm

EXAMPLE = """examples:
  python -m hvdtrain launch local -n 2 -- python -m hvdtrain.torch_lenet
  python -m hvdtrain launch horovodrun -n 4 -H node1:2,node2:2 --interface eth0 -- python -m hvdtrain.mxnet_lenet
  python -m hvdtrain launch mpirun -n 4 --dry-run -- python -m hvdtrain.tensorflow_lenet
  python -m hvdtrain launch sbatch --nodes 2 --ranks-per-node 4 --time 1:00:00 -- python -m hvdtrain.torch_lenet
"""
ABOUT = {
    "local": "all ranks on this machine; needs neither MPI nor horovodrun",
    "horovodrun": "Horovod's launcher, by Gloo or by MPI, here or on hosts reached by ssh",
    "mpirun": "Open MPI's launcher, here, on hosts reached by ssh, or in a Slurm allocation",
    "srun": "Slurm's launcher, in an allocation or for one of its own: by Gloo alone, or with --mpi",
    "sbatch": "write a batch script for Slurm, and with --submit submit it",
}


def main(argv: list[str]) -> None:
    """Ends the process with the job's exit status."""
    options = parse(argv)
    try:
        sys.stdout.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]  # paths of any bytes
        sys.exit(_sbatch(options) if options.launcher == "sbatch" else launch(options))
    except HvdtrainError as error:
        if not getattr(error, "told", False):
            print(f"hvdtrain: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


def parse(argv: list[str]) -> argparse.Namespace:
    """The options; ends the process with 2 where they are none."""
    parser = argparse.ArgumentParser(
        prog="python -m hvdtrain launch",
        description="Start the ranks of a job, and stay with it to its end.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="launcher", required=True)
    for name, about in ABOUT.items():
        command = commands.add_parser(name, help=about, description=about, allow_abbrev=False)
        if name == "sbatch":
            from hvdtrain.launch import sbatch

            sbatch.add_options(command)
        else:
            _add_options(command, name)
        _add_common(command)
        horovod_options.add_options(command)
        command.add_argument("program", nargs=argparse.REMAINDER, help="program and its options, after --")
    options = parser.parse_args(argv)
    # Python 3.11's argparse makes an empty list of `--option=--`.
    values = [(name, value) for name, value in vars(options).items() if name not in ("env", "program")]
    for name, value in [*values, *(("env", word) for word in options.env)]:
        if value == []:
            parser.error(f"argument --{name.replace('_', '-')}: expected one argument")
    options.program = options.program[1:] if options.program[:1] == ["--"] else options.program
    return options


def _add_options(command: argparse.ArgumentParser, launcher: str) -> None:
    command.add_argument("-n", "-np", "--ranks", type=int, required=True, metavar="N", help="number of ranks")
    if launcher in ("horovodrun", "mpirun"):
        command.add_argument("-H", "--hosts", metavar="A:2,B:2", help="hosts and their slots, reached by ssh")
        command.add_argument("--hostfile", type=Path, metavar="FILE", help="the same as lines of: name slots=N")
        command.add_argument("--oversubscribe", action="store_true", help="more ranks than slots")
        command.add_argument(
            "--min-np", "--min-ranks", dest="min_ranks", type=int, default=0, metavar="N",
            help="with --restarts or --elastic: go on with so few ranks where hosts no longer answer (all)",
        )  # fmt: skip
    if launcher == "horovodrun":
        elastic.add_options(command)
        which = command.add_mutually_exclusive_group()
        which.add_argument("--gloo", dest="controller", action="store_const", const="gloo", default="gloo")
        which.add_argument("--mpi", dest="controller", action="store_const", const="mpi", help="by mpirun underneath")
    if launcher in ("mpirun", "srun"):
        command.add_argument(
            "--container", default="", metavar="IMAGE", help="a .sif file, or with srun a name (pyxis)"
        )
    if launcher == "srun":
        command.add_argument("--nodes", type=int, default=0, metavar="N", help="spread over so many nodes")
        command.add_argument("--mpi", default="", metavar="TYPE", help="pmix or pmi2, where srun --mpi=list has it")


def positive(text: str) -> float:
    """Seconds of an option; argparse says what is wrong with others."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds")
    return value


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument("--interface", metavar="NAME", help="network interface between the hosts, such as eth0")
    command.add_argument(
        "--env", action="append", default=[], metavar="NAME[=VALUE]", help="set or pass on for the ranks"
    )
    command.add_argument("--output-dir", type=Path, metavar="DIR", help="what each rank prints, as files, too")
    command.add_argument("--time-limit", metavar="TIME", help="stop with a checkpoint after seconds, M:S or H:M:S")
    command.add_argument("--start-timeout", type=positive, default=120, metavar="S", help="until all ranks came (120)")
    command.add_argument(
        "--restarts", type=int, default=0, metavar="N", help="start again so often after a failure (0)"
    )
    command.add_argument("--dry-run", action="store_true", help="print the command, ready to paste, and start nothing")


def launch(options: argparse.Namespace) -> int:
    """Start the job and wait for its end; the exit status. Raises HvdtrainError where it does not end well."""
    job, environment = describe(options), command_lines.with_own_programs(os.environ)
    for sentence in check(job):
        print(f"hvdtrain: {sentence}", file=sys.stderr)
    if vars(options).get("elastic"):
        return _elastic(options, job, environment)
    least = restarting(options, job)
    if options.dry_run:
        print("\n".join(one.pasteable() for one in start(options.launcher, job, environment)))
        return 0
    hosts.check(hosts.elsewhere(job.hosts))
    if job.output_dir:
        _make(job.output_dir)
    import asyncio  # not for --help and --dry-run

    from hvdtrain.launch.restarts import Restarts
    from hvdtrain.launch.supervisor import Supervisor

    allowed = environment if options.launcher == "local" else {**command_lines.passed(environment), **job.environment}

    def supervise(job: Job) -> Supervisor:
        return Supervisor(options.launcher, job, start(options.launcher, job, environment), allowed)

    return asyncio.run(Restarts(job, options.restarts, least, supervise).run())


def restarting(options: argparse.Namespace, job: Job) -> int:
    """The number of ranks below which the job is not started again. Raises UserError where it cannot be."""
    least = vars(options).get("min_ranks", 0)
    if options.restarts < 0:
        raise UserError(f"--restarts {options.restarts}: give 0 or more")
    if least and not options.restarts:
        raise UserError(f"--min-np {least}: it tells with how few ranks to start again; give --restarts N as well")
    if not 0 <= least <= job.ranks:
        raise UserError(f"--min-np {least}: give 1 to {job.ranks}, the number of ranks")
    return least or job.ranks


def _elastic(options: argparse.Namespace, job: Job, environment: Mapping[str, str]) -> int:
    elastic.check(options, job)
    one = elastic.start(options, job, environment)
    if options.dry_run:
        print(one.pasteable())
        return 0
    hosts.check(hosts.elsewhere(job.hosts))
    elastic.become(one, environment)


def describe(options: argparse.Namespace) -> Job:
    """The job that the options ask for. Raises UserError for those that no launcher can carry out."""
    given = vars(options)
    if given.get("hosts") and given.get("hostfile"):
        raise UserError("--hosts and --hostfile both name the hosts: give one of them")
    named: tuple[Host, ...] = ()
    if given.get("hosts"):
        named = parse_hosts(options.hosts)
    elif given.get("hostfile"):
        named = read_hostfile(options.hostfile)
    elif options.launcher == "horovodrun" and "SLURM_JOB_NODELIST" in os.environ:
        named = allocated(os.environ)  # mpirun and srun ask Slurm themselves
    program = tuple(options.program)
    return Job(
        program=resumable(program) if options.restarts else program,
        ranks=options.ranks,
        hosts=named,
        interface=options.interface or ("lo" if options.launcher == "local" else None),
        environment={**horovod_options.variables(options), **asked(options.env, os.environ)},
        controller=given.get("controller", "gloo"),
        mpi=given.get("mpi", "") if options.launcher == "srun" else "",
        nodes=given.get("nodes", 0),
        mpi_prefix=command_lines.mpi_prefix(command_lines.with_own_programs(os.environ)),
        container=given.get("container", ""),
        oversubscribe=given.get("oversubscribe", False),
        start_timeout_s=options.start_timeout,
        time_limit_s=seconds(options.time_limit) if options.time_limit else None,
        output_dir=options.output_dir,
    )


def allocated(environment: Mapping[str, str]) -> tuple[Host, ...]:
    """The hosts of this Slurm allocation, and their tasks. Raises UserError where Slurm's variables are damaged."""
    names = slurm.hostnames(environment["SLURM_JOB_NODELIST"])
    counts = slurm.tasks_per_node(environment.get("SLURM_TASKS_PER_NODE") or f"1(x{len(names)})")
    if len(names) != len(counts):
        raise UserError("SLURM_JOB_NODELIST and SLURM_TASKS_PER_NODE do not belong together; name the hosts by -H")
    return tuple(map(Host, names, counts))


def start(launcher: str, job: Job, environment: Mapping[str, str]) -> list[LaunchSpec]:
    """The programs that start the job: one for each rank for `local`, one for all else."""
    if launcher == "local":
        return [command_lines.local(job, environment, rank) for rank in range(job.ranks)]
    if launcher == "horovodrun" and job.interface and job.hosts and not hosts.elsewhere(job.hosts):
        job = dataclasses.replace(job, interface="lo")  # the only one that it takes where all hosts are this one
    return [command_lines.LAUNCHERS[launcher](job, environment)]


def asked(given: list[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of --env. Raises UserError where one is no variable, or has no value here."""
    found = {}
    for word in given:
        name, sign, value = word.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UserError(f"--env {word}: {name!r} is no name of a variable; write NAME or NAME=VALUE")
        if not sign and name not in environment:
            raise UserError(f"--env {name}: it is not set here; write --env {name}=VALUE")
        found[name] = value if sign else environment[name]
    return found


def seconds(text: str) -> float:
    """Seconds of `90`, `1:30` or `1:00:00`. Raises UserError where it is no time."""
    match = re.fullmatch(r"(?:(?:(\d+):)?(\d+):)?(\d+(?:\.\d+)?)", text)
    if not match or len(text) > 20 or not any(float(part) for part in match.groups() if part):
        raise UserError(f"--time-limit {text!r}: give seconds, minutes:seconds or hours:minutes:seconds")
    hours, minutes, rest = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + rest


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what programs print may hold anything
    except OSError as error:
        raise UserError(f"--output-dir {folder} cannot be made ({error.strerror}); give another folder") from None


def _sbatch(options: argparse.Namespace) -> int:
    from hvdtrain.launch import sbatch

    return sbatch.run(options)
