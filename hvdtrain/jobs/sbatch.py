"""python -m hvdtrain launch sbatch: a batch script for Slurm, and its submission.

sbatch reads the #SBATCH lines of the script; the rest is an ordinary script that runs on the first node. The user may
add any option of sbatch, in a line of its own, and the tasks of an array: nothing of that may end its line. All other
texts are quoted for the shell, or are words without spaces and quotes.
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

from hvdtrain.errors import UserError
from hvdtrain.jobs.launchers import LAUNCHERS
from hvdtrain.jobs.own_program import own_program
from hvdtrain.system import credentials
from hvdtrain.system.rank_info import START_TIMEOUT_S
from hvdtrain.system.text import printable

TIME = re.compile(r"(\d+-)?\d+(:\d{1,2}){0,2}")
WORD = re.compile(r"[A-Za-z0-9_.,:+@=%/-]+")
MAX_JOB_NAME = 200
"""Characters: the log file is named so, followed by the numbers of the job and of a task."""
REPLACED = re.compile(r"%\d*[AabJjNnstux%]|\\")
"""What Slurm replaces in the path of a log file, also in the folder's part."""
SUBMITTED = re.compile(r"([0-9]{1,10})(?:;(\S+))?\s*")
"""What sbatch --parsable prints: the job's number, and the cluster if that was chosen."""
OWN = ("array", "nodes", "ntasks", "ntasks-per-node", "signal", "time")
"""Options of sbatch from which the launcher makes other parts of the script; sbatch also takes their beginnings."""
OWN_LETTERS = re.compile(r"-[aNnt]")
MAX_TASK = 4_000_000
"""Slurm's limit of MaxArraySize."""
PROGRAM, TASK = "python -m hvdtrain ", "$SLURM_ARRAY_TASK_ID"
VIAS = tuple(name for name, launcher in LAUNCHERS.items() if launcher.in_allocation)
"""Launchers that a batch script can start the ranks with."""
INPUT = re.compile(r"SBATCH_\w+|SLURM_(CLUSTERS|HINT)")
"""Variables from which sbatch takes options: before those of a script, after those of its command line."""


def run(options: argparse.Namespace) -> int:
    """Print the script, or submit it where that is asked for; the exit status."""
    text, submits = script(options), options.submit and not options.dry_run
    if names := ", ".join(sorted(filter(INPUT.fullmatch, os.environ))):
        order = "they override those of a printed script, but not those that --submit passes"
        print(f"hvdtrain: sbatch also takes options from {names}: {order}", file=sys.stderr)
    if submits:
        lines = "\n".join([*(line for line, _ in _settings(options)), *options.sbatch])
        return _submit(text, ["sbatch", "--parsable", *shlex.split(lines, comments=True)])
    print(text, end="")
    return 0


def _submit(text: str, command: Sequence[str]) -> int:
    if not shutil.which("sbatch"):
        raise UserError(
            "sbatch is not on PATH", "submit where Slurm is installed, or omit --submit to print the script"
        )
    if found := REPLACED.search(os.getcwd()):
        raise UserError(
            f"Slurm replaces {found[0]} in the path of the log file, {printable(os.getcwd())}: the job would have none",
            "submit it in a folder without % and \\ in its path",
        )
    # On standard input, as a file's path may hold any characters.
    done = subprocess.run(command, input=os.fsencode(text), stdout=subprocess.PIPE, check=False)
    output = done.stdout.decode(errors="replace")
    # A site's plug-in may print lines of its own.
    submitted = SUBMITTED.fullmatch((output.splitlines() or [""])[-1])
    if done.returncode or not submitted:
        print(output, end="")
        return done.returncode
    job, cluster = submitted.groups()
    print(f"Submitted batch job {job}{f' on cluster {cluster}' if cluster else ''}", flush=True)
    of_cluster = f"--clusters={cluster} " if cluster else ""
    print(
        f"hvdtrain: squeue {of_cluster}--jobs={job} shows it, and hvdtrain runs its training; scancel {of_cluster}"
        f"--batch --signal=TERM {job} ends it after a checkpoint, and scancel {of_cluster}{job} while it waits",
        file=sys.stderr,
    )
    return 0


def script(options: argparse.Namespace) -> str:
    """The script that the options describe. Raises UserError for what Slurm or the shell would misread."""
    _check(options)
    launcher = _launch_command(options)
    path = shlex.quote(os.path.dirname(sys.executable)) if sys.prefix != sys.base_prefix else ""
    launched = joined(launcher)  # it ends with --output-dir, where each task of an array has a folder of its own
    launched += f'/"{TASK}"' if options.array and options.output_dir else ""
    sweep = own_program(options.program, "sweep")
    if not sweep:
        return batch_script(options, path, joined(options.program), launched)
    given, command = sweep.split()
    if command[0] == "train":
        by = f"{launched.removeprefix(PROGRAM)} -- {PROGRAM}"
    elif launcher == _launch_command(options, only_required=True):
        by = ""
    else:
        reason = "-- sweep ... -- launch: the sweep's own command starts the ranks, so other options have no effect"
        raise UserError(reason, "write sweep ... -- train OPTIONS, or give the launcher's options after launch")
    return batch_script(options, path, f"{joined([*sweep.start, *given])} -- {by}{joined(command)}", "")


def _launch_command(options: argparse.Namespace, only_required: bool = False) -> list[str]:
    """The launcher inside the script, up to the program. only_required: without what the user may leave out."""
    command = ["python", "-m", "hvdtrain", "launch", options.via, "-n", str(options.ranks)]
    command += ["--nodes", str(options.nodes)] if options.via == "srun" else []
    if only_required:
        return command
    for name in ("mpi", "container", "interface", "restarts", "survive", "min_np", "start_timeout", "on_end"):
        value = getattr(options, name)
        if value and (name, value) != ("start_timeout", START_TIMEOUT_S):
            text = f"{value:g}" if isinstance(value, float) else str(value)
            command += [f"--{name.replace('_', '-')}", *([] if value is True else [text])]
    command += [word for variable in options.env for word in ("--env", variable)]
    return [*command, "--output-dir", str(options.output_dir)] if options.output_dir else command


def _check(options: argparse.Namespace) -> None:
    if not options.program:
        raise UserError("no program to start", "write it after --, such as -- python -m hvdtrain.torch_lenet")
    for name in ("nodes", "ranks_per_node", "signal_before"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} {getattr(options, name)} is invalid", "give 1 or more")
    if not TIME.fullmatch(options.time):
        raise UserError(
            f"--time {options.time!r} is not a time limit", "write minutes, H:M:S or D-H:M:S, as for sbatch"
        )
    if 0 < (limit_s := _seconds(options.time)) <= options.signal_before:
        given = f"--time {options.time} is {limit_s} s, and --signal-before {options.signal_before} s"
        raise UserError(f"{given}: the job would stop as soon as it starts", "give a longer --time")
    for variable in options.env:
        name, sign, value = variable.partition("=")
        if sign and credentials.holds(name, value):  # other users can read the script
            raise UserError(
                f"--env {name}: its value holds credentials, which the script would show",
                f"export {name} in the shell that submits the script, and give --env {name}: Slurm passes it on",
            )
    if credentials.holds("", options.on_end):
        reason = "--on-end: the command holds credentials, which the script would show"
        raise UserError(reason, "let the command read them from a file that only you can read")
    for name in ("gpus_per_node", "partition", "account", "job_name", "mpi"):
        value = getattr(options, name)
        if value and not WORD.fullmatch(value):
            reason = f"--{name.replace('_', '-')} {value!r} is invalid"
            raise UserError(reason, "give one word without spaces or quotes")
    if "/" in options.job_name or len(options.job_name) > MAX_JOB_NAME:
        reason = f"--job-name {options.job_name!r:.100}: no log file can be named so"
        raise UserError(reason, f"give at most {MAX_JOB_NAME} characters, and no /")
    if options.array:
        last_task(options.array)
    for line in options.sbatch:
        _check_line(line)


def _seconds(time: str) -> int:
    """Of a time limit, which Slurm rounds up to minutes; 0 for none."""
    days, dash, clock = time.rpartition("-")
    parts = [*map(int, clock.split(":")), 0, 0]
    hours, minutes, seconds = (parts if dash or clock.count(":") == 2 else [0, *parts])[:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes + (seconds + 59) // 60) * 60


def _check_line(line: str) -> None:
    """Raise UserError for a line of --sbatch that would be more than options, or that the launcher has to know."""
    where = f"--sbatch {line!r:.100}"
    if not line.isprintable() or not line.startswith("-"):
        raise UserError(f"{where} is not an option of sbatch", 'write --sbatch "--qos=high"')
    try:
        shlex.split(line, comments=True)
    except ValueError:
        raise UserError(f"{where}: a quotation mark is missing", "write both, or a \\ before the one") from None
    if re.search(r"\s-", line):
        raise UserError(f"{where} is more than one option of sbatch", "give each after a --sbatch of its own")
    name = re.split(r"[=\s]", line.removeprefix("--"))[0]
    if OWN_LETTERS.match(line) or (line.startswith("--") and any(own.startswith(name) for own in OWN)):
        remedy = "launch sbatch --help lists its own options"
        raise UserError(f"{where}: the launcher has to know {line.split('=')[0]}", remedy)


def last_task(array: str) -> int:
    """The highest number of the tasks of --array. Raises UserError for what sbatch would not accept."""
    remedy = "write 0-9, 0-9%2 for two at a time, 0-8:2, or 1,3,5"
    ranges, percent, limit = array.partition("%")
    tasks = [re.fullmatch(r"([0-9]{1,7})(?:-([0-9]{1,7})(?::[1-9][0-9]{0,6})?)?", part) for part in ranges.split(",")]
    if not all(tasks) or (percent and not re.fullmatch(r"[1-9][0-9]{0,6}", limit)):
        raise UserError(f"--array {array!r:.100} is not a list of tasks", remedy)
    bounds = [(int(task[1]), int(task[2] or task[1])) for task in tasks if task]
    last = max(last for _, last in bounds)
    if last > MAX_TASK or any(first > last for first, last in bounds):
        raise UserError(f"--array {array!r:.100} has a range without tasks, or a number above {MAX_TASK}", remedy)
    return last


def joined(words: Sequence[str]) -> str:
    """Words of an array for the shell; those with a comma in quotes, which otherwise looks as if it divided them."""
    return " ".join(f"'{word}'" if "," in word and word == shlex.quote(word) else shlex.quote(word) for word in words)


def batch_script(options: argparse.Namespace, path: str, program: str, launcher: str) -> str:
    """The script.

    path: the folder of python and horovodrun; empty for those of the system. launcher: what starts the ranks; empty for
    a program that does so itself.
    """
    ranks = f"{options.nodes} node(s) with {options.ranks_per_node} rank(s) each"
    settings = "".join(f"\n# {comment}\n#SBATCH {given}\n" for given, comment in _settings(options) if given)
    if options.sbatch:
        settings += "\n# What --sbatch added.\n" + "".join(f"#SBATCH {given}\n" for given in options.sbatch)
    if path:
        path = f'# hvdtrain\'s virtual environment, with python and horovodrun.\nexport PATH={path}:"$PATH"\n'
    # Of a task of an array, SLURM_JOB_ID may be the number of the whole array.
    job = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if options.array else "$SLURM_JOB_ID"
    asked = "" if launcher else ' && [ -n "${asked-}" ]'  # else the file STOP of a trial has ended the sweep
    return f"""\
#!/bin/bash

# {options.job_name}: {ranks}, written by: python -m hvdtrain launch sbatch
# Start it with sbatch, in a shell without variables SBATCH_*, which override the options below.
{settings}
set -uo pipefail
cd "$SLURM_SUBMIT_DIR" || exit 1
# From these, the commands below would take options.
unset SLURM_CLUSTERS "${{!SQUEUE_@}}" "${{!SCANCEL_@}}"
{path}
{_training(options, job, program, launcher) if launcher else _sweep(options, program)}
{SIGNALS}

if [ "$status" -ne 0 ] && [ -n "$cancelled" ]; then
    # So that Slurm shows the job as cancelled, not as failed; unless Slurm ends it, perhaps to queue it again.
    [ "$(squeue --noheader --format=%T --jobs="{job}" 2>/dev/null)" != RUNNING ] || scancel "{job}" 2>/dev/null
{"" if options.no_requeue else REQUEUE.format(job, asked)}fi
exit "$status"
"""


def _settings(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Options of sbatch, each with a comment; those that are empty have no line."""
    nodes = f"--nodes={options.nodes} --ntasks-per-node={options.ranks_per_node}"
    signaled = "This many seconds before the limit, this script gets SIGUSR1: the ranks write a last checkpoint."
    numbers = "One task for each number, which the program has as SLURM_ARRAY_TASK_ID."
    lost = "After the loss of a node, the job is not queued again."
    if not options.no_requeue:
        lost = (
            "After the time limit or the loss of a node, the job is queued again, and resumes with the same log file."
        )
    number = "%A_%a" if options.array else "%j"
    survives = "Slurm does not end the job with a node: the ranks on the others go on."
    return [
        (f"--job-name={options.job_name}", "The name in squeue."),
        (nodes, "Number of nodes, and of ranks on each node: with GPUs, one rank per GPU."),
        (f"--gpus-per-node={options.gpus_per_node}" if options.gpus_per_node else "", "GPUs of each node."),
        (f"--time={options.time}", "Time limit, after which Slurm ends the job."),
        (f"--signal=B:USR1@{options.signal_before}", signaled),
        (f"--partition={options.partition}" if options.partition else "", "Partition (queue)."),
        (f"--account={options.account}" if options.account else "", "Account to charge."),
        (f"--array={options.array}" if options.array else "", numbers),
        ("--no-requeue" if options.no_requeue else "--requeue --open-mode=append", lost),
        ("--no-kill" if options.survive else "", survives),
        (f"--output=%x-{number}.log", "The ranks' output, each line after the rank's number."),
    ]


def _sweep(options: argparse.Namespace, program: str) -> str:
    trials = "the trial of the task's number" if options.array else "each trial"
    return f"""\
# The program: a sweep, which starts {trials} with hvdtrain's launcher.
program=({program})

"${{program[@]}}" &"""


def _training(options: argparse.Namespace, job: str, program: str, launcher: str) -> str:
    resumes, resume = "; a job that is queued again resumes it", "export HVDTRAIN_RESUME=requeue\n"
    return f"""\
# The name of the run, unless the program has a --name{"" if options.no_requeue else resumes}.
export HVDTRAIN_RUN_NAME="slurm-{job}"
{"" if options.no_requeue else resume}program=({program})

# hvdtrain's launcher starts the ranks with {options.via} and supervises them.
{launcher} -- "${{program[@]}}" &"""


REQUEUE = """\
elif [ "$status" -eq 75 ]{1}; then
    # 75: the ranks were asked to stop, have written a checkpoint and can resume.
    scontrol requeue "{0}" && exit 0
"""
SIGNALS = """\
launcher=$!

# Forward Slurm's signals to the launcher, which forwards them to all ranks. SIGTERM asks for the end of the job.
cancelled=
trap 'asked=yes; kill -USR1 "$launcher" 2>/dev/null' USR1
trap 'cancelled=yes; kill -TERM "$launcher" 2>/dev/null' TERM
# A trap interrupts wait, so wait again until the launcher has ended; bash keeps its status.
while wait "$launcher"; status=$?; kill -0 "$launcher" 2>/dev/null; do :; done
wait "$launcher" 2>/dev/null
last=$?
[ "$last" -eq 127 ] || status=$last
# 130: the ranks were asked to stop by the file STOP of the run.
[ "$status" -ne 130 ] || cancelled=yes"""
