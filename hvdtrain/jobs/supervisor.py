"""Starts a job and supervises it to its end, in the same way with every launcher.

Each rank's agent (see `agent.py`) connects to the supervisor. When all ranks have registered and run the same versions,
they receive the address of rank 0 and start. From then on the ranks' output comes here and signals go to the ranks. The
first rank that fails ends the job: its host, how it ended and its last lines are reported at once, and its exit status
is the job's.
"""

from __future__ import annotations

import asyncio
import signal
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from hvdtrain.errors import Stopped, UserError
from hvdtrain.jobs import protocol
from hvdtrain.jobs.agent import GRACE_S
from hvdtrain.jobs.agent_server import AgentServer, listening
from hvdtrain.jobs.background import call_after
from hvdtrain.jobs.cause import first_cause, lost_peer, may_follow
from hvdtrain.jobs.console import Console
from hvdtrain.jobs.job import Job, LaunchSpec
from hvdtrain.jobs.job_processes import LEAVE_S, JobProcesses, LauncherProcess
from hvdtrain.jobs.protocol import Message
from hvdtrain.jobs.rank_connection import RankConnection, conflict_of, received
from hvdtrain.jobs.signals import Signals, interrupted_status
from hvdtrain.system import agent_pipe, rank_info
from hvdtrain.system.agent_pipe import OpenedRun, Said
from hvdtrain.system.processes import describe_status, shell_status, signal_name
from hvdtrain.system.run_end import Failure, RunEnd

STOP_S = 60.0
"""How long a job that was asked to stop may take for its last checkpoint."""
FIRST_CAUSE_S = 3.0
"""How long a rank that lost a peer waits for the peer's own error, before it counts as the cause of the failure."""


class Supervisor:
    """Supervises one job. specs: one for all ranks, or, with the launcher `local`, one for each rank.

    opened: called when rank 0 says which run it has opened. The job's failure is printed once on the console, as soon
    as its cause is known.
    """

    def __init__(
        self,
        launcher: str,
        job: Job,
        specs: list[LaunchSpec],
        environment: Mapping[str, str],
        console: Console,
        signals: Signals,
        opened: Callable[[OpenedRun], None],
    ) -> None:
        self._opened = opened
        self._launcher, self._job, self._specs = launcher, job, specs
        self._console, self._signals = console, signals
        # After a failure launchers say in many lines what the report has said in one.
        hidden = lambda: self._failure is not None  # noqa: E731
        self._processes = JobProcesses(launcher, job, environment, console, hidden, self._on_process_end)
        self._ranks: dict[int, RankConnection] = {}
        self._running = False
        self._requested: set[int] = set()
        """Signals that asked the job to stop."""
        self._ranks_asked = False
        """Whether the launcher, such as srun, has signaled a rank."""
        self._stop_reported = False
        self._failures: list[Failure] = []
        """Ranks that failed, in the order in which they were noticed."""
        self._waiting_for_cause = False
        self._failure: tuple[Failure, int] | None = None
        """The first failure, and the exit status of the job that it decides."""
        self._over = asyncio.Event()
        self._limits: list[asyncio.Task[None]] = []
        self._stops = False
        """Whether its ranks have been given STOP_S seconds to end."""

    async def run(self) -> RunEnd:
        """Run the job to its end. Raises UserError if it cannot be started at all."""
        self._listening, addresses = listening(self._launcher, self._job)
        asyncio.get_running_loop().set_exception_handler(self._on_error)
        server = AgentServer(self._listening, self._processes.token, self._job.ranks, self._serve)
        address = f"{','.join(addresses)}:{server.port}"
        with self._signals.handled_by(self._on_signal):
            try:
                await self._start_processes(address)
                await self._over.wait()
            finally:
                have_status = all(rank.status is not None for rank in self._ranks.values())
                await self._processes.end(by_itself=self._ended() and have_status)
                server.close()
                for limit in self._limits:
                    limit.cancel()
        return self._end()

    async def _start_processes(self, address: str) -> None:
        """Start what the job begins with. address: this supervisor's, as agents look for it."""
        await self._processes.start(self._specs, address)

    def _end(self) -> RunEnd:
        """A signal that asked the job to stop makes of a failure a stop: it is not started again."""
        stopped = any(map(self._has_stopped, self._ranks.values()))
        failure, exit_status = self._failure or (None, Stopped.exit_status if stopped else 0)
        if self._requested or exit_status == Stopped.exit_status:
            return RunEnd("stopped", exit_status, failure)
        return RunEnd("failed" if failure else "finished", exit_status, failure)

    # Starting.

    def _on_process_end(self, process: LauncherProcess, status: int) -> None:
        """A launcher, or the agent of one rank, has ended."""
        if self._failure or self._ended() or process.rank in self._ranks:  # its connection says how a rank ended
            return
        asyncio.get_running_loop().call_later(LEAVE_S, self._on_launcher_end, process, status)

    def _on_launcher_end(self, process: LauncherProcess, status: int) -> None:
        """It has ended before its ranks did."""
        if self._ended():
            return
        missing = self._missing()
        when = f"before rank {missing} registered" if missing else "before its ranks did"
        printed = f"; it printed: {' | '.join(process.last_lines)}" if process.last_lines else ""
        self._fail(Failure(f"{process.name} {describe_status(status)} {when}{printed}"), shell_status(status) or 1)

    # The ranks' agents.

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One agent, from its first message to its end."""
        rank: RankConnection | None = None
        async for message, size in received(reader):
            if rank:
                rank.on_output(message, size)
                self._on_message(rank, message)
            else:
                protocol.keep_alive(writer.get_extra_info("socket"), protocol.notice_s(bool(self._job.survival)))
                rank = RankConnection(message, writer, self._console)
                self._register_rank(rank)
        if rank:
            # A process that ends, or is killed, has its host close or reset the connection.
            rank.host_answers = isinstance(reader.exception(), ConnectionError | None)
            self._on_disconnect(rank)

    def _on_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A handler failed, and may have missed the end of a rank: the job ends, instead of waiting for it."""
        error = context.get("exception")
        if error:
            self._console.say("".join(traceback.format_exception(error)).rstrip())
            self._fail(Failure(f"the launcher failed: {type(error).__name__}: {error}", "please report it"), 1)
            self._over.set()

    def _register_rank(self, rank: RankConnection) -> None:
        expected, size = self._job.ranks, rank.hello["size"]
        if size != expected or rank.number in self._ranks:
            started = f"rank {rank.number} of {size} on {rank.host}"
            reason = f"{self._launcher} started {started}, but {expected} ranks were requested"
            remedy = "check with python -m hvdtrain doctor whether it belongs to another MPI than Horovod's"
            self._fail_at_start(reason, remedy)
            rank.end()
            return
        self._admit(rank)

    def _admit(self, rank: RankConnection) -> None:
        """It is one of the ranks with which the job begins."""
        self._ranks[rank.number] = rank
        if len(self._ranks) == 1:
            self._limits.append(call_after(self._job.start_timeout_s, self._on_start_timeout))
        if self._failure:
            rank.end()
        elif len(self._ranks) == self._job.ranks:
            self._begin()

    def _missing(self) -> str:
        """Ranks that have not registered."""
        return ", ".join(str(rank) for rank in range(self._job.ranks) if rank not in self._ranks)

    def _on_start_timeout(self) -> None:
        if self._missing() and not self._running:  # in a job that survives, a rank may be missing later
            self._fail_at_start(
                f"rank {self._missing()} did not register within {self._job.start_timeout_s:g} s after the first rank",
                "check that its host reaches this one (--interface), or give a longer --start-timeout",
            )

    def _begin(self) -> None:
        """All ranks have registered: start them if they fit together."""
        conflict = conflict_of(self._ranks)
        if conflict:
            self._fail(conflict, UserError.exit_status)
            return
        self._processes.all_registered()
        for _, rank in sorted(self._ranks.items()):
            rank.send(**self._environment_of(rank))
        self._running = True

    def _environment_of(self, rank: RankConnection) -> Message:
        """The message with which the agent of a rank starts its program."""
        first = self._ranks[min(self._ranks)]
        address, port = str(first.hello["address"]), int(first.hello["port"])
        values = map(str, (rank.number, self._job.ranks, rank.hello["local_rank"]))
        torch = dict(zip(rank_info.VARIABLES["torchrun"], values, strict=True))
        rendezvous = {rank_info.ADDRESS: address, rank_info.PORT: str(port)}
        return {"environment": {**rendezvous, **torch}, "store": [address, int(first.hello["store"])]}

    def _on_message(self, rank: RankConnection, message: Message) -> None:
        if "cannot_start" in message:
            failure = Failure.from_record(message["cannot_start"])._replace(at_start=True)
            self._fail(failure.of_rank(rank.number, rank.host), UserError.exit_status)
        if "said" in message:
            self._on_said(rank, message["said"])
        self._ranks_asked |= "asked" in message
        if "ended" in message:
            rank.status = int(message["ended"])
            self._on_rank_end(rank)

    def _on_said(self, rank: RankConnection, message: object) -> None:
        """A rank's program has said something; the first failure that it says counts."""
        try:
            said = agent_pipe.parse(message)
        except ValueError:  # whoever has the pipe can write to it
            return
        self._take(rank, said)

    def _take(self, rank: RankConnection, said: Said) -> None:
        if isinstance(said, Failure):
            rank.failure = rank.failure or said
        elif isinstance(said, OpenedRun) and rank.number == 0:
            self._opened(said)

    def _on_rank_end(self, rank: RankConnection) -> None:
        """A rank's program has ended."""
        said = rank.failure
        if said:
            rank.output.store(
                "stderr", f"hvdtrain: rank {rank.number}: {said.message(False)}\n".encode(errors="backslashreplace")
            )
        rank.output.close()
        if self._has_stopped(rank):
            if said and not self._stop_reported:
                self._stop_reported = True
                self._console.say(said)
            self._start_stop_deadline()
        elif rank.status:
            failure = said or Failure(last_lines=tuple(rank.output.tail))
            self._on_rank_failure(self._placed(failure, rank)._replace(status=rank.status))
        self._decide_if_all_ended()

    def _has_stopped(self, rank: RankConnection) -> bool:
        """Whether a rank has ended as it was asked to: one that ends with that status by itself has failed."""
        asked = self._requested or self._ranks_asked or rank.failure
        return rank.status == Stopped.exit_status and bool(asked)

    def _placed(self, failure: Failure, rank: RankConnection) -> Failure:
        """The failure that a rank has reported, with the rank at fault and its host."""
        at_fault = self._ranks.get(rank.number if failure.rank is None else failure.rank, rank)
        return failure._replace(rank=at_fault.number, host=at_fault.host)

    def _on_disconnect(self, rank: RankConnection) -> None:
        rank.disconnected = True
        if self._is_current(rank) and rank.status is None and not self._failure:
            rank.output.close()
            self._on_rank_failure(Failure(rank=rank.number, host=rank.host))
        self._decide_if_all_ended()
        if self._ended():
            self._over.set()

    def _is_current(self, rank: RankConnection) -> bool:
        """Whether the job has this process as its rank."""
        return self._ranks.get(rank.number) is rank

    def _ended(self) -> bool:
        return len(self._ranks) == self._job.ranks and all(rank.disconnected for rank in self._ranks.values())

    # Failures and other ends.

    def _on_rank_failure(self, failure: Failure) -> None:
        """Report it at once, or a moment later if another rank may be the cause."""
        self._failures.append(failure)
        if not may_follow(failure):
            self._decide()
        elif not self._waiting_for_cause:
            self._waiting_for_cause = True
            asyncio.get_running_loop().call_later(FIRST_CAUSE_S, self._decide)

    def _others_run(self) -> bool:
        return any(rank.status is None and not rank.disconnected for rank in self._ranks.values())

    def _decide_if_all_ended(self) -> None:
        if self._failures and not self._others_run():
            self._decide()

    def _decide(self) -> None:
        """End the job by the failure that came first."""
        failure = first_cause(self._failures)
        if lost_peer(failure) and any(map(self._has_stopped, self._ranks.values())):
            return  # the ranks have stopped after a checkpoint, and this one was still connected to one of them
        # A batch script queues a job that ended with 75 again.
        status = 1 if failure.status in (None, Stopped.exit_status) else shell_status(failure.status)
        if asked := self._asked(failure):
            self._fail(Failure(f"ended by {signal_name(asked)}"), status)
        else:
            self._fail(failure, status, ends_others=self._others_run())

    def _asked(self, failure: Failure) -> int:
        """The signal that asked the job to stop, where a rank has ended by it; else 0."""
        return next((number for number in self._requested if failure.status in (-number, 128 + number)), 0)

    def _fail_at_start(self, reason: str, remedy: str) -> None:
        self._fail(Failure(reason, remedy, at_start=True), UserError.exit_status)

    def _fail(self, failure: Failure, status: int, ends_others: bool = False) -> None:
        """End the job with this status. Only the first failure counts."""
        if self._failure:
            return
        self._failure = failure, status
        self._console.say(failure.message(ends_others))
        for rank in self._ranks.values():
            rank.end()
        asyncio.get_running_loop().call_later(0 if not self._running else GRACE_S + 0.5, self._over.set)

    def _on_signal(self, number: int, repeated: bool) -> None:
        """Forward a signal to the ranks, which end by themselves; a job that has not started ends now."""
        if not self._running or repeated:
            self._requested.add(number)
            self._end_by_request(number)
            return
        self._request_stop(number)

    def _end_by_request(self, number: int) -> None:
        self._fail(Failure(f"ended by {signal_name(number)}"), interrupted_status(number))

    def _request_stop(self, number: int) -> None:
        self._requested.add(number)
        for rank in self._ranks.values():
            rank.send(signal=number)
        if number != signal.SIGUSR1:
            self._start_stop_deadline()

    def _start_stop_deadline(self) -> None:
        """From now on the ranks have STOP_S seconds to end."""
        if not self._stops:
            self._stops = True
            self._limits.append(call_after(STOP_S, self._on_stop_deadline))

    def _on_stop_deadline(self) -> None:
        running = ", ".join(rank.name for rank in self._ranks.values() if not rank.disconnected)
        reason = f"{running} did not end within {STOP_S:.0f} s after a request to stop, or after the others ended"
        self._fail(Failure(reason), 128 + signal.SIGKILL)
