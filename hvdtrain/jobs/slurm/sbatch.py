"""python -m hvdtrain launch sbatch: a batch script for Slurm with a comment for each setting.

The user may add any option of sbatch to its #SBATCH lines, and the tasks of an array: nothing of that may end its line,
or contradict a line that the script has already.
"""

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

from hvdtrain.errors import UserError
from hvdtrain.jobs import horovod_options
from hvdtrain.jobs.hosts import check_access
from hvdtrain.jobs.launchers import LAUNCHERS, check_length
from hvdtrain.jobs.series import joined, sweep_program
from hvdtrain.jobs.slurm import submissions
from hvdtrain.jobs.slurm.submissions import Submission, array_tasks
from hvdtrain.system import credentials
from hvdtrain.system.rank_info import START_TIMEOUT_S
from hvdtrain.system.text import printable

TIME = re.compile(r"(\d+-)?\d+(:\d{1,2}){0,2}")
WORD = re.compile(r"[A-Za-z0-9_.,:+@=%/-]+")
MAX_JOB_NAME = 200
"""Characters: the log file is named so, followed by the numbers of the job and of a task."""
REPLACED = re.compile(r"%\d*[AabJjNnstux%]|\\")
"""What Slurm replaces in the path of a log file, also in the folder's part."""
VIAS = tuple(name for name, launcher in LAUNCHERS.items() if launcher.in_allocation)
"""Launchers that a batch script can start the ranks with."""


def _names_its_run(program: Sequence[str]) -> bool:
    """Whether a training program of hvdtrain's has --name: an early word, as each task says so only when it starts."""
    trains = any(Path(word).name == "hvdtrain" or "_lenet" in word for word in program)
    return trains and not sweep_program(program) and any(word.partition("=")[0] == "--name" for word in program)


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
    if found := REPLACED.search(os.getcwd()):
        raise UserError(
            f"Slurm replaces {found[0]} in the path of the log file, {printable(os.getcwd())}: the job would have none",
            "submit it in a folder without % and \\ in its path",
        )
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
        array=array_tasks(options.array).text if options.array else "",
        mail_user=options.mail_user,
        mail_type=mail_type(options.mail_user, options.mail_type),
        extra=extra(options.sbatch),
        survive=options.survive,
        requeue=not options.no_requeue,
        path=shlex.quote(os.path.dirname(python)) if in_venv else "",
        sweep=sweep is not None,
        program=sweep.command_line(launcher, bool(options.array)) if sweep else joined(options.program),
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
    command += ["--survive"] if options.survive else []
    command += ["--min-np", str(options.min_ranks)] if options.min_ranks else []
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
        reason = f"--time {options.time!r} is not a time limit"
        raise UserError(reason, "write minutes, H:M:S or D-H:M:S, as for sbatch")
    _check_variables(options.env)
    check_length(options.via, options.program, {})  # before the job waits for hours
    if options.array and _names_its_run(options.program):
        raise UserError(
            "--array with --name: all tasks would train the same run",
            "omit --name: each task then has a run of its own",
            option="name",
        )
    if credentials.holds("", options.on_end):
        reason = "--on-end: the command holds credentials, which the script would show"
        raise UserError(reason, "let the command read them from a file that only you can read")
    if options.mpi and "slurm" not in LAUNCHERS[options.via].options:
        raise UserError(f"--mpi {options.mpi} is for srun only", f"omit it with --via {options.via}")
    if (options.ssh_port or options.ssh_key) and LAUNCHERS[options.via].in_allocation != "named":
        raise UserError("--ssh-port and --ssh-key are for horovodrun only", f"omit them with --via {options.via}")
    for name in ("gpus_per_node", "mem", "partition", "account", "job_name", "mpi", "mail_user"):
        value = getattr(options, name)
        if value and not WORD.fullmatch(value):
            reason = f"--{name.replace('_', '-')} {value!r} is invalid"
            raise UserError(reason, "give one word without spaces or quotes")
    if "/" in options.job_name or len(options.job_name) > MAX_JOB_NAME:
        reason = f"--job-name {options.job_name!r:.100}: no log file can be named so"
        raise UserError(reason, f"give at most {MAX_JOB_NAME} characters, and no /")


def _write(path: Path, text: str) -> None:
    # In place and not by renaming a new file: the path may be a link or a device.
    try:
        path.write_bytes(os.fsencode(text))  # names of files may not be valid text
        path.chmod(0o755)
    except OSError as error:
        raise UserError(f"--script {path} cannot be written ({error.strerror})", "give another file") from None


IN_COMMAND_LINE = "leave it out: it is an option of the command sbatch, not of a job"
RANKS = "give --nodes and --ranks-per-node"
DECIDED = {
    "account": "give --account",
    "array": "give --array",
    "chdir": "start the launcher in that folder: the script changes to it",
    "cpus-per-task": "give --cpus-per-rank",
    "export": "give --env NAME or --env NAME=VALUE",
    "export-file": "give --env NAME or --env NAME=VALUE",
    "gpus-per-node": "give --gpus-per-node",
    "job-name": "give --job-name",
    "mail-type": "give --mail-type",
    "mail-user": "give --mail-user",
    "mem": "give --mem",
    "no-kill": "give --survive",
    "no-requeue": "give --no-requeue",
    "nodes": RANKS,
    "ntasks": RANKS,
    "ntasks-per-node": RANKS,
    "open-mode": "leave it out: a job that is queued again appends to its log file, and others begin a new one",
    "output": "leave it out: launch status knows the log file by its name, and --output-dir writes one for each rank",
    "partition": "give --partition",
    "requeue": "leave it out: it is the default, and --no-requeue turns it off",
    "signal": "give --signal-before",
    "tasks-per-node": RANKS,
    "time": "give --time",
    **dict.fromkeys(
        ("help", "ignore-pbs", "parsable", "quiet", "test-only", "usage", "verbose", "version", "wait"),
        IN_COMMAND_LINE,
    ),
    "wrap": "write the program after --",
}
"""Options of sbatch that the script sets, or that do not belong into one, and what to do instead."""
SHORT = {
    **{"A": "account", "a": "array", "D": "chdir", "c": "cpus-per-task", "J": "job-name", "N": "nodes", "n": "ntasks"},
    **{"o": "output", "p": "partition", "t": "time", "h": "help", "Q": "quiet", "v": "verbose", "V": "version"},
    "W": "wait",
}
"""Their short forms."""
NOT_ABBREVIATIONS = ("gpus",)
"""Options of their own, although the names of others begin with them: sbatch accepts any clear beginning of a name."""
FLAGS = "HkOsI"
"""Short options without a value."""
WITH_VALUE = "BCFGLMSbdeimqwx"
LONG = re.compile(r"--([A-Za-z][A-Za-z0-9-]*)(?:=(.*))?", re.DOTALL)
PLAIN = re.compile(r"[A-Za-z0-9_.,:+@=%/~^*!&|()\[\]-]*")
"""Words that sbatch reads as they are; others are quoted."""

MAIL_TYPES = ("NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT", "TIME_LIMIT",
              "TIME_LIMIT_50", "TIME_LIMIT_80", "TIME_LIMIT_90", "ARRAY_TASKS")  # fmt: skip
MAIL_TYPE = "END,FAIL"
"""The default where there is a --mail-user."""


def extra(given: list[str]) -> list[str]:
    """The #SBATCH lines of --sbatch, without `#SBATCH`. Raises UserError for what a line cannot hold."""
    return [_line(option) for option in given]


def _line(given: str) -> str:
    where = f"--sbatch {given!r:.100}"
    try:
        words = shlex.split(given) if given.isprintable() else []
    except ValueError:
        words = []
    if not 1 <= len(words) <= 2:
        raise UserError(f"{where} is not one option of sbatch", 'write one after each --sbatch: --sbatch "--qos=high"')
    option, *values = words
    if not option.startswith("-") or option == "-":
        raise UserError(f"{where}: {option!r:.100} is not an option", 'write --sbatch "--qos=high"')
    line = _long(where, option, values) if option.startswith("--") else _short(where, option, values)
    return " ".join(_quoted(word) for word in line)


def _long(where: str, option: str, values: list[str]) -> list[str]:
    match = LONG.fullmatch(option)
    if not match or (values and match[2] is not None):
        raise UserError(f"{where} is not one option of sbatch", 'write it as --sbatch "--NAME=VALUE"')
    _refuse_decided(where, match[1])
    # One word, so that a value is never read as an option or as the program.
    return [f"{option}={values[0]}" if values else option]


def _short(where: str, option: str, values: list[str]) -> list[str]:
    name, value = option[1], option[2:]
    if name in SHORT:
        _refuse_decided(where, SHORT[name])
    if name in FLAGS and not value and not values:
        return [option]
    if name in WITH_VALUE and bool(value) != bool(values):
        return [f"-{name}", value or values[0]]
    raise UserError(f"{where} is not one option of sbatch", 'write its long form: --sbatch "--qos=high"')


def _refuse_decided(where: str, name: str) -> None:
    meant = [
        option for option in DECIDED if option == name or (option.startswith(name) and name not in NOT_ABBREVIATIONS)
    ]
    if meant:
        option = name if name in DECIDED else meant[0]
        raise UserError(f"{where}: the launcher decides --{option} of the batch script", DECIDED[option])


def _quoted(word: str) -> str:
    """A word as sbatch reads it in a script, where # begins a comment."""
    if PLAIN.fullmatch(word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def mail_type(user: str, given: str) -> str:
    """The value of --mail-type; empty where no mail is asked for. Raises UserError for a type that Slurm lacks."""
    types = (given or (MAIL_TYPE if user else "")).upper()
    unknown = [event for event in types.split(",") if event not in MAIL_TYPES] if types else []
    if unknown:
        raise UserError(
            f"--mail-type {given!r:.100}: {unknown[0]!r:.40} is not an event", f"give {', '.join(MAIL_TYPES)}"
        )
    return types
