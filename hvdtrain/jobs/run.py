"""Runs a job: checks its hosts, then starts and supervises it, until it succeeds or another attempt would also fail.

hvdtrain's own programs resume from their newest checkpoint, in the same order of samples. Hosts that no longer respond
are left out where the job may have fewer ranks.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hvdtrain.errors import UserError
from hvdtrain.jobs import hosts
from hvdtrain.jobs.cause import signature
from hvdtrain.jobs.console import Console
from hvdtrain.jobs.event_loop import Signals, in_thread, interrupted_status
from hvdtrain.jobs.hosts import placed
from hvdtrain.jobs.job import Job, for_launchers, inherited, reduced
from hvdtrain.jobs.launchers import sent
from hvdtrain.jobs.memberships import pause_after
from hvdtrain.jobs.supervisor import Supervisor
from hvdtrain.system import rank_info, run_end
from hvdtrain.system.agent_pipe import OpenedRun
from hvdtrain.system.checkpoint_folder import Entry, entry_of
from hvdtrain.system.files import creating, unique_name, write_atomically
from hvdtrain.system.processes import STOP_SIGNALS, Result
from hvdtrain.system.run_end import Failure, RunEnd, last_step, newest_checkpoint

ON_END_LIMIT_S = 60.0
FILES_S = 20.0
"""How long a server of files may take for an answer."""


def run(job: Job, on_end: str = "") -> RunEnd:
    """Run a job to its end. Each failure is printed on standard error as soon as it happens.

    on_end: a command to run afterwards. Raises UserError if the job cannot start.
    """
    try:
        end, restarts = _run(job)
    except UserError as error:
        _notify(on_end, RunEnd.of_exception(error), None)
        raise
    _notify(on_end, restarts.recorded, restarts.folder)
    return end


def _run(job: Job) -> tuple[RunEnd, Restarts]:
    """How the job ended, and its attempts."""
    environment = {**for_launchers(os.environ), rank_info.JOB: secrets.token_hex(8)}
    hosts.check_hosts(hosts.other_hosts(job.hosts), sent(job), job.start_timeout_s)
    output_dir = job.output_dir and _own_folder(job.output_dir)
    console = Console(output_dir)
    if output_dir != job.output_dir:
        console.say(f"another job writes to --output-dir {job.output_dir}; this one writes to {output_dir}")
    if left_out := inherited(job, environment)[1]:
        console.say(f"variables that do not go to other hosts: {', '.join(left_out)}; pass one on with --env NAME")

    async def attempts() -> tuple[RunEnd, Restarts]:
        signals = Signals()

        def supervise(job: Job, opened: Callable[[OpenedRun], None]) -> Awaitable[RunEnd]:
            return Supervisor(job, environment, console, signals, opened).run()

        restarts = Restarts(job, supervise, console.say, signals)
        return await restarts.run(), restarts

    try:
        return asyncio.run(attempts())
    finally:
        Signals.ignore()
        console.flush()


def _notify(command: str, end: RunEnd, folder: Path | None) -> None:
    """Run the command of --on-end, if there is one, after the job has ended.

    What fails is printed, and changes nothing.
    """
    if not command:
        return
    for number in STOP_SIGNALS:  # a signal that is handled does not end this process, and may end the command's
        signal.signal(number, lambda *_: None)
    problem = run_end.run_on_end(command, end, folder, ON_END_LIMIT_S)
    if problem:
        with contextlib.suppress(OSError):
            print(f"hvdtrain: {problem}", file=sys.stderr, flush=True)


def _own_folder(folder: Path) -> Path:
    """Create a folder that no other job writes to while this process runs: this one, or a new one in it."""
    with creating(f"--output-dir {folder} cannot be created", folder, "give another folder"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # for the user only: output may hold anything
    try:
        file = os.open(folder / "rank-0.stdout", os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o666)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _own_folder(folder / unique_name("job"))
    except OSError:  # a file system without locks
        pass
    return folder


FILE = "attempts.json"
MAX_ATTEMPTS_WITHOUT_CHECKPOINT = 3
"""After this many in a row, the cause of the failure is not a temporary one."""


@dataclass
class Attempt:
    """One start of the job: the memberships of its ranks that begin at the same checkpoint."""

    checkpoint: Entry | None = None
    """The newest checkpoint when it began; None where there was none."""
    ranks: int = 0
    hosts: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.time)
    """Seconds since the epoch."""
    seconds: float = 0.0
    step: int | None = None
    """The last step that a rank is known to have completed; None where none is known."""
    end: RunEnd = field(default_factory=lambda: RunEnd("finished"))

    @property
    def ended(self) -> str:
        if self.end.failure:
            return self.end.failure.text.partition("\n")[0]
        return "stopped by request" if self.end.status == "stopped" else "well"

    def line(self) -> str:
        where = f" on {', '.join(self.hosts)}" if self.hosts else ""
        start = f"from the checkpoint of step {self.checkpoint.step}" if self.checkpoint else "from the beginning"
        end = "" if self.step is None else f" to step {self.step}"
        return f"{self.ranks} ranks{where}, {start}{end}, {self.seconds:.0f} s: {self.ended}"

    def record(self) -> dict[str, Any]:
        """Its form in attempts.json, where -1 says that there is no such step."""
        return {
            "checkpoint": self.checkpoint.step if self.checkpoint else -1,
            "ranks": self.ranks,
            "hosts": self.hosts,
            "began": self.began,
            "seconds": self.seconds,
            "step": -1 if self.step is None else self.step,
            "status": self.end.exit_status,
            "ended": self.ended,
        }


class Restarts:
    """The attempts of one job.

    supervise: runs one attempt, prints its failure, and calls `opened` with the run that rank 0 has opened. say: prints
    a message.
    """

    def __init__(
        self,
        job: Job,
        supervise: Callable[[Job, Callable[[OpenedRun], None]], Awaitable[RunEnd]],
        say: Callable[[object], None],
        signals: Signals,
    ) -> None:
        self._job, self._supervise, self._say = job, supervise, say
        self._signals = signals
        self._run: OpenedRun | None = None
        self._attempts: list[Attempt] = []
        self._folder_responds = True

    async def run(self) -> RunEnd:
        """How the last attempt ended."""
        end = await self._run_attempts()
        self.recorded = end
        """The same, as the run's folder says it: of a hang, the ranks know more."""
        failure = self._attempts[-1].end.failure
        if failure:
            self.recorded = await self._in_folder(self._record, end) or end
        if failure and (len(self._attempts) > 1 or (failure.resumable and not failure.at_start)):
            where = await self._in_folder(run_end.progress, self.folder, self._attempts[0].began)
            if where:
                self._say(where)
        return end

    @property
    def folder(self) -> Path | None:
        """The folder of the run, relative to this one where it is below; None where no rank has said one."""
        if not self._run:
            return None
        relative = os.path.relpath(self._run.folder)
        return Path(self._run.folder if relative.startswith("..") else relative)

    @property
    def _resumed_folder(self) -> Path | None:
        """The folder, if the next attempt resumes from it."""
        return self.folder if self._run and self._run.resumable else None

    async def _in_folder(self, function: Callable[..., Result], *arguments: Any) -> Result | None:
        """What a function returns that uses the run's folder; None where that does not respond, or fails."""
        if self._folder_responds:
            try:
                return await asyncio.wait_for(in_thread(function, *arguments), FILES_S)
            except asyncio.TimeoutError:
                self._folder_responds = False
                self._say(f"{self.folder} does not respond; its records of this job are incomplete")
            except OSError as error:
                self._say(f"{self.folder} cannot be used ({error.strerror}); its records of this job are incomplete")
        return None

    def _opened(self, run: OpenedRun) -> None:
        self._run = run

    async def _run_attempts(self) -> RunEnd:
        while True:
            self._attempts.append(Attempt(await self._in_folder(newest_checkpoint, self._resumed_folder)))
            end = self._attempts[-1].end = await self._run_attempt(self._attempts[-1])
            failures = await self._in_folder(self._close, self._attempts[-1]) or 1
            if not end.failure or not self._job.restarts or end.status == "stopped":
                return end
            why = self._reason_to_give_up(end, end.failure, failures)
            if not why:
                number = await self._pause(end, failures)
                if not number:
                    continue
                why = "it was asked to end between two attempts"
                end = RunEnd("stopped", interrupted_status(number), end.failure)
            if len(self._attempts) > 1 or end.status == "stopped":
                lines = [f"  {number}: {attempt.line()}" for number, attempt in enumerate(self._attempts, 1)]
                self._say("\n".join([f"gave up, as {why}; the attempts:", *lines]))
            return end

    async def _run_attempt(self, attempt: Attempt) -> RunEnd:
        try:
            job = await self._current_job()
            attempt.ranks, attempt.hosts = job.ranks, [host.name for host in placed(job.ranks, job.hosts)]
            return await self._supervise(job, self._opened)
        except UserError as error:
            failure = replace(Failure.of_exception(error), at_start=True)
            self._say(failure)
            return RunEnd("failed", error.exit_status, failure)

    async def _current_job(self) -> Job:
        """The job of this attempt: the first one is the job that was asked for.

        Raises UserError if the hosts are not sufficient now, or the run's folder, which existed, is missing.
        """
        if len(self._attempts) == 1:
            return self._job
        folder = self._resumed_folder
        trained = any(attempt.step is not None or attempt.checkpoint for attempt in self._attempts)
        if folder and trained and await self._in_folder(os.path.isdir, folder) is False:
            raise UserError(f"{folder} is missing, so that training would start from the beginning", "restore it")
        return reduced(self._job, await self._checked, self._say)

    def _close(self, attempt: Attempt) -> int:
        """Complete the record of an attempt, and write it to the run's folder.

        Returns how many attempts, up to this one, have begun since the newest checkpoint was written.
        """
        attempt.seconds, folder = time.time() - attempt.began, self._resumed_folder
        if not self._job.restarts or not folder:
            return len(self._attempts)
        if self._run and self._run.checkpoint and len(self._attempts) == 1:
            attempt.checkpoint = entry_of(folder / "checkpoints" / os.path.basename(self._run.checkpoint))
        attempt.step = last_step(folder, attempt.began)
        if os.path.isdir(folder):
            text = json.dumps([made.record() for made in self._attempts], indent=1)
            with contextlib.suppress(OSError):  # a full disk does not keep a job from being restarted
                write_atomically(folder / FILE, text + "\n")
        newest = newest_checkpoint(folder) if attempt.end.failure else None
        return max(sum(made.checkpoint == newest for made in self._attempts), 1)

    def _reason_to_give_up(self, end: RunEnd, failure: Failure, failures: int) -> str:
        """Why the job is not restarted; empty if it is. failures: attempts without a newer checkpoint."""
        number = len(self._attempts)
        if end.exit_status == UserError.exit_status and (not failure.at_start or number == 1):
            return "an option or a file is invalid"
        if failure.retry is False and not failure.at_start:
            return "options and data decide this failure, so that each restart would end in the same way"
        if number > self._job.restarts:
            return f"--restarts {self._job.restarts} are used up"
        last = {(made.checkpoint, signature(made.end.failure or failure)) for made in self._attempts[-2:]}
        if signature(failure) and number > 1 and len(last) == 1:
            return "the same rank failed twice in the same way, from the same checkpoint"
        # Hosts that do not respond may come back: only the pauses grow for them, up to --restarts.
        if self._resumed_folder and not failure.at_start and failures >= MAX_ATTEMPTS_WITHOUT_CHECKPOINT:
            return f"{MAX_ATTEMPTS_WITHOUT_CHECKPOINT} attempts in a row wrote no newer checkpoint"
        return ""

    def _record(self, end: RunEnd) -> RunEnd:
        """Write into the run's folder how the last attempt ended, and return it.

        The launcher knows which rank was the first to fail; but of a hang, the ranks themselves know more.
        """
        folder = self.folder
        if not folder:
            return end
        hang = run_end.recorded_hang(folder, self._attempts[-1].began)
        if hang:
            end = replace(hang, status="restarting" if end.status == "restarting" else "hung")
        end.write(folder)
        return end

    async def _pause(self, end: RunEnd, failures: int) -> int:
        """Wait before the next attempt, and find out which hosts respond.

        Returns the signal that asked for the end of the job meanwhile, or 0.
        """
        pause_s = pause_after(failures)
        await self._in_folder(self._record, replace(end, status="restarting"))
        self._say(f"restarting in {pause_s:.0f} s ({len(self._attempts)} of {self._job.restarts})")
        number = await self._signals.within(pause_s)
        if not number:
            self._checked = in_thread(hosts.inspect, hosts.other_hosts(self._job.hosts), sent(self._job))
            number = await self._signals.during(self._checked)
        return number
