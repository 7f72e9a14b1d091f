"""The disk of the run's folder fails: it is full, returns errors, does not respond, is slow or is gone."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faults.suite import Row, Suite
from faults.watched_job import EVERY, HANG_S, STEPS, Mismatch, WatchedJob
from hvdtrain.runs import checkpoints


def full(suite: Suite, launcher: str, framework: str) -> Row:
    """A disk with a random number of KB: the last checkpoint is whole, and with more space the job resumes."""
    folder = suite.new_folder()
    if not can_mount(folder):
        pytest.skip("no small disk can be mounted here")
    (folder / "runs").mkdir()
    size = suite.random.randrange(100, 3600)
    with small_disk(folder / "runs", size) as grow:
        job = suite.job(launcher, framework, folder=folder)
        job.end(1 if "cannot be written" in job.final_output() else 2)
        if "No space left on device" not in job.output or "Traceback" in job.output:
            raise Mismatch(job.output)
        count = whole_checkpoints(job)
        grow()
        suite.check_resumes(job)
    return Row(f"a full disk, {size} KB", launcher, framework, state=f"{count} whole checkpoint(s), then same weights")


def disk(suite: Suite, launcher: str, framework: str) -> Row:
    """A disk that accepts no more writes for another reason: as with a full one."""
    job = suite.job(launcher, framework, "disk")
    job.wait_for_step(suite.random.randrange(EVERY + 1, STEPS - 8))
    name = suite.random.choice(["EROFS", "EDQUOT", "EIO"])
    job.set_disk(name)
    failed = time.time()
    job.end(1)
    text = os.strerror(getattr(errno, name))
    detected = job.reported(f"cannot be written ({text}); free disk space", failed, 1)
    count = whole_checkpoints(job)
    job.set_disk("")
    suite.check_resumes(job)
    state = f"{count} whole checkpoint(s), then same weights"
    return Row(f"disk error: {text}", launcher, framework, detected - failed, state=state)


def stall(suite: Suite, launcher: str, framework: str) -> Row:
    """A folder that does not respond for a while."""
    job = suite.job(launcher, framework, "disk", launch_options=["--restarts", "2"])
    job.wait_for_step(suite.random.randrange(2, STEPS - 8))
    job.set_disk("600")
    stalled = time.time()
    detected = job.reported("and the run's folder runs/run does not answer", stalled, HANG_S + 20)
    job.set_disk("")
    job.end(0)
    suite.check_weights(job)
    job.check_time(detected - stalled, HANG_S + 10, "it was detected")
    return Row("the run's folder does not respond", launcher, framework, detected - stalled)


def slow(suite: Suite, launcher: str, framework: str) -> Row:
    """A folder that takes 2 s for every operation, so that a checkpoint takes longer than --hang-timeout."""
    job = suite.job(launcher, framework, "disk", launch_options=["--restarts", "2"])
    job.set_disk_for(2.0, suite.random.randrange(2, STEPS - 8), 4 * HANG_S)
    job.end(0)
    suite.check_weights(job)
    suite.check_not_restarted(job)
    return Row("the run's folder is slow", launcher, framework)


def gone(suite: Suite, launcher: str, framework: str) -> Row:
    """The run's folder is gone: the job does not start over in its place, and resumes when it is back."""
    job = suite.job(launcher, framework, launch_options=["--restarts", "2"])
    job.wait_for_step(suite.random.randrange(EVERY + 1, STEPS - 8))
    aside = job.folder / "aside"
    job.run.rename(aside)
    moved = time.time()
    job.end(2)
    detected = job.reported(", as runs/run is gone; bring it back", moved, 1)
    if job.run.exists():
        raise Mismatch(f"it started over:\n{job.output}")
    aside.rename(job.run)
    suite.check_resumes(job)
    return Row("the run's folder is gone", launcher, framework, detected - moved)


def whole_checkpoints(job: WatchedJob) -> int:
    """How many checkpoints there are; raises checkpoints.Damaged if one is not whole."""
    return len([checkpoints.load(path) for path in (job.run / "checkpoints").glob("step-*")])


def can_mount(folder: Path) -> bool:
    """Whether this process may mount a file system: as root, and not in every container."""
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], capture_output=True).returncode:
        return False
    return not subprocess.run(["umount", str(folder)]).returncode


@contextlib.contextmanager
def small_disk(folder: Path, size_kb: int) -> Iterator[Callable[[], object]]:
    """Mount a disk of this size on a folder; yields a function that enlarges it."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_kb}k", "tmpfs", str(folder)], check=True)
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=50m", str(folder)], check=True)
    finally:
        subprocess.run(["umount", str(folder)], check=True)
