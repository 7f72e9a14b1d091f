"""Starts a job and supervises it to its end, in the same way with every launcher.

Each rank's agent (see `agent.py`) connects to the supervisor. When all ranks have registered and run the same versions,
they receive the address of rank 0 and start. From then on the ranks' output comes here and signals go to the ranks. The
first rank that fails ends the job (`job_end.py`), unless the job may go on without it (`running_ranks.py`).
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hvdtrain.errors import UserError
from hvdtrain.jobs import protocol
from hvdtrain.jobs.agents import OUTPUT_END_S, AgentServer, RankConnection, conflict_of, listening, received
from hvdtrain.jobs.console import Console
from hvdtrain.jobs.event_loop import Signals, call_after
from hvdtrain.jobs.job import Job
from hvdtrain.jobs.job_end import JobEnd
from hvdtrain.jobs.job_processes import LEAVE_S, JobProcesses, LauncherProcess
from hvdtrain.jobs.launchers import build
from hvdtrain.jobs.protocol import Ended, Hello, Message, OutputOf, Said, Signal, StartProgram
from hvdtrain.jobs.running_ranks import RunningRanks
from hvdtrain.system import rank_info
from hvdtrain.system.agent_pipe import NotRunning, OpenedRun, Reached, Report
from hvdtrain.system.processes import describe_status, shell_status
from hvdtrain.system.run_end import Failure, RunEnd

LAUNCHER_ENDS_S = 10
"""How long a launcher that has lost a rank may take until it says why."""


class Supervisor:
    """Supervises one job. variables: of the process that launches.

    opened: called when rank 0 says which run it has opened. Raises UserError for an interface without an address.
    """

    def __init__(
        self,
        job: Job,
        variables: Mapping[str, str],
        console: Console,
        signals: Signals,
        opened: Callable[[OpenedRun], None],
    ) -> None:
        self._job, self._variables, self._opened = job, variables, opened
        self._console, self._signals = console, signals
        self._ends = JobEnd(console)
        self._agents: dict[str, RankConnection] = {}
        """All that have registered, by their keys."""
        # After a failure launchers say in many lines what the report has said in one.
        self._processes = JobProcesses(
            job, variables, console, lambda: bool(self._ends.failure) or self._ends.over.is_set(), self._on_process_end
        )
        self._listening, self._addresses = listening(job)
        self._ranks = RunningRanks(job, self._listening, variables, self._processes, self._ends, console)

    async def run(self) -> RunEnd:
        """Run the job to its end. Raises UserError if it cannot be started at all."""
        asyncio.get_running_loop().set_exception_handler(self._on_error)
        server = AgentServer(self._listening, self._processes.token, self._job.ranks, self._serve)
        with self._signals.handled_by(self._on_signal):
            try:
                self._processes.prepare(f"{','.join(self._addresses)}:{server.port}")
                await self._start_processes()
                await self._ends.over.wait()
            finally:
                have_status = all(rank.status is not None for rank in self._ends.ranks.values())
                await self._processes.end(by_itself=self._ranks.ended and have_status)
                server.close()
                for limit in self._ends.limits:
                    limit.cancel()
        return self._ends.result()

    def _on_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A handler failed, and may have missed the end of a rank: the job ends, instead of waiting for it."""
        error = context.get("exception")
        if error:
            self._console.say("".join(traceback.format_exception(error)).rstrip())
            self._ends.fail(Failure(f"the launcher failed: {type(error).__name__}: {error}", "please report it"), 1)
            self._ends.over.set()

    def _on_signal(self, number: int, repeated: bool) -> None:
        """Forward a signal to the ranks, which end by themselves; a job that has not started ends now."""
        if not self._ends.running or repeated:
            self._ends.end_by_request(number)
            return
        self._ends.request_stop(number)
        self._ranks.end_newcomers()
        # Nothing has begun: ranks that wait for others do not answer, and none is started any more.
        ledger = self._ranks.ledger
        if ledger.awaited or not (ledger.number or len(self._ends.ranks) == self._job.ranks):
            self._ends.end_by_request(number)

    # Starting.

    async def _start_processes(self) -> None:
        if self._job.launcher != "srun" and not self._job.allocation:  # in which steps may have to wait for their turn
            self._ends.limits.append(call_after(self._job.start_timeout_s, self._on_no_rank))
        if self._job.survives:
            self._ranks.watch_hosts()
            self._ranks.start_due()
            return
        for spec in build(self._job, {**self._variables, **self._processes.control}):
            await self._processes.start_one(spec)

    def _on_no_rank(self) -> None:
        if not (self._ends.ranks or self._ends.running):
            reason = f"{self._job.launcher} started no rank within {self._job.start_timeout_s:g} s"
            self._ends.fail_at_start(reason, "check what it printed, or give a longer --start-timeout")

    def _on_process_end(self, process: LauncherProcess, status: int) -> None:
        """A launcher, or the agent of one rank, has ended: the connection says how a rank did, if there was one."""
        if self._ends.failure or process.rank in self._ends.ranks:
            return
        if self._job.survives:
            self._ranks.on_process_end(process, status)
        elif not self._ranks.ended:
            asyncio.get_running_loop().call_later(LEAVE_S, self._on_launcher_end, process, status)

    def _on_launcher_end(self, process: LauncherProcess, status: int) -> None:
        """It has ended before its ranks did."""
        if self._ranks.ended:
            return
        missing = self._missing()
        when = f"before rank {missing} registered" if missing else "before its ranks did"
        printed = f"; it printed: {' | '.join(process.last_lines)}" if process.last_lines else ""
        by_ssh = any("Exit code: 255" in line for line in process.last_lines)  # of a rank's ssh, as horovodrun says
        is_many = missing and by_ssh and self._job.ranks_per_host > 10  # which sshd takes at a time by default
        remedy = "raise MaxStartups in its sshd_config to the ranks of a host, or use launch mpirun" if is_many else ""
        failure = Failure(f"{process.name} {describe_status(status)} {when}{printed}", remedy)
        self._ends.fail(failure, shell_status(status) or 1)

    def _missing(self) -> str:
        return ", ".join(str(rank) for rank in range(self._job.ranks) if rank not in self._ends.ranks)

    # The ranks' agents.

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection of an agent, from its first message to its end."""
        messages = received(reader)
        match await anext(messages, None):
            case Hello() as hello:
                rank = self._agents[hello.key] = RankConnection(hello, writer, self._console)
                protocol.keep_alive(writer.get_extra_info("socket"), self._job.survives)
                self._register_rank(rank)
                async for message in messages:
                    self._on_message(rank, message)
                # A process that ends, or is killed, has its host close or reset the connection.
                rank.host_answers = isinstance(reader.exception(), ConnectionError | None)
                await self._on_connection_end(rank)
            case OutputOf(key) as first if key in self._agents:
                writer.write(protocol.encode(first))
                await self._agents[key].output.read(reader)

    async def _on_connection_end(self, rank: RankConnection) -> None:
        """Nothing comes from an agent any more: its program has ended, or its host or it itself is lost."""
        await rank.output.end(OUTPUT_END_S if rank.host_answers else 0)
        rank.output.close()
        rank.status, rank.disconnected = rank.ended, True
        if self._ranks.is_current(rank):
            self._on_rank_end(rank)
        self._ends.decide_if_all_ended()
        if self._ranks.ended:
            self._ends.over.set()

    def _register_rank(self, rank: RankConnection) -> None:
        if self._job.survives and not self._ranks.takes(rank):
            return
        if not self._ends.running:
            self._admit(rank)
        elif self._ranks.fits(rank):
            rank.send(self._start_of(rank))

    def _admit(self, rank: RankConnection) -> None:
        """It is one of the ranks with which the job begins."""
        expected, size = self._job.ranks, rank.hello.size
        if rank.number in self._ends.ranks or (size != expected and not self._job.survives):
            started = f"rank {rank.number} of {size} on {rank.host}"
            reason = f"{self._job.launcher} started {started}, but {expected} ranks were requested"
            remedy = "check with python -m hvdtrain doctor whether it belongs to another MPI than Horovod's"
            self._ends.fail_at_start(reason, remedy)
            rank.end()
            return
        self._ends.ranks[rank.number] = rank
        if len(self._ends.ranks) == 1:
            self._ends.limits.append(call_after(self._job.start_timeout_s, self._on_start_timeout))
        if self._ends.failure:
            rank.end()
        elif len(self._ends.ranks) == expected:
            self._begin()

    def _on_start_timeout(self) -> None:
        if self._missing() and not self._ends.running:  # in a job that survives, a rank may be missing later
            self._ends.fail_at_start(
                f"rank {self._missing()} did not register within {self._job.start_timeout_s:g} s after the first rank",
                "check that its host reaches this one (--interface), or give a longer --start-timeout",
            )

    def _begin(self) -> None:
        """All ranks have registered: start them if they fit together."""
        conflict = conflict_of(self._ends.ranks)
        if conflict:
            self._ends.fail(conflict, UserError.exit_status)
            return
        self._processes.all_registered()
        for _, rank in sorted(self._ends.ranks.items()):
            rank.send(self._start_of(rank))
        self._ends.running = True

    def _start_of(self, rank: RankConnection) -> StartProgram:
        """The message with which the agent of a rank starts its program."""
        first = self._ends.ranks[min(self._ends.ranks)].hello
        values = map(str, (rank.number, self._job.ranks, rank.hello.local_rank))
        torch = dict(zip(rank_info.VARIABLES["torchrun"], values, strict=True))
        environment = {rank_info.ADDRESS: first.address, rank_info.PORT: str(first.port), **torch}
        if not self._job.survives:
            return StartProgram(environment, (first.address, first.store))
        replaces = {rank_info.REPLACES: "1"} if self._ranks.ledger.number else {}
        return StartProgram({**environment, **replaces}, local_size=self._ranks.places.local_size(rank.number))

    def _on_message(self, rank: RankConnection, message: Message) -> None:
        match message:
            case Said() if self._ranks.is_current(rank):
                self._take(rank, protocol.parse(message.said))
            case Signal():
                self._ends.ranks_asked = True
            case Ended():
                rank.ended = message.status
                rank.output.hurry()
                if self._ranks.is_lost(rank, message.status):
                    failure = rank.failure or Failure(last_lines=tuple(rank.output.tail) if message.status > 0 else ())
                    self._ranks.lose(rank.number, replace(failure, status=message.status))

    def _take(self, rank: RankConnection, said: Report | None) -> None:
        match said:
            case Failure() if not rank.failure or (rank.failure.stopped and not said.stopped):  # a script may go on
                rank.failure = said
            case OpenedRun() if self._job.survives or rank.number == 0:  # a rank may train by itself
                self._opened(said)
            case Reached() if self._job.survives:
                self._ranks.on_reached(rank, said)
            case NotRunning():
                self._ranks.on_not_running(said)

    def _on_rank_end(self, rank: RankConnection) -> None:
        said = rank.failure
        if rank.status is None:
            failure = Failure(rank=rank.number, host=rank.host)
            if not (self._ends.running or self._job.survives or self._job.launcher == "local"):
                # A launcher that cannot start all ranks ends the others; then its own end is the cause.
                asyncio.get_running_loop().call_later(LAUNCHER_ENDS_S, self._ranks.on_rank_failure, failure)
            elif not self._ends.failure:
                self._ranks.on_rank_failure(failure)
            return
        if not self._ranks.ledger.may_train(rank.number):
            self._ranks.lose(rank.number, Failure("ended before it joined", status=rank.status))
            return
        if rank.status == 0 or self._ends.has_stopped(rank):
            self._ranks.on_finish(rank.number)
        if said:
            line = f"hvdtrain: rank {rank.number}: {said.message(False)}\n"
            rank.output.store("stderr", line.encode(errors="backslashreplace"))
        if self._ends.has_stopped(rank):
            self._ends.on_stopped(rank)
        elif rank.status:
            failure = said or Failure(last_lines=tuple(rank.output.tail))
            at_fault = self._ends.ranks.get(rank.number if failure.rank is None else failure.rank, rank)
            failure = replace(failure, rank=at_fault.number, host=at_fault.host, status=rank.status)
            self._ranks.on_rank_failure(failure)
