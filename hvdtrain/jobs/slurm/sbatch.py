"""python -m hvdtrain launch sbatch: a batch script for Slurm with a comment for each setting."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.jobs import horovod_options
from hvdtrain.jobs.hosts import check_access
from hvdtrain.jobs.job import START_TIMEOUT_S
from hvdtrain.jobs.slurm import directives, submissions
from hvdtrain.jobs.slurm.submissions import Submission
from hvdtrain.system import credentials
from hvdtrain.system.text import printable

TIME = re.compile(r"(\d+-)?\d+(:\d{1,2}){0,2}")
WORD = re.compile(r"[A-Za-z0-9_.,:+@=%/-]+")
TASK = "$SLURM_ARRAY_TASK_ID"
SWEEP = "runs/sweep"
"""The default for --output of a sweep."""
VIAS = ("srun", "mpirun", "horovodrun")


class SweepProgram(NamedTuple):
    """`hvdtrain sweep` as the program of a batch script, which starts a job for each of its trials.

    This has to be known before anything runs: no launcher is around a sweep, and a task of an array has one trial.
    """

    start: tuple[str, ...]
    """What starts it, up to the word sweep."""
    options: tuple[str, ...]
    """Those of the sweep itself."""
    command: tuple[str, ...]
    """What each trial runs, after --, without the name of this program: train or launch, and their options."""

    @property
    def folder(self) -> str:
        """The value of --output, the last one."""
        folder = SWEEP
        for option, following in zip(self.options, [*self.options[1:], ""], strict=True):
            name, sign, value = option.partition("=")
            if name in ("--output", "--out"):
                folder = value if sign else following
        return folder

    def command_line(self, launcher: list[str], array: bool) -> str:
        """For the shell. launcher: what starts the ranks of a trial, for a command that does not start them itself."""
        given = any(option.partition("=")[0] == "--trial" for option in self.options)
        trial = f' --trial "{TASK}"' if array and not given else ""
        train = [*launcher[launcher.index("launch") :], "--", "python", "-m", "hvdtrain"]
        command = [*([] if self.command[0] == "launch" else train), *self.command]
        return f"{_joined([*self.start, *self.options])}{trial} -- {_joined(command)}"


def sweep_program(program: Sequence[str]) -> SweepProgram | None:
    """The program, perhaps started by another one, if it is a sweep, else None."""
    before = program[: program.index("--")] if "--" in program else program
    for index, argument in enumerate(before):
        by_module = before[index - 2 : index] == ["-m", "hvdtrain"] or before[index - 1 : index] == ["-mhvdtrain"]
        if argument == "sweep" and (by_module or (index and Path(before[index - 1]).name == "hvdtrain")):
            command = without_program(program[len(before) + 1 :])
            return SweepProgram(tuple(before[: index + 1]), tuple(before[index + 1 :]), tuple(command))
    return None


def without_program(command: Sequence[str]) -> list[str]:
    """A command line of hvdtrain from its command on, without `hvdtrain` or `python -m hvdtrain` before it."""
    if list(command[:1]) == ["hvdtrain"]:
        return list(command[1:])
    return list(command[3:] if list(command[1:3]) == ["-m", "hvdtrain"] else command)


def _names_its_run(program: Sequence[str]) -> bool:
    """Whether a training program of hvdtrain's has --name: an early word, as each task says so only when it starts."""
    trains = any(Path(word).name == "hvdtrain" or "_lenet" in word for word in program)
    return trains and not sweep_program(program) and any(word.partition("=")[0] == "--name" for word in program)


def _joined(words: Sequence[str]) -> str:
    """Words of an array for the shell; those with a comma in quotes, which otherwise looks as if it divided them."""
    return " ".join(f"'{word}'" if "," in word and word == shlex.quote(word) else shlex.quote(word) for word in words)


def add_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--nodes", type=int, required=True, metavar="N", help="number of nodes")
    add("--ranks-per-node", type=int, required=True, metavar="N", help="with GPUs: one rank per GPU")
    add("--time", default="1:00:00", metavar="D-H:M:S", help="time limit (default: 1:00:00)")
    add("--via", choices=VIAS, default="srun", help="launcher that starts the ranks (default: srun)")
    add("--mpi", default="", metavar="TYPE", help="srun's --mpi (pmix, pmi2); without it Gloo only")
    add("--cpus-per-rank", type=int, metavar="N", help="cores for each rank")
    add("--gpus-per-node", metavar="[TYPE:]N", help="GPUs of each node")
    add("--mem", metavar="SIZE", help="memory of each node, such as 64G")
    add("--partition", metavar="NAME", help="partition (queue)")
    add("--account", metavar="NAME", help="account to charge")
    add("--job-name", default="hvdtrain", metavar="NAME", help="name in squeue (default: hvdtrain)")
    add("--container", metavar="IMAGE", help="a .sif file (Apptainer), or an image for pyxis")
    add("--signal-before", type=int, default=120, metavar="S",
        help="seconds before the time limit at which the ranks write a last checkpoint (default: 120)")  # fmt: skip
    add("--no-requeue", action="store_true", help="do not resume after the time limit or the loss of a node")
    add("--array", default="", metavar="0-9",
        help="one task for each number, such as 0-9, 0-9%%2 (two at a time) or 1,3,5; of a sweep, each trains "
             "the trial of its number")  # fmt: skip
    add("--sbatch", action="append", default=[], metavar="OPTION",
        help='any other option of sbatch, such as --sbatch "--qos=high"; may be given several times')  # fmt: skip
    add("--mail-user", default="", metavar="ADDRESS", help="whom Slurm writes mail about the job")
    add("--mail-type", default="", metavar="EVENTS", help="about what (default: END,FAIL)")
    add("--script", type=Path, metavar="FILE", help="write the script to this file (default: print it)")
    add("--submit", action="store_true", help="submit the script")


def run(options: argparse.Namespace) -> int:
    """Write the script, and submit it where that is asked for; the exit status."""
    text = script(options)
    if options.script:
        _write(options.script, text)
    elif not options.submit:
        print(text, end="")
    return _submit(options, text) if options.submit and not options.dry_run else 0


def _submit(options: argparse.Namespace, text: str) -> int:
    """Submit a script, and remember its job for `launch status`; sbatch's exit status."""
    if not shutil.which("sbatch"):
        raise UserError("sbatch is not on PATH", "submit where Slurm is installed; --script FILE writes the script")
    # On standard input, as a file's path may hold any characters.
    done = subprocess.run(["sbatch", "--parsable"], input=os.fsencode(text), stdout=subprocess.PIPE, check=False)
    output = done.stdout.decode(errors="replace")
    job, cluster = submissions.parse_submitted(output)
    if done.returncode or not job:
        print(output, end="")
        return done.returncode
    print(f"Submitted batch job {job}{f' on cluster {cluster}' if cluster else ''}", flush=True)
    sweep = sweep_program(options.program)
    made = Submission(
        job, options.job_name, os.getcwd(), options.program, cluster, options.array, sweep.folder if sweep else ""
    )
    try:
        submissions.add(made)
    except (OSError, RuntimeError) as error:  # the job runs all the same
        reason = error.strerror if isinstance(error, OSError) else error
        where = f"it is not recorded in {submissions.NAME} ({reason})"
        print(f"hvdtrain: {printable(where)}: launch status lists it only by its number", file=sys.stderr)
    return 0


def script(options: argparse.Namespace, python: str = sys.executable) -> str:
    """The script that the options describe. Raises UserError for what Slurm or the shell would misread."""
    _check(options)
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hvdtrain.jobs.slurm", ""),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    sweep, launcher = sweep_program(options.program), _launch_command(options)
    if sweep and sweep.command[:1] not in (("train",), ("launch",)):
        raise UserError("-- sweep: it has no command to run", "write sweep --set NAME=V1,V2 -- train OPTIONS")
    if sweep and sweep.command[0] == "launch" and launcher != _launch_command(options, only_required=True):
        reason = "-- sweep ... -- launch: the sweep's own command starts the ranks, so other options have no effect"
        raise UserError(reason, "write sweep ... -- train OPTIONS, or give the launcher's options after launch")
    in_venv = sys.prefix != sys.base_prefix
    # Every value below is a number, a word that _check accepts, or quoted for Slurm or the shell.
    return environment.get_template("batch.sbatch.jinja").render(
        job_name=options.job_name,
        nodes=options.nodes,
        ranks_per_node=options.ranks_per_node,
        cpus_per_rank=options.cpus_per_rank,
        gpus_per_node=options.gpus_per_node,
        memory=options.mem,
        time=options.time,
        signal_before=options.signal_before,
        partition=options.partition,
        account=options.account,
        array=directives.array_tasks(options.array).text if options.array else "",
        mail_user=options.mail_user,
        mail_type=directives.mail_type(options.mail_user, options.mail_type),
        extra=directives.extra(options.sbatch),
        requeue=not options.no_requeue,
        path=shlex.quote(os.path.dirname(python)) if in_venv else "",
        sweep=sweep is not None,
        program=sweep.command_line(launcher, bool(options.array)) if sweep else _joined(options.program),
        via=options.via,
        command="" if sweep else shlex.join(launcher),
    )


def _launch_command(options: argparse.Namespace, only_required: bool = False) -> list[str]:
    """The launcher inside the script, up to the program. only_required: without what the user may leave out."""
    command = ["python", "-m", "hvdtrain", "launch", options.via, "-n", str(options.nodes * options.ranks_per_node)]
    command += ["--nodes", str(options.nodes)] if options.via == "srun" else []
    if only_required:
        return command
    command += ["--mpi", options.mpi] if options.mpi else []
    access = check_access(options.ssh_port, options.ssh_key)
    command += ["--ssh-port", str(access.port)] if access.port else []
    command += ["--ssh-key", access.key] if access.key else []
    command += ["--container", options.container] if options.container else []
    command += ["--interface", options.interface] if options.interface else []
    command += ["--output-dir", str(options.output_dir)] if options.output_dir else []
    command += ["--time-limit", options.time_limit] if options.time_limit else []
    command += ["--restarts", str(options.restarts)] if options.restarts else []
    command += ["--start-timeout", f"{options.start_timeout:g}"] if options.start_timeout != START_TIMEOUT_S else []
    command += ["--on-end", options.on_end] if options.on_end else []
    settings = [f"{name}={value}" for name, value in horovod_options.variables(options).items()]
    return [*command, *(word for variable in [*options.env, *settings] for word in ("--env", variable))]


def _check_variables(given: list[str]) -> None:
    """Raise UserError for a value that other users must not read: they can read the script."""
    for variable in given:
        name, sign, value = variable.partition("=")
        if sign and credentials.holds(name, value):
            raise UserError(
                f"--env {name}: its value holds credentials, which the script would show",
                f"export {name} in the shell that submits the script, and give --env {name}: Slurm passes it on",
            )


def _check(options: argparse.Namespace) -> None:
    if not options.program:
        raise UserError("no program to start", "write it after --, such as -- python -m hvdtrain.torch_lenet")
    for name in ("nodes", "ranks_per_node", "cpus_per_rank", "signal_before"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} {value} is invalid", "give 1 or more")
    if not TIME.fullmatch(options.time):
        raise UserError(
            f"--time {options.time!r} is not a time limit", "write minutes, H:M:S or D-H:M:S, as for sbatch"
        )
    _check_variables(options.env)
    if options.array and _names_its_run(options.program):
        raise UserError(
            "--array with --name: all tasks would train the same run",
            "omit --name: each task then has a run of its own",
            option="name",
        )
    if credentials.holds("", options.on_end):
        raise UserError(
            "--on-end: the command holds credentials, which the script would show",
            "let the command read them from a file that only you can read",
        )
    if options.mpi and options.via != "srun":
        raise UserError(f"--mpi {options.mpi} is for srun only", f"omit it with --via {options.via}")
    if (options.ssh_port or options.ssh_key) and options.via != "horovodrun":
        raise UserError("--ssh-port and --ssh-key are for horovodrun only", f"omit them with --via {options.via}")
    for name in ("gpus_per_node", "mem", "partition", "account", "job_name", "mpi", "mail_user"):
        value = getattr(options, name)
        if value and not WORD.fullmatch(value):
            raise UserError(
                f"--{name.replace('_', '-')} {value!r} is invalid", "give one word without spaces or quotes"
            )


def _write(path: Path, text: str) -> None:
    # In place and not by renaming a new file: the path may be a link or a device.
    try:
        path.write_bytes(os.fsencode(text))  # names of files may not be valid text
        path.chmod(0o755)
    except OSError as error:
        raise UserError(f"--script {path} cannot be written ({error.strerror})", "give another file") from None
