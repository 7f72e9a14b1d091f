"""Jobs one after the other, each in new processes: those of a benchmark or a sweep, also a sweep in a batch script."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from hvdtrain.errors import Stopped
from hvdtrain.jobs import protocol
from hvdtrain.system import agent_pipe
from hvdtrain.system.processes import end_with_parent
from hvdtrain.system.rank_info import RESUME, RUN_NAME
from hvdtrain.system.run_end import Failure

STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that end a series, as Ctrl-C does."""


POLL_S = 0.5
SWEEP = "runs/sweep"


class SeriesJob(NamedTuple):
    """One job of a series."""

    title: str
    command: Sequence[str]
    log: Path
    """File for its output, which stays if the job fails. Only one process at a time has its lock, and runs the job."""
    prepare: Callable[[], bool] = lambda: True
    """Called when no other process runs the job any more; whether the job is still to be run."""
    watch: Callable[[], None] = lambda: None
    """Called every POLL_S while the job runs."""
    excuse: Callable[[], str] = lambda: ""
    """Called when it has ended with an error: why that is none, such as that it was stopped on purpose; else empty."""


class JobSeries:
    """Runs each job in new processes, and prints the progress to standard error.

    environment: the jobs' variables. limit_s: how long a job may take; None for no limit. grace_s: how long a job that
    is stopped may take to end by itself; None for no limit.
    """

    def __init__(
        self, environment: Mapping[str, str], limit_s: float | None = None, grace_s: float | None = None
    ) -> None:
        # What asks a job to resume is for the series itself, which names the runs of its jobs.
        self._environment = {name: value for name, value in environment.items() if name not in (RUN_NAME, RESUME)}
        self._limit_s, self._grace_s = limit_s, grace_s
        self._process: subprocess.Popen[bytes] | None = None
        self.status = 0
        """Exit status of the job that has ended by itself last."""

    def run(self, jobs: Iterable[SeriesJob], count: int | None = None) -> Iterator[str]:
        """Run the jobs; yields after each why it failed, or an empty string.

        count: at most so many jobs, of which each is taken when the one before it has ended; None for a list of jobs.

        Ctrl-C, SIGTERM and SIGHUP end the job that runs before they end the series. If the series is killed, the kernel
        asks its job to stop.
        """
        for number in STOPS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as with nohup
                signal.signal(number, _exit)
        if count is None:
            jobs = list(jobs)
            count = len(jobs)
        began = time.monotonic()
        try:
            for done, job in enumerate(jobs):
                left_s = (time.monotonic() - began) / done * (count - done) if done else 0.0
                left = f"; {left_s // 60:.0f}:{left_s % 60:02.0f} min left" if left_s else ""
                print(f"[{done + 1}/{count}] {job.title}{left}", file=sys.stderr, flush=True)
                reason = self._run_job(job)
                if reason:
                    print(f"    failed: {reason}", file=sys.stderr, flush=True)
                yield reason
        finally:
            self._end_process()

    def _run_job(self, job: SeriesJob) -> str:
        """Run a job, unless another process has done so; why it failed, or an empty string."""
        with contextlib.closing(_locked(job.log)) as file:
            reason = self._run_alone(job, file) if job.prepare() else ""
            if reason and (excuse := job.excuse()):
                print(f"    {excuse}", file=sys.stderr, flush=True)
                reason = ""
            if not reason:
                job.log.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)  # the job has ended; what it left behind may have its output still
            return reason

    def _run_alone(self, job: SeriesJob, file: BinaryIO) -> str:
        """The same, while this process has the lock of the log file."""
        with contextlib.closing(agent_pipe.AgentPipe()) as said:
            self._process = subprocess.Popen(
                job.command,
                env={**self._environment, agent_pipe.VARIABLE: said.variable},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                pass_fds=(said.rank_end.fileno(),),
                preexec_fn=functools.partial(end_with_parent, signal.SIGTERM),
            )
            said.rank_end.close()
            try:
                self.status = self._wait(self._process, job.watch)
            except subprocess.TimeoutExpired:
                self._end_process()
                self.status = self._process.returncode
                return f"no end within {self._limit_s:g} s (its output is in {job.log})"
            failure = next((each for each in map(protocol.parse, said.receive()) if isinstance(each, Failure)), None)
            if failure:
                file.write(f"hvdtrain: {failure}\n".encode(errors="backslashreplace"))
        return "" if self.status == 0 else f"{failure or f'exit status {self.status}'} (its output is in {job.log})"

    def _wait(self, process: subprocess.Popen[bytes], watch: Callable[[], None]) -> int:
        """The job's exit status. Raises TimeoutExpired at the limit."""
        ends = time.monotonic() + (math.inf if self._limit_s is None else self._limit_s)
        while True:
            try:
                return process.wait(min(POLL_S, max(ends - time.monotonic(), 0.0)))
            except subprocess.TimeoutExpired:
                if time.monotonic() >= ends:
                    raise
                watch()

    def _end_process(self) -> None:
        """End the job that is running: first with SIGTERM, on which its launcher ends the ranks, then with SIGKILL."""
        if self._process is None or self._process.poll() is not None:
            return
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in STOPS}  # they may arrive repeatedly
        self._process.terminate()
        print("ending the running job; press Ctrl-C to end it at once", file=sys.stderr, flush=True)
        try:
            self._process.wait(self._grace_s)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _locked(log: Path) -> BinaryIO:
    """A job's log file, empty and with its lock, which the job inherits with its output: until the last process with
    that output ends, the lock is not free."""
    while True:
        file = open(log, "ab")  # noqa: SIM115  (the caller closes it)
        with contextlib.suppress(OSError):  # a shared folder may have no locks
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"    waiting: a process of this job still runs, with {log} open", file=sys.stderr, flush=True)
                fcntl.flock(file, fcntl.LOCK_EX)
        if log.exists() and os.path.samestat(os.fstat(file.fileno()), log.stat()):
            file.truncate(0)
            return file
        file.close()  # whoever had the lock has removed the file


def _exit(number: int, _: object) -> None:
    # SIGUSR1 asks for checkpoints, as before the time limit of a batch job, which then starts the series again.
    sys.exit(Stopped.exit_status if number == signal.SIGUSR1 else 128 + number)
