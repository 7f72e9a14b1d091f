"""Starts a job again after a failure, until it ends well or there is no hope.

hvdtrain's own programs go on from their newest checkpoint, in the same order of samples. Hosts that no longer answer
are left out where the job may have fewer ranks. Strategies and frameworks know nothing of it: what Horovod's elastic
jobs do for two frameworks inside of a process, this does for all of them by starting the processes anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hvdtrain.errors import HvdtrainError, Stopped, UserError
from hvdtrain.launch import hosts
from hvdtrain.launch.agent import SIGNALS
from hvdtrain.launch.job import Job, placed
from hvdtrain.launch.program import run_folder
from hvdtrain.launch.supervisor import JobFailed, Supervisor, ended_early

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Before the job is started again; doubled each time that it came no further."""
HOPELESS = 3
"""So many attempts in a row without a newer checkpoint fail for a reason that does not go away."""


@dataclass
class Attempt:
    """One start of the job."""

    checkpoint: int
    """Step of the newest checkpoint when it began; -1 where there was none."""
    ranks: int = 0
    hosts: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.time)
    """Seconds since the epoch."""
    seconds: float = 0.0
    step: int = -1
    """The last step that a rank is known to have made; -1 where none is known."""
    status: int = 0
    ended: str = ""

    def line(self) -> str:
        where = f" on {', '.join(self.hosts)}" if self.hosts else ""
        start = f"from the checkpoint of step {self.checkpoint}" if self.checkpoint >= 0 else "from the beginning"
        end = f" to step {self.step}" if self.step >= 0 else ""
        return f"{self.ranks} ranks{where}, {start}{end}, {self.seconds:.0f} s: {self.ended}"


class Restarts:
    """Of one job. limit: how often it is started again; least: the number of ranks below which it is not worth it."""

    def __init__(self, job: Job, limit: int, least: int, supervise: Callable[[Job], Supervisor]) -> None:
        self._job, self._limit, self._least, self._supervise = job, limit, least, supervise
        self._folder = run_folder(job.program)
        self._attempts: list[Attempt] = []
        self._began = time.monotonic()

    async def run(self) -> int:
        """The job's exit status. Raises HvdtrainError where it did not end well."""
        while True:
            attempt = Attempt(newest_checkpoint(self._folder))
            self._attempts.append(attempt)
            supervisor: Supervisor | None = None
            try:
                job = self._placed()
                attempt.ranks, attempt.hosts = job.ranks, [host.name for host in placed(job.ranks, job.hosts)]
                supervisor = self._supervise(job)
                attempt.status = await supervisor.run()
                self._close(attempt, "stopped by request" if attempt.status == Stopped.exit_status else "well")
                return attempt.status
            except HvdtrainError as error:
                attempt.status = error.exit_status
                self._close(attempt, first_line(error))
                if not self._limit or (supervisor and supervisor.told_to_end):
                    raise
                await self._pause(error)

    def _placed(self) -> Job:
        """The job as it is started now: the first time as it was asked for.

        Raises UserError where the hosts do not allow it now, or the folder of the run, that was there, is gone.
        """
        if len(self._attempts) == 1:
            return self._job
        trained = any(max(one.step, one.checkpoint) >= 0 for one in self._attempts)
        if self._folder and trained and not os.path.isdir(self._folder):
            raise UserError(f"{self._folder} is gone, so training would begin anew: bring it back")
        return dataclasses.replace(where_it_can(self._job, self._least), time_limit_s=self._time_left())

    def _time_left(self) -> float | None:
        limit = self._job.time_limit_s
        return max(limit - (time.monotonic() - self._began), 0.1) if limit else None

    def _close(self, attempt: Attempt, ended: str) -> None:
        """Complete the record, and leave it in the run's folder."""
        attempt.seconds, attempt.ended = time.time() - attempt.began, ended
        if not self._limit:
            return
        attempt.step = last_step(self._folder, attempt.began)
        if self._folder and os.path.isdir(self._folder):
            text = json.dumps([dataclasses.asdict(one) for one in self._attempts], indent=1)
            with contextlib.suppress(OSError):  # a full disk does not keep a job from going on elsewhere
                (self._folder / "attempts.json").write_text(text + "\n")

    async def _pause(self, error: HvdtrainError) -> None:
        """Wait a little before the next attempt. Raises where another one makes no sense."""
        number, why = len(self._attempts), self._hopeless(error)
        if why and number == 1:
            raise error
        if why:
            raise JobFailed(self._summary(why), error.exit_status) from None
        pause_s = min(FIRST_PAUSE_S * 2 ** (self._in_vain() - 1), LONGEST_PAUSE_S)
        if not isinstance(error, JobFailed):
            print(f"hvdtrain: {error}", file=sys.stderr)
        print(f"hvdtrain: starting again in {pause_s:.0f} s ({number} of {self._limit})", file=sys.stderr, flush=True)
        heard = await heard_within(pause_s)
        if heard:
            raise ended_early(heard, f"asked to end between two attempts\n{self._summary('told to')}")

    def _hopeless(self, error: HvdtrainError) -> str:
        """Why there is no further attempt; empty where there is one."""
        if error.exit_status == UserError.exit_status and (isinstance(error, JobFailed) or len(self._attempts) == 1):
            return "an option or a file is at fault"
        if len(self._attempts) > self._limit:
            return f"--restarts {self._limit} are used up"
        # Hosts that do not answer may come back: for them the pauses grow, as often as was asked for.
        if self._folder and isinstance(error, JobFailed) and self._in_vain() >= HOPELESS:
            return f"{HOPELESS} attempts in a row brought no newer checkpoint"
        return ""

    def _in_vain(self) -> int:
        """Attempts in a row, up to the last one, since the newest checkpoint."""
        newest = newest_checkpoint(self._folder)
        return max(sum(one.checkpoint == newest for one in self._attempts), 1) if self._folder else len(self._attempts)

    def _summary(self, why: str) -> str:
        lines = [f"  {number}: {one.line()}" for number, one in enumerate(self._attempts, 1)]
        return "\n".join([f"gave up, as {why}; the attempts:", *lines])


async def heard_within(seconds: float) -> int:
    """The signal that asked for the end within that time; 0 where none did."""
    loop = asyncio.get_running_loop()
    heard: asyncio.Queue[int] = asyncio.Queue()
    for one in SIGNALS:
        loop.add_signal_handler(one, heard.put_nowait, one)
    try:
        return await asyncio.wait_for(heard.get(), seconds)
    except asyncio.TimeoutError:
        return 0


def where_it_can(job: Job, least: int) -> Job:
    """The job on those of its hosts that answer, with fewer ranks where they have not slots enough.

    Raises UserError where fewer than `least` ranks find a place.
    """
    if not job.hosts:
        return job
    silent = {one.host: one.problem for one in hosts.ask(hosts.elsewhere(job.hosts)) if one.problem}
    left = tuple(host for host in job.hosts if host.name not in silent)
    slots = sum(host.slots for host in left)
    ranks = min(job.ranks, job.ranks if job.oversubscribe and left else slots)
    if ranks < least:
        gone = "; ".join(f"{name}: {problem}" for name, problem in silent.items())
        raise UserError(
            f"{slots} slot(s) are left for {least} ranks ({gone}); mend the hosts, or give a lower --min-np"
        )
    for name, problem in silent.items():
        print(f"hvdtrain: going on without {name}: {problem}", file=sys.stderr)
    return dataclasses.replace(job, hosts=left, ranks=ranks)


def found(folder: Path | None, pattern: str) -> list[Path]:
    """What there is in a run's folder; nothing where there is, or can be, no such folder."""
    return list(folder.glob(pattern)) if folder and os.path.isdir(folder) else []


def newest_checkpoint(folder: Path | None) -> int:
    """Step of the newest one in a run's folder, by its name; -1 where there is none."""
    names = [path.name for path in found(folder, "checkpoints/step-*")]
    return max((int(name[5:]) for name in names if name[5:].isdecimal()), default=-1)


def last_step(folder: Path | None, since: float) -> int:
    """The last step that a rank told of since then (seconds since the epoch); -1 where none did."""
    steps = [-1]
    for path in found(folder, "heartbeats/rank-*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            beat = json.loads(path.read_text())
            steps += [int(beat["step"])] if beat["time"] >= since else []
    return max(steps)


def first_line(error: HvdtrainError) -> str:
    return str(error).partition("\n")[0]
