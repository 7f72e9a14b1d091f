"""The text of a batch script for Slurm, with a comment for each setting.

sbatch reads the #SBATCH lines; the rest is an ordinary script that runs on the first node. All functions take the
options of `launch sbatch`: numbers, and words without spaces and quotes. The other texts are quoted for the shell.
"""

from __future__ import annotations

import argparse


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
    return f"""\
#!/bin/bash

# {options.job_name}: {ranks}, written by: python -m hvdtrain launch sbatch
{settings}
set -uo pipefail
cd "$SLURM_SUBMIT_DIR" || exit 1
{path}
{_training(options, job, program, launcher) if launcher else _sweep(options, program)}
{SIGNALS}

if [ "$status" -ne 0 ] && [ -n "$cancelled" ]; then
    # So that Slurm shows the job as cancelled, not as failed; unless Slurm ends it, perhaps to queue it again.
    [ "$(squeue --noheader --format=%T --jobs="{job}" 2>/dev/null)" != RUNNING ] || scancel "{job}" 2>/dev/null
{"" if options.no_requeue else REQUEUE.format(job)}fi
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
elif [ "$status" -eq 75 ]; then
    # 75: the ranks were asked to stop, have written a checkpoint and can resume.
    scontrol requeue "{}" && exit 0
"""
SIGNALS = """\
launcher=$!

# Forward Slurm's signals to the launcher, which forwards them to all ranks. SIGTERM asks for the end of the job.
cancelled=
trap 'kill -USR1 "$launcher" 2>/dev/null' USR1
trap 'cancelled=yes; kill -TERM "$launcher" 2>/dev/null' TERM
# A trap interrupts wait, so wait again until the launcher has ended; bash keeps its status.
while wait "$launcher"; status=$?; kill -0 "$launcher" 2>/dev/null; do :; done
wait "$launcher" 2>/dev/null
last=$?
[ "$last" -eq 127 ] || status=$last"""
