"""Restarts a job after a failure, until it succeeds or another attempt would fail, too.

hvdtrain's own programs resume from their newest checkpoint, in the same order of samples. Hosts that no longer respond
are left out where the job may have fewer ranks. Horovod's elastic mode does this inside the processes, for two
frameworks; this does it with new processes, so that all strategies and frameworks can use it unchanged.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from hvdtrain.errors import Stopped, UserError
from hvdtrain.jobs import attempts, hosts
from hvdtrain.jobs.attempts import Attempt, newest_checkpoint
from hvdtrain.jobs.job import Job, RestartPolicy, placed
from hvdtrain.jobs.program import run_folder
from hvdtrain.jobs.result import Failure, JobResult, interrupted_status
from hvdtrain.jobs.signals import Signals
from hvdtrain.system.run_end import RunEnd

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Before the next attempt; doubled after each attempt without a newer checkpoint."""
MAX_ATTEMPTS_WITHOUT_CHECKPOINT = 3
"""After this many in a row, the cause of the failure is not a temporary one."""


class Restarts:
    """The attempts of one job.

    supervise: runs one attempt, and prints its failure. say: prints a message. job_id: what ranks get as HVDTRAIN_JOB.
    """

    def __init__(
        self,
        job: Job,
        policy: RestartPolicy,
        supervise: Callable[[Job], Awaitable[JobResult]],
        say: Callable[[object], None],
        signals: Signals,
        job_id: str,
    ) -> None:
        self._job, self._policy, self._supervise, self._say = job, policy, supervise, say
        self._signals, self._job_id = signals, job_id
        self._folder = run_folder(job.program)
        self._attempts: list[Attempt] = []
        self._began = time.monotonic()

    async def run(self) -> JobResult:
        """The result of the last attempt; with the failure of the whole job where several attempts failed."""
        result = await self._run_attempts()
        if result.failure:
            self._record(result.end)
        if result.failure and not result.failure.at_start and "--resume" not in str(result.failure):
            where = attempts.progress(self._folder_of_job(), self._attempts[0].began)
            if where:
                self._say(where)
        return result

    async def _run_attempts(self) -> JobResult:
        while True:
            attempt = Attempt(newest_checkpoint(self._folder))
            self._attempts.append(attempt)
            result = await self._run_attempt(attempt)
            self._close(attempt, result)
            failure = result.failure
            if not failure or not self._policy.limit or result.asked_to_stop:
                return result
            why = self._reason_to_give_up(result, failure)
            if why:
                return result if len(self._attempts) == 1 else self._given_up(why, result)
            number = await self._pause(result)
            if number:
                ended = JobResult(interrupted_status(number), failure, asked_to_stop=True)
                return self._given_up("it was asked to end between two attempts", ended)

    async def _run_attempt(self, attempt: Attempt) -> JobResult:
        try:
            job = self._current_job()
            attempt.ranks, attempt.hosts = job.ranks, [host.name for host in placed(job.ranks, job.hosts)]
            return await self._supervise(job)
        except UserError as error:
            failure = Failure.of_error(error)
            self._say(failure)
            return JobResult(error.exit_status, failure)

    def _current_job(self) -> Job:
        """The job of this attempt: the first one is the job that was asked for.

        Raises UserError if the hosts are not sufficient now, or the run's folder, which existed, is missing.
        """
        if len(self._attempts) == 1:
            return self._job
        if self._folder and any(one.trained for one in self._attempts) and not os.path.isdir(self._folder):
            raise UserError(f"{self._folder} is missing, so that training would start from the beginning", "restore it")
        job = reduced(self._job, self._policy.min_ranks or self._job.ranks, self._say)
        return dataclasses.replace(job, time_limit_s=self._time_left())

    def _time_left(self) -> float | None:
        limit = self._job.time_limit_s
        return max(limit - (time.monotonic() - self._began), 0.1) if limit else None

    def _close(self, attempt: Attempt, result: JobResult) -> None:
        """Complete the record of an attempt, and write it to the run's folder."""
        attempt.seconds, attempt.status = time.time() - attempt.began, result.status
        if result.failure:
            attempt.ended, attempt.signature = result.failure.line, result.failure.signature
        else:
            attempt.ended = "stopped by request" if result.status == Stopped.exit_status else "well"
        if self._policy.limit:
            attempt.step = attempts.last_step(self._folder, attempt.began)
            attempts.write(self._attempts, self._folder)

    def _reason_to_give_up(self, result: JobResult, failure: Failure) -> str:
        """Why there is no further attempt; empty where there is one."""
        number = len(self._attempts)
        if result.status == UserError.exit_status and (not failure.at_start or number == 1):
            return "an option or a file is invalid"
        if not failure.retry:
            return "options and data decide this failure, so that each restart would end in the same way"
        if number > self._policy.limit:
            return f"--restarts {self._policy.limit} are used up"
        if self._is_repeated(failure):
            return "the same rank failed twice in the same way, from the same checkpoint"
        # Hosts that do not respond may come back: only the pauses grow for them, up to --restarts.
        if self._folder and not failure.at_start and self._without_progress() >= MAX_ATTEMPTS_WITHOUT_CHECKPOINT:
            return f"{MAX_ATTEMPTS_WITHOUT_CHECKPOINT} attempts in a row wrote no newer checkpoint"
        return ""

    def _is_repeated(self, failure: Failure) -> bool:
        """Whether the attempt before failed in the same way, without a newer checkpoint since."""
        *_, before, last = [None, *self._attempts]
        if not before or not failure.signature:
            return False
        return (before.signature, before.checkpoint) == (failure.signature, last.checkpoint)

    def _without_progress(self) -> int:
        """How many attempts, up to the last one, have begun since the newest checkpoint was written."""
        newest = newest_checkpoint(self._folder)
        return max(sum(one.checkpoint == newest for one in self._attempts), 1) if self._folder else len(self._attempts)

    def _folder_of_job(self) -> Path | None:
        return attempts.folder_of_job(self._job.program, self._job_id)

    def _record(self, end: RunEnd) -> None:
        """Write into the run's folder how the last attempt ended.

        The launcher knows which rank was the first to fail; but of a hang, the ranks themselves know more.
        """
        folder = self._folder_of_job()
        if not folder:
            return
        hang = attempts.recorded_hang(folder, self._attempts[-1].began)
        if hang:
            end = hang._replace(status="restarting" if end.status == "restarting" else "hung")
        end.write(folder)

    async def _pause(self, result: JobResult) -> int:
        """Wait before the next attempt; the signal that asked for the end of the job meanwhile, or 0."""
        pause_s = min(FIRST_PAUSE_S * 2 ** (self._without_progress() - 1), LONGEST_PAUSE_S)
        number = f"{len(self._attempts)} of {self._policy.limit}"
        self._record(result.end._replace(status="restarting"))
        self._say(f"restarting in {pause_s:.0f} s ({number})")
        return await signal_within(self._signals, pause_s)

    def _given_up(self, why: str, last: JobResult) -> JobResult:
        """The failure of the whole job, with a line for each attempt."""
        lines = [f"  {number}: {attempt.line()}" for number, attempt in enumerate(self._attempts, 1)]
        failure = Failure("\n".join([f"gave up, as {why}; the attempts:", *lines]))
        self._say(failure)
        return dataclasses.replace(last, failure=failure, cause=last.failure)


async def signal_within(signals: Signals, seconds: float) -> int:
    """The signal that asked for the end of the job within that time; 0 where there was none."""
    received: asyncio.Queue[int] = asyncio.Queue()
    with signals.handled_by(lambda number, _: received.put_nowait(number)):
        try:
            return await asyncio.wait_for(received.get(), seconds)
        except asyncio.TimeoutError:
            return 0


def reduced(job: Job, min_ranks: int, say: Callable[[object], None]) -> Job:
    """The job on those of its hosts that respond, with fewer ranks where they have too few slots.

    Raises UserError if there are slots for fewer than `min_ranks` ranks.
    """
    if not job.hosts:
        return job
    checked = hosts.inspect(hosts.other_hosts(job.hosts), job.ssh)
    unusable = {one.host: one.problem for one in checked if one.problem}
    left = tuple(host for host in job.hosts if host.name not in unusable)
    slots = sum(host.slots for host in left)
    ranks = min(job.ranks, job.ranks if job.oversubscribe and left else slots)
    if ranks < min_ranks:
        listed = "; ".join(f"{name}: {problem}" for name, problem in unusable.items())
        raise UserError(
            f"{slots} slot(s) are left for {min_ranks} ranks ({listed})", "fix the hosts, or give a lower --min-np"
        )
    for name, problem in unusable.items():
        say(f"continuing without {name}: {problem}")
    return dataclasses.replace(job, hosts=left, ranks=ranks)
