"""How a job ends: well, by the failure that came first among those of its ranks, or as it was asked to."""

from __future__ import annotations

import asyncio
import os
import signal

from hvdtrain.errors import INTERRUPTED, Stopped, UserError
from hvdtrain.jobs.agent import GRACE_S
from hvdtrain.jobs.agents import RankConnection
from hvdtrain.jobs.cause import first_cause, lost_peer, may_follow
from hvdtrain.jobs.console import Console
from hvdtrain.jobs.event_loop import call_after, interrupted_status
from hvdtrain.jobs.protocol import Signal
from hvdtrain.system.processes import shell_status, signal_name
from hvdtrain.system.rank_info import RESUME
from hvdtrain.system.run_end import Failure, RunEnd

STOP_S = 60.0
"""How long a job that was asked to stop may take for its last checkpoint."""
FIRST_CAUSE_S = 3.0
"""How long a rank that lost a peer waits for the peer's own error, before it counts as the cause of the failure."""


class JobEnd:
    """The end of one job, whose failure is printed once on the console, as soon as its cause is known."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.ranks: dict[int, RankConnection] = {}
        self.running = False
        """Whether all ranks have registered."""
        self.requested: set[int] = set()
        self.ranks_asked = False
        """Whether the launcher, such as srun, has signaled a rank."""
        self.stops = False
        """Whether its ranks have been given STOP_S seconds to end."""
        self.failure: tuple[Failure, int] | None = None
        """The first failure, and the exit status of the job that it decides."""
        self.over = asyncio.Event()
        self.limits: list[asyncio.Task[None]] = []
        self._stop_reported = False
        self._failures: list[Failure] = []
        """Ranks that failed, in the order in which they were noticed."""
        self._waiting_for_cause = False

    def result(self) -> RunEnd:
        """A signal that asked the job to stop makes of a failure a stop: it is not started again."""
        stopped = [rank.failure for rank in self.ranks.values() if self.has_stopped(rank)]
        # By the file STOP: after 75, a batch script would queue the job again.
        for_good = any(said and said.retry is False for said in stopped) and os.environ.get(RESUME) == "requeue"
        status = INTERRUPTED if for_good else Stopped.exit_status if stopped else 0
        failure, exit_status = self.failure or (None, status)
        if self.requested or (stopped and not failure):
            return RunEnd("stopped", exit_status, failure)
        return RunEnd("failed" if failure else "finished", exit_status, failure)

    def has_stopped(self, rank: RankConnection) -> bool:
        """Whether a rank has ended as it was asked to: one that ends with that status by itself has failed."""
        if rank.failure and rank.failure.stopped:  # whatever the script around training has done then
            return rank.ended is not None
        return rank.ended == Stopped.exit_status and bool(self.requested or self.ranks_asked or rank.failure)

    def on_stopped(self, rank: RankConnection) -> None:
        """A rank has ended as it was asked to: the others are to do so as well."""
        if rank.failure and not self._stop_reported:
            self._stop_reported = True
            self._console.say(rank.failure)
        self._start_stop_deadline()

    def on_rank_failure(self, failure: Failure) -> None:
        """Report it at once, or a moment later if another rank may be the cause."""
        self._failures.append(failure)
        if not may_follow(failure):
            self._decide()
        elif not self._waiting_for_cause:
            self._waiting_for_cause = True
            asyncio.get_running_loop().call_later(FIRST_CAUSE_S, self._decide)

    def _others_run(self) -> bool:
        return any(rank.status is None and not rank.disconnected for rank in self.ranks.values())

    def decide_if_all_ended(self) -> None:
        if self._failures and not self._others_run():
            self._decide()

    def _decide(self) -> None:
        failure = first_cause(self._failures)
        if lost_peer(failure) and any(map(self.has_stopped, self.ranks.values())):
            return  # the ranks have stopped after a checkpoint, and this one was still connected to one of them
        # A batch script queues a job that ended with 75 again.
        status = 1 if failure.status in (None, Stopped.exit_status) else shell_status(failure.status)
        if asked := self.asked(failure):
            self.fail(Failure(f"ended by {signal_name(asked)}"), interrupted_status(asked))
        else:
            self.fail(failure, status, ends_others=self._others_run())

    def asked(self, failure: Failure) -> int:
        """The signal that asked the job to stop, where a rank has ended by it; else 0."""
        return next((number for number in self.requested if failure.status in (-number, 128 + number)), 0)

    def fail_at_start(self, reason: str, remedy: str) -> None:
        self.fail(Failure(reason, remedy, at_start=True), UserError.exit_status)

    def fail(self, failure: Failure, status: int, ends_others: bool = False) -> None:
        """End the job with this status. Only the first failure counts."""
        if self.failure:
            return
        self.failure = failure, status
        self._console.say(failure.message(ends_others))
        for rank in self.ranks.values():
            rank.end()
        asyncio.get_running_loop().call_later(0 if not self.running else GRACE_S + 0.5, self.over.set)

    def end_by_request(self, number: int) -> None:
        """End the job at once, as it is asked to by a signal."""
        self.requested.add(number)
        self.fail(Failure(f"ended by {signal_name(number)}"), interrupted_status(number))

    def request_stop(self, number: int) -> None:
        self.requested.add(number)
        for rank in self.ranks.values():
            rank.send(Signal(number))
        if number != signal.SIGUSR1:
            self._start_stop_deadline()

    def _start_stop_deadline(self) -> None:
        """From now on the ranks have STOP_S seconds to end."""
        if not self.stops:
            self.stops = True
            self.limits.append(call_after(STOP_S, self._on_stop_deadline))

    def _on_stop_deadline(self) -> None:
        running = ", ".join(rank.name for rank in self.ranks.values() if not rank.disconnected)
        reason = f"{running} did not end within {STOP_S:.0f} s after a request to stop, or after the others ended"
        self.fail(Failure(reason), 128 + signal.SIGKILL)
