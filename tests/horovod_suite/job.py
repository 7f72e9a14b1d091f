"""Runs one case with one core: starts its job, watches it, ends it if it hangs, and continues after what stopped it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import shutil
import subprocess
import threading
import time
from pathlib import Path

from support.jobs import end_all, pids, read_of_process

from horovod_suite.cases import STALL, Case, Core, command, environment
from horovod_suite.outcomes import Run, add_job, read_record

MAX_STOPS = 8
"""A file is not continued after so many tests that abort or hang."""
STALL_WARNING = "One or more tensors were submitted to be reduced"
CASE_S = 3600
"""Seconds that one run of a case may take."""
STACKS_S = 1
"""So long before a job counts as hung its ranks write their stacks."""


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
        stopped = add_job(run, [read_record(job / f"rank-{rank}.jsonl") for rank in range(case.ranks)], ended)
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
    variables = environment(case, core, requirements, job, quiet_s - STACKS_S)
    with (job / "log.txt").open("w") as log:
        process = subprocess.Popen(
            command(case, core), cwd=case.file.parent, env=variables, stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        start = seen = time.monotonic()
        size = -1
        while process.poll() is None:
            if stopping.is_set():
                raise Stopped
            now, total = time.monotonic(), sum(path.stat().st_size for path in job.glob("rank-*.jsonl"))
            if total != size:
                seen, size = now, total
            if now - seen > quiet_s or now - start > limit_s:
                return "hung"
            time.sleep(0.1)
    finally:
        stop(process, job)
    return "passed" if process.returncode == 0 else "aborted"


def stop(process: subprocess.Popen[bytes], job: Path) -> None:
    """End a job: the launcher, which ends its ranks, then what is left of all its processes."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
    end_all(lambda: processes_of(job))
    process.wait()


def processes_of(job: Path) -> list[int]:
    """Process ids of a job: those that have its folder in their environment; launchers start sessions of their own."""
    mark = f"HOROVOD_SUITE_RECORDS={job}".encode()
    return [pid for pid in pids() if mark in read_of_process(pid, "environ")]
