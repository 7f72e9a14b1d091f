"""Starts a job and supervises it to its end, in the same way with every launcher.

Each rank's agent (see `agent.py`) connects to the supervisor. When all ranks have registered and run the same versions,
they receive the address of rank 0 and start. From then on the ranks' output comes here and signals go to the ranks. The
first rank that fails ends the job: its host, how it ended and its last lines are reported at once, and its exit status
is the job's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping

from hvdtrain.errors import Stopped, UserError
from hvdtrain.launch import hosts, private_variables, protocol, rank_connection
from hvdtrain.launch.agent import GRACE_S, SIGNALS
from hvdtrain.launch.job import Job
from hvdtrain.launch.launcher_process import LauncherProcess
from hvdtrain.launch.launchers.settings import LaunchSpec
from hvdtrain.launch.protocol import Message
from hvdtrain.launch.rank_connection import RankConnection
from hvdtrain.launch.result import Failure, JobResult, interrupted_status
from hvdtrain.system import credentials, rank_info, versions
from hvdtrain.system.network import address_of, interfaces
from hvdtrain.system.processes import describe_status, shell_status

STOP_S = 60.0
"""How long a job that was asked to stop may take for its last checkpoint."""
LEAVE_S = 1.0
"""How long a launcher may take to end after its ranks have ended."""
CONTROL_VARIABLES = (protocol.SUPERVISOR, rank_info.TOKEN, rank_info.LAUNCHER)
"""What the supervisor sets for the agents; the token goes into a file where variables show on command lines."""


class Supervisor:
    """Supervises one job. specs: one for all ranks, or, with the launcher `local`, one for each rank.

    report: called once with the job's failure, as soon as it happens.
    """

    def __init__(
        self,
        launcher: str,
        job: Job,
        specs: list[LaunchSpec],
        environment: Mapping[str, str],
        report: Callable[[Failure], None],
    ) -> None:
        self._launcher, self._job, self._specs = launcher, job, specs
        self._environment, self._report = environment, report
        self._token, self._variables_file = secrets.token_hex(16), ""
        self._ranks: dict[int, RankConnection] = {}
        self._processes: list[LauncherProcess] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._running = False
        self._asked_to_stop = False
        self._failure: tuple[Failure, int] | None = None
        self._over = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None

    async def run(self) -> JobResult:
        """Run the job to its end. Raises UserError if it cannot be started at all."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        addresses = self._addresses()
        listening = addresses[0] if self._listens_on_one_address else "0.0.0.0"
        server = await asyncio.start_server(self._serve, listening, 0, limit=protocol.LINE_BYTES)
        port = server.sockets[0].getsockname()[1]
        try:
            await self._start(f"{','.join(addresses)}:{port}")
            await self._over.wait()
        finally:
            await self._end_processes()
            server.close()
            await self._remove_credentials()
        return self._result()

    def _result(self) -> JobResult:
        if self._failure:
            failure, status = self._failure
            return JobResult(status, failure, self._asked_to_stop)
        stopped = any(rank.status == Stopped.exit_status for rank in self._ranks.values())
        return JobResult(Stopped.exit_status if stopped else 0, asked_to_stop=self._asked_to_stop)

    # Starting: how the agents find the supervisor and get the token.

    @property
    def _listens_on_one_address(self) -> bool:
        return bool(self._job.interface) or self._launcher == "local"

    def _addresses(self) -> list[str]:
        """The addresses at which agents look for the supervisor."""
        if self._listens_on_one_address:
            return [address_of(self._job.interface or "lo")]
        found = interfaces()
        real = [one.address for one in found if not one.virtual] or [one.address for one in found]
        on_other_hosts = bool(self._job.hosts) or "SLURM_JOB_ID" in os.environ or self._launcher == "srun"
        # Loopback comes last, and is left out for agents on other hosts, where it does not lead to this one.
        return real + ([] if on_other_hosts and real else ["127.0.0.1"])

    async def _start(self, address: str) -> None:
        for spec in self._specs:
            control = {
                protocol.SUPERVISOR: address,
                rank_info.LAUNCHER: self._launcher,
                rank_info.TOKEN: self._token,
            }
            environment = {**self._environment, **spec.variables, **control}
            if spec.shows_variables:
                environment = await self._without_credentials(environment)
            process = await LauncherProcess.start(self._launcher, spec, environment)
            self._processes.append(process)
            self._tasks.append(asyncio.create_task(self._watch(spec, process)))

    async def _without_credentials(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The variables with a file in place of those that hold credentials."""
        public, private = credentials.separated(environment)
        others = hosts.other_hosts(self._job.hosts)
        self._variables_file = await asyncio.to_thread(private_variables.distribute, others, private)
        return {**public, private_variables.FILE: self._variables_file}

    async def _remove_credentials(self) -> None:
        path, self._variables_file = self._variables_file, ""
        if path:
            with contextlib.suppress(UserError):  # a host that can no longer be reached
                await asyncio.to_thread(private_variables.remove, hosts.other_hosts(self._job.hosts), path)

    async def _watch(self, spec: LaunchSpec, process: LauncherProcess) -> None:
        """Show what a launcher itself prints, and notice its end."""
        # After a failure it says in many lines what the report has said in one.
        status = await process.show_output(hidden=lambda: self._failure is not None)
        await asyncio.sleep(0.2)  # for the last messages of its ranks
        if not self._ended() and not self._failure:
            if spec.rank in self._ranks:
                return  # its connection says how the rank ended
            await asyncio.sleep(LEAVE_S)
            if not self._ended():
                self._fail(self._launcher_ended(process, status), shell_status(status) or 1)

    def _launcher_ended(self, process: LauncherProcess, status: int) -> Failure:
        missing = self._missing()
        when = f"before rank {missing} registered" if missing else "before its ranks did"
        printed = f"; it printed: {' | '.join(process.last_lines)}" if process.last_lines else ""
        return Failure(f"{process.name} {describe_status(status)} {when}{printed}")

    # The ranks' agents.

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One agent, from its connection to its end."""
        rank: RankConnection | None = None
        try:
            accepted = rank_connection.accept(reader, writer, self._token, self._job.output_dir)
            rank = await asyncio.wait_for(accepted, protocol.ANSWER_TIMEOUT_S)
            if rank:
                self._register_rank(rank)
                while line := await reader.readline():
                    self._on_message(rank, protocol.decode(line))
        except (ValueError, KeyError, TypeError, OverflowError, OSError, asyncio.TimeoutError):
            pass  # not an agent of this job, or one whose connection broke
        finally:
            if rank:
                self._on_disconnect(rank)
            writer.close()

    def _register_rank(self, rank: RankConnection) -> None:
        expected, size = self._job.ranks, rank.hello["size"]
        if size != expected or rank.number in self._ranks:
            started = f"rank {rank.number} of {size} on {rank.host}"
            reason = f"{self._launcher} started {started}, but {expected} ranks were requested"
            remedy = "check with python -m hvdtrain doctor whether it belongs to another MPI than Horovod's"
            self._fail_at_start(reason, remedy)
            rank.end()
            return
        self._ranks[rank.number] = rank
        if len(self._ranks) == 1:
            asyncio.get_running_loop().call_later(self._job.start_timeout_s, self._on_start_timeout)
        if self._failure:
            rank.end()
        elif len(self._ranks) == expected:
            self._begin()

    def _missing(self) -> str:
        """Ranks that have not registered."""
        return ", ".join(str(rank) for rank in range(self._job.ranks) if rank not in self._ranks)

    def _on_start_timeout(self) -> None:
        if self._missing():
            self._fail_at_start(
                f"rank {self._missing()} did not register within {self._job.start_timeout_s:g} s after the first rank",
                "check that its host reaches this one (--interface), or give a longer --start-timeout",
            )

    def _begin(self) -> None:
        """All ranks have registered: start them if their versions are identical."""
        first = self._ranks[0]
        for rank in self._ranks.values():
            differs = versions.difference(rank.hello["versions"], first.hello["versions"])
            if differs:
                reason = f"{rank.name} differs from {first.name}: {differs}"
                self._fail_at_start(reason, "run make setup on both, from the same checkout")
                return
        address, port = str(first.hello["address"]), int(first.hello["port"])
        self._tasks.append(asyncio.create_task(self._remove_credentials()))  # all agents have read it
        rendezvous = {rank_info.ADDRESS: address, rank_info.PORT: str(port)}
        for number, rank in sorted(self._ranks.items()):
            values = map(str, (number, self._job.ranks, rank.hello["local_rank"]))
            torch = dict(zip(rank_info.VARIABLES["torchrun"], values, strict=True))
            rank.send(environment={**rendezvous, **torch}, store=[address, int(first.hello["store"])])
        self._running = True
        if self._job.time_limit_s:
            asyncio.get_running_loop().call_later(self._job.time_limit_s, self._on_time_limit)

    def _on_message(self, rank: RankConnection, message: Message) -> None:
        for stream in ("stdout", "stderr"):
            if stream in message:
                rank.output.write(stream, protocol.to_bytes(message[stream]))
        if "failed" in message:
            reason, remedy = str(message["failed"]), str(message["remedy"])
            failure = Failure(reason, remedy, rank.number, rank.host, at_start=True)
            self._fail(failure, UserError.exit_status)
        if "ended" not in message:
            return
        rank.status = int(message["ended"])
        rank.output.close()
        if rank.status == Stopped.exit_status:
            self._start_stop_deadline()
        elif rank.status:
            self._fail_rank(rank, describe_status(rank.status), shell_status(rank.status), rank.output.last_lines)

    def _on_disconnect(self, rank: RankConnection) -> None:
        rank.disconnected = True
        if self._ranks.get(rank.number) is rank and rank.status is None and not self._failure:
            rank.output.close()
            self._fail_rank(rank, "disconnected unexpectedly: its host or its agent there died", 1)
        if self._ended():
            self._over.set()

    def _ended(self) -> bool:
        return len(self._ranks) == self._job.ranks and all(rank.disconnected for rank in self._ranks.values())

    # Failures and other ends.

    def _fail_rank(self, rank: RankConnection, reason: str, status: int, last_lines: Iterable[str] = ()) -> None:
        others = self._job.ranks > 1
        failure = Failure(reason, "", rank.number, rank.host, tuple(last_lines), others)
        self._fail(failure, status)

    def _fail_at_start(self, reason: str, remedy: str) -> None:
        self._fail(Failure(reason, remedy, at_start=True), UserError.exit_status)

    def _fail(self, failure: Failure, status: int) -> None:
        """End the job with this status. Only the first failure counts."""
        if self._failure:
            return
        self._failure = failure, status
        self._report(failure)
        for rank in self._ranks.values():
            rank.end()
        asyncio.get_running_loop().call_later(0 if not self._running else GRACE_S + 0.5, self._over.set)

    def _on_signal(self, number: int) -> None:
        """Forward a signal to the ranks, which end by themselves; a job that has not started ends now."""
        self._asked_to_stop = True
        if not self._running or (self._deadline and number != signal.SIGUSR1):
            self._fail(Failure(f"ended by {signal.Signals(number).name}"), interrupted_status(number))
            return
        for rank in self._ranks.values():
            rank.send(signal=number)
        if number != signal.SIGUSR1:
            self._start_stop_deadline()

    def _on_time_limit(self) -> None:
        if not self._failure and not self._ended():
            self._asked_to_stop = True
            print(f"hvdtrain: the time limit of {self._job.time_limit_s:g} s is reached; stopping", file=sys.stderr)
            for rank in self._ranks.values():
                rank.send(signal=int(signal.SIGTERM))
            self._start_stop_deadline()

    def _start_stop_deadline(self) -> None:
        """From now on the ranks have STOP_S seconds to end."""
        if not self._deadline:
            self._deadline = asyncio.get_running_loop().call_later(STOP_S, self._on_stop_deadline)

    def _on_stop_deadline(self) -> None:
        running = ", ".join(rank.name for rank in self._ranks.values() if not rank.disconnected)
        reason = f"{running} did not end within {STOP_S:.0f} s after a request to stop, or after the others ended"
        self._fail(Failure(reason), 128 + signal.SIGKILL)

    async def _end_processes(self) -> None:
        """Leave no process behind: what still runs gets SIGTERM, then SIGKILL."""
        began = time.monotonic()
        by_itself = self._ended() and all(rank.status is not None for rank in self._ranks.values())
        for number, wait_s in ((0, LEAVE_S if by_itself else 0.2), (signal.SIGTERM, GRACE_S), (signal.SIGKILL, 5)):
            for process in self._processes:
                if number:
                    process.signal_group(number)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.gather(*(one.wait() for one in self._processes)), wait_s)
                break
        for task in self._tasks:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(task, max(1 - (time.monotonic() - began), 0.1))
