"""python -m hvdtrain launch sbatch: a batch script for Slurm, every line of which says what it is for."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.errors import UserError
from hvdtrain.launch import horovod_options
from hvdtrain.launch.program import is_own, value

TIME = re.compile(r"(\d+-)?\d+(:\d{1,2}){0,2}")
WORD = re.compile(r"[A-Za-z0-9_.,:+@=%/-]+")
VIAS = ("srun", "mpirun", "horovodrun")


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--nodes", type=int, required=True, metavar="N")
    command.add_argument("--ranks-per-node", type=int, required=True, metavar="N", help="with GPUs: one a GPU")
    command.add_argument("--time", default="1:00:00", metavar="D-H:M:S", help="limit (1:00:00)")
    command.add_argument("--via", choices=VIAS, default="srun", help="what starts the ranks in it; default: srun")
    command.add_argument("--mpi", default="", metavar="TYPE", help="srun's --mpi (pmix, pmi2); without it, Gloo alone")
    command.add_argument("--cpus-per-rank", type=int, metavar="N")
    command.add_argument("--gpus-per-node", metavar="[TYPE:]N")
    command.add_argument("--mem", metavar="SIZE", help="memory of each node, such as 64G")
    command.add_argument("--partition", metavar="NAME")
    command.add_argument("--account", metavar="NAME")
    command.add_argument("--job-name", default="hvdtrain", metavar="NAME")
    command.add_argument("--container", metavar="IMAGE", help="a .sif file (apptainer), else an image for pyxis")
    command.add_argument("--signal-before", type=int, default=120, metavar="S", help="last checkpoint (120 s) before")
    command.add_argument("--no-requeue", action="store_true", help="do not go on after the time limit or a lost node")
    command.add_argument("--script", type=Path, metavar="FILE", help="write it there; default: print it")
    command.add_argument("--submit", action="store_true", help="submit it")


@dataclass(frozen=True)
class Batch:
    """What the script says; strings for the shell are quoted already."""

    values: dict[str, Any]

    def script(self) -> str:
        import jinja2

        loader = jinja2.PackageLoader("hvdtrain.launch", "")
        environment = jinja2.Environment(
            loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False
        )
        return environment.get_template("batch.sbatch.jinja").render(self.values)


def run(options: argparse.Namespace) -> int:
    """Write the script, and submit it where that is asked; the exit status."""
    text = describe(options).script()
    if options.script:
        _write(options.script, text)
    elif not options.submit:
        print(text, end="")
    if not options.submit or options.dry_run:
        return 0
    if not shutil.which("sbatch"):
        raise UserError("sbatch is not on PATH: submit where Slurm's commands are; the script is written by --script")
    # On standard input, as a path may have any name.
    return subprocess.run(["sbatch"], input=os.fsencode(text), check=False).returncode


def describe(options: argparse.Namespace, python: str = sys.executable) -> Batch:
    """What the options ask for. Raises UserError for what Slurm or the shell would misread."""
    _check(options)
    program = list(options.program)
    resumes = is_own(program) and not options.no_requeue and not {"--resume", "--auto-resume"} & set(program)
    in_venv = sys.prefix != sys.base_prefix
    return Batch(
        {
            "job_name": options.job_name,
            "nodes": options.nodes,
            "ranks_per_node": options.ranks_per_node,
            "cpus_per_rank": options.cpus_per_rank,
            "gpus_per_node": options.gpus_per_node,
            "memory": options.mem,
            "time": options.time,
            "signal_before": options.signal_before,
            "partition": options.partition,
            "account": options.account,
            "requeue": not options.no_requeue,
            "path": shlex.quote(os.path.dirname(python)) if in_venv else "",
            "program": shlex.join(program),
            "named": resumes and not value(program, "--name"),
            "auto_resume": resumes,
            "via": options.via,
            "command": shlex.join(_command(options)),
        }
    )


def _command(options: argparse.Namespace) -> list[str]:
    """The launcher inside the script, up to the program."""
    words = ["python", "-m", "hvdtrain", "launch", options.via, "-n", str(options.nodes * options.ranks_per_node)]
    if options.via == "srun":
        words += ["--nodes", str(options.nodes), *(["--mpi", options.mpi] if options.mpi else [])]
    words += ["--container", options.container] if options.container else []
    words += ["--interface", options.interface] if options.interface else []
    words += ["--output-dir", str(options.output_dir)] if options.output_dir else []
    words += ["--time-limit", options.time_limit] if options.time_limit else []
    words += ["--restarts", str(options.restarts)] if options.restarts else []
    words += ["--start-timeout", f"{options.start_timeout:g}"] if options.start_timeout != 120 else []
    given = horovod_options.variables(options)
    asked = [word for name in options.env for word in ("--env", name)]
    return [*words, *asked, *(word for name, value in given.items() for word in ("--env", f"{name}={value}"))]


def _check(options: argparse.Namespace) -> None:
    if not options.program:
        raise UserError("no program to start: write it after --, such as -- python -m hvdtrain.torch_lenet")
    for name in ("nodes", "ranks_per_node", "cpus_per_rank", "signal_before"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} {value}: give 1 or more")
    if not TIME.fullmatch(options.time):
        raise UserError(f"--time {options.time!r}: write minutes, H:M:S or D-H:M:S, as sbatch has it")
    if options.mpi and options.via != "srun":
        raise UserError(f"--mpi {options.mpi} is srun's: leave it out with --via {options.via}")
    for name in ("gpus_per_node", "mem", "partition", "account", "job_name", "mpi"):
        value = getattr(options, name)
        if value and not WORD.fullmatch(value):
            raise UserError(f"--{name.replace('_', '-')} {value!r}: sbatch takes one word without spaces or quotes")


def _write(path: Path, text: str) -> None:
    try:
        path.write_bytes(os.fsencode(text))  # names of files may be no text
        path.chmod(0o755)
    except OSError as error:
        raise UserError(f"--script {path} cannot be written ({error.strerror}); give another file") from None
