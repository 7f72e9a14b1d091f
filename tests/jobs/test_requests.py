"""Requests to stop reach training, whatever stands between it and the launcher: a checkpoint and 75, or a line.

Needs processes: what shells, `timeout`, uv, make and launchers do with signals is their own.
"""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from faults.watched_job import NUMPY, OPTIONS, STEP_S
from support.jobs import MARK, PROGRAMS, STARTED, PrintedJob, launch, newest, pids, read_of_process, start, wait_for

from hvdtrain.system.run_end import last_step

MATRIX = pytest.mark.matrix
TRAINING = ["python", str(PROGRAMS), "slowly", NUMPY, *OPTIONS, "--strategy", "ring", "--shards", "2"]
SCRIPTS = {
    "shell": '"$@"',
    "shell that goes on": '"$@"; echo the script goes on',
    "shell with exec": 'exec "$@"',
    "shell that cleans up": 'trap "rm -f cleaned" EXIT\n"$@"',
    "shell that forwards": 'trap "kill -TERM \\$!" TERM\n"$@" &\nwait $!; wait $!',
    "shell in a shell": 'sh -c \'"$@"; exit $?\' sh "$@"',
    "shell in the background": '"$@" & wait $!',
    "shell that trains twice": '"$@"; "$@" --name other',
    "timeout in a shell": 'timeout 600 "$@" || exit $?',
}
PREPARING = "echo preparing; sleep 0.5"
WRAPPERS = {
    "python": [],
    **{name: ["bash", f"{name}.sh"] for name in SCRIPTS},
    "timeout": ["timeout", "600"],
    "uv": ["uv", "run", "--no-project", "--"],
    "python that starts it": ["python", "-c", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"],
}
LAUNCHERS = {
    "local": launch("local", 2),
    "survive": launch("local", 2, "--survive"),
    "mpirun": launch("mpirun", 2),
    "horovodrun": launch("horovodrun", 2),
    "nested": [*launch("local", 1), *launch("horovodrun", 2)],
}
SIGNALS = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP
MOMENTS = {"before": "preparing", "starting": "starting rank 0", "training": ""}
QUICK = [
    ("local", "shell", signal.SIGTERM, "training"),
    ("local", "shell that goes on", signal.SIGUSR1, "starting"),
    ("survive", "shell that cleans up", signal.SIGINT, "training"),
    ("local", "shell in the background", signal.SIGINT, "training"),
    ("local", "shell that trains twice", signal.SIGUSR1, "training"),
    ("mpirun", "timeout in a shell", signal.SIGTERM, "training"),
    ("local", "python that starts it", signal.SIGTERM, "training"),
]
NOT_SURVIVING = ("shell that trains twice", "python that starts it")
"""A job that survives lost ranks trains once, in processes that have the pipe of their agents."""
ALL = [
    (by, wrapper, number, moment)
    for wrapper, by, number, moment in itertools.product(WRAPPERS, LAUNCHERS, SIGNALS, MOMENTS)
    if (moment != "before" or wrapper in SCRIPTS) and not (by == "survive" and wrapper in NOT_SURVIVING)
]
EACH = 5
"""One case of so many: then each launcher, wrapper, signal and moment still meets each other one."""
CASES = [*QUICK, *(pytest.param(*case, marks=MATRIX) for case in ALL[::EACH] if case not in QUICK)]


def started(folder: Path, wrapper: str, by: list[str], **variables: str) -> PrintedJob:
    if wrapper == "uv" and not shutil.which("uv"):
        pytest.skip("uv is not installed")
    if wrapper in SCRIPTS:
        (folder / f"{wrapper}.sh").write_text(f"{PREPARING}\n{SCRIPTS[wrapper]}\n")

    def begin(command: list[str], where: Path) -> subprocess.Popen[str]:
        return start(command, where, **{STEP_S: "0.1"}, **variables)

    return PrintedJob(folder, [*by, *WRAPPERS[wrapper], *TRAINING], begin)


def left_behind(job: PrintedJob) -> list[int]:
    mark = next(f"{MARK}={mark}".encode() for process, mark in STARTED if process is job.process)
    return [pid for pid in pids() if mark in read_of_process(pid, "environ")]


@pytest.mark.parametrize(("by", "wrapper", "number", "moment"), CASES)
def test_a_request_ends_in_a_checkpoint_or_a_line(tmp_path, by, wrapper, number, moment):
    """And with status 75, so that whoever started the job may start it again, and no process of it is left."""
    job = started(tmp_path, wrapper, LAUNCHERS[by])
    folder = tmp_path / "runs" / "run"
    if moment == "training":
        wait_for(lambda: (last_step(folder) or 0) > 2 or job.process.poll() is not None, 60, lambda: job.output)
    else:
        job.until(rf"(\[0\] )*{MOMENTS[moment]}", seconds=60)
    job.process.send_signal(number)
    status = job.process.wait(60)
    wait_for(lambda: not left_behind(job), 5)  # a daemon of mpirun ends a little later
    ended = signal.SIGTERM if number == signal.SIGHUP else number
    if f"hvdtrain: ended by {ended.name}" in job.output:
        # What has not begun ends at once. Python's own Ctrl-C ends what it has started.
        assert moment != "training" or (wrapper, number) == ("python that starts it", signal.SIGINT), job.output
        assert status == (75 if number == signal.SIGUSR1 else 128 + ended), job.output
        return
    assert (status, "Traceback" in job.output) == (75, False), job.output
    step = int(re.search(r"was asked to stop by \w+; the checkpoint of step (\d+)", job.output)[1])
    assert newest(folder).position.step == step and (last_step(folder) or 0) <= step, job.output


LATE = """#!/bin/sh
trap "echo the launcher was ended" TERM
{} "$@" &
wait $!
sleep 60 &
wait
"""


def test_what_a_launcher_prints_after_the_ranks_have_stopped_is_not_shown(tmp_path):
    """Such as horovodrun's traceback, where it ends later than it may."""
    folder = tmp_path / "bin"
    folder.mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    (folder / "mpirun").write_text(LATE.format(shutil.which("mpirun", path=path)))
    (folder / "mpirun").chmod(0o755)
    job = started(tmp_path, "python", LAUNCHERS["mpirun"], PATH=f"{folder}{os.pathsep}{path}")
    run = tmp_path / "runs" / "run"
    wait_for(lambda: (last_step(run) or 0) > 2 or job.process.poll() is not None, 60, lambda: job.output)
    job.process.send_signal(signal.SIGTERM)
    assert (job.process.wait(60), "was ended" in job.output) == (75, False), job.output
