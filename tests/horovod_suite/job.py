"""Runs one case with one core: starts its job, watches it, ends it if it hangs, and continues after what stopped it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

from horovod_suite.cases import STALL, Case, Core, command, environment
from horovod_suite.outcomes import Run, add_job, read_record

MAX_STOPS = 8
"""A file is not continued after so many tests that abort or hang."""

STALL_WARNING = "One or more tensors were submitted to be reduced"


CASE_S = 3600
"""Seconds that one run of a case may take."""


def run_case(case: Case, core: Core, folder: Path, requirements: Path, quiet_s: float) -> Run:
    """Run a case in `folder`, which keeps its logs and records, and write `run.json` there.

    quiet_s: seconds without a test that starts or ends, after which a job counts as hung.
    """
    shutil.rmtree(folder, ignore_errors=True)
    run, start, stops = Run(), time.monotonic(), 0
    for number in itertools.count():
        job = folder / f"job-{number}"
        job.mkdir(parents=True)
        (job / "done.json").write_text(json.dumps([*run.outcomes]))
        left = CASE_S - (time.monotonic() - start)
        ended = watch(case, core, job, requirements, min(quiet_s, left), left)
        if case.file.name == STALL:
            warned = STALL_WARNING in (job / "log.txt").read_text(errors="replace")
            run.outcomes[STALL] = ["failed" if ended == "passed" and not warned else ended]
            break
        records = [read_record(job / f"rank-{rank}.jsonl") for rank in range(case.ranks)]
        stopped = add_job(run, records, ended)
        stops += stopped is not None
        if not stopped or stops == MAX_STOPS or time.monotonic() - start > CASE_S:
            break
    run.seconds = round(time.monotonic() - start, 1)
    (folder / "run.json").write_text(json.dumps(dataclasses.asdict(run), indent=1))
    return run


class Stopped(Exception):
    """The comparison is to end; its jobs have."""


stopping = threading.Event()
"""Set to end all jobs."""


def watch(case: Case, core: Core, job: Path, requirements: Path, quiet_s: float, limit_s: float) -> str:
    """Start a job and wait for its end: `passed`, `aborted` (status not 0) or `hung`. Raises Stopped."""
    if stopping.is_set():
        raise Stopped
    variables = environment(case, core, requirements, job)
    with (job / "log.txt").open("w") as log:
        process = subprocess.Popen(
            command(case, core), cwd=case.file.parent, env=variables, stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        start = seen = time.monotonic()
        size = -1
        while process.poll() is None:
            if stopping.is_set():
                stop(process, job)
                raise Stopped
            now, total = time.monotonic(), sum(path.stat().st_size for path in job.glob("rank-*.jsonl"))
            if total != size:
                seen, size = now, total
            if now - seen > quiet_s or now - start > limit_s:
                show_stacks(job)
                stop(process, job)
                return "hung"
            time.sleep(0.1)
    stop(process, job)  # what it may have left behind
    return "passed" if process.returncode == 0 else "aborted"


def show_stacks(job: Path) -> None:
    """Have each rank write the Python stacks of its threads into the log."""
    for path in job.glob("rank-*.jsonl"):
        pid = read_record(path).pid
        if pid in processes_of(job):
            os.kill(pid, signal.SIGUSR1)
    time.sleep(1)


def stop(process: subprocess.Popen[bytes], job: Path) -> None:
    """End a job: the launcher, which ends its ranks, then what is left of all its processes."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
    while left := processes_of(job):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        time.sleep(0.05)


def processes_of(job: Path) -> list[int]:
    """Process ids of a job: those that have its folder in their environment; launchers start sessions of their own."""
    mark, found = f"HOROVOD_SUITE_RECORDS={job}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parts[2]))
    return found
