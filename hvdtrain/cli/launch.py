"""python -m hvdtrain launch: from options to a job and its exit status, or to a batch script.

It imports no framework and no NumPy, so that it starts at once.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hvdtrain.cli.launch_options import of_training, parse
from hvdtrain.cli.launch_options import parser as parser
from hvdtrain.config.job_options import split
from hvdtrain.errors import UserError
from hvdtrain.jobs import sbatch
from hvdtrain.jobs.hosts import Host, parse_hosts, read_hostfile, slurm_allocation, slurm_hosts
from hvdtrain.jobs.job import Job, check_job, for_launchers
from hvdtrain.jobs.launchers import LAUNCHERS, build, installation_folder
from hvdtrain.jobs.own_program import own_program
from hvdtrain.system import agent_pipe, rank_info
from hvdtrain.system.command import exit_status
from hvdtrain.system.files import unique_name

if TYPE_CHECKING:
    from hvdtrain.config.options import Framework


@exit_status()
def main(argv: list[str]) -> None:
    """Run the job; exits with its exit status."""
    options = parse(argv)
    sys.stdout.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]  # paths of any bytes
    sys.exit((batch if options.launcher == "sbatch" else launch)(options))


@exit_status()
def train(argv: list[str], framework: Framework | None = None, program: str = "python -m hvdtrain train") -> None:
    """Train in ranks that it starts; exits with the exit status of their job. Arguments as in `cli.train`."""
    from hvdtrain.training.process import read_options  # it imports the options of training

    read_options(framework, program, split(argv)[1])  # an error, or a text to print, needs no ranks
    main(of_training(argv, [sys.executable, *program.split()[1:]]))


def batch(options: argparse.Namespace) -> int:
    """Write a batch script, and submit it; the exit status. Raises UserError."""
    if sweep := own_program(options.program, "sweep"):
        from hvdtrain.cli.sweep_settings import check_trials  # it imports the options of training

        check_trials(*sweep.split(), options.array)
    if (training := own_program(options.program, "train")) and not options.container:  # which may have another version
        from hvdtrain.config import rules, sources

        line = sources.CommandLine.read(training.options, training.name, training.framework)
        if "resume" not in line.values:  # of a run that need not be there yet
            rules.check(line.options()[1], is_in_array=bool(options.array))
    return sbatch.run(options)


def _print(message: object) -> None:
    print(f"hvdtrain: {message}", file=sys.stderr, flush=True)


def launch(options: argparse.Namespace) -> int:
    """Run the job that the options describe; its exit status. Raises UserError if it cannot start."""
    if options.survive and (options.launcher == "mpirun" or options.mpi):
        options.survive, options.restarts = False, options.restarts or MPI_RESTARTS
        _print(f"--survive: a lost process ends an MPI job, so it is restarted instead (--restarts {options.restarts})")
    job = describe(options)
    for warning in check_job(job):
        _print(warning)
    if options.dry_run:
        specs = build(job, for_launchers(os.environ))
        print("\n".join(spec.pasteable() for spec in specs))
        return 0
    from hvdtrain.jobs.run import run  # not for --help and --dry-run: it imports asyncio

    end = run(job, options.on_end)
    if end.failure:  # for a series of jobs, or an agent, that has started this one
        agent_pipe.send(end.failure)
    return end.exit_status


IN_SLURM = "SLURM_JOB_NODELIST"
MPI_RESTARTS = 1000
"""With --survive, of a job that MPI starts."""


def describe(options: argparse.Namespace) -> Job:
    """The job that the options describe. Raises UserError for values that no launcher can use."""
    how = LAUNCHERS[options.launcher].in_allocation
    resuming = resume_variables(os.environ) if options.restarts or options.survive else {}
    return Job(
        launcher=options.launcher,
        program=tuple(options.program),
        ranks=options.ranks,
        hosts=_hosts(options, how == "named"),
        allocation=slurm_allocation(options.ranks, how == "spread", os.environ) if how in ("filled", "spread") else (),
        interface=options.interface or ("lo" if options.launcher == "local" else None),
        environment={**resuming, **requested_variables(options.env, os.environ)},
        mpi=options.mpi,
        nodes=options.nodes,
        mpi_prefix=installation_folder(for_launchers(os.environ)),
        container=options.container,
        start_timeout_s=options.start_timeout,
        output_dir=options.output_dir,
        survives=options.survive,
        grows_to=options.max_np,
        hostfile=options.hostfile if options.survive else None,
        spare=slurm_hosts(os.environ) if options.survive and how == "spread" and IN_SLURM in os.environ else (),
        restarts=options.restarts,
        min_ranks=options.min_np or int(options.survive),  # a few survivors are enough
    )


def resume_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which training resumes its own run when its command line is started again."""
    name = environment.get(rank_info.RUN_NAME) or unique_name("job")
    return {rank_info.RUN_NAME: name, rank_info.RESUME: "restarts"}


def _hosts(options: argparse.Namespace, of_allocation: bool) -> tuple[Host, ...]:
    """The hosts that are named to the launcher. of_allocation: by default those of the Slurm allocation, if any."""
    if options.hosts:
        return parse_hosts(options.hosts)
    if options.hostfile:
        return read_hostfile(options.hostfile)
    return slurm_hosts(os.environ) if of_allocation and IN_SLURM in os.environ else ()


def requested_variables(given: list[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of --env. Raises UserError for an invalid name, or for a variable without a value."""
    variables = {}
    for variable in given:
        name, sign, value = variable.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UserError(f"--env {name}: {name!r} is not the name of a variable", "write NAME or NAME=VALUE")
        if not sign and name not in environment:
            raise UserError(f"--env {name}: the variable is not set on this host", f"write --env {name}=VALUE")
        variables[name] = value if sign else environment[name]
    return variables
