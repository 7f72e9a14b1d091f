"""Starts a job and stays with it to its end, in the same way whatever launcher carries it to its hosts.

Every rank's keeper (see `rank.py`) calls here. When all have come and are alike, they are told where rank 0 can be
met, and start. From then on what the ranks print comes here, signals go there, and the first rank that fails ends
the job: its host, how it ended and its last lines are told, and its exit status is the job's.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from hvdtrain.errors import HvdtrainError, Stopped, UserError
from hvdtrain.launch import hosts, protocol
from hvdtrain.launch.agent import GRACE_S, SIGNALS
from hvdtrain.launch.command_lines import LaunchSpec
from hvdtrain.launch.job import Job
from hvdtrain.launch.protocol import Message
from hvdtrain.system import rank_info, versions
from hvdtrain.system.network import address_of, interfaces
from hvdtrain.system.processes import described, shell_status
from hvdtrain.system.proof import proof

STOP_S = 60.0
"""How long a job that was told to end may take for its last checkpoint."""
LEAVE_S = 1.0
"""How long a launcher may take to end after its ranks have."""
TAIL_LINES = 8


class JobFailed(HvdtrainError):
    """A job that did not end well, with the exit status of the rank that failed first."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.exit_status = status


def ended_early(number: int, text: str) -> JobFailed:
    """The end of a job by a signal that no rank answers.

    SIGUSR1 comes before a time limit: as after a checkpoint, the status then says that the job can be started again.
    """
    return JobFailed(text, Stopped.exit_status if number == signal.SIGUSR1 else 128 + number)


class Output:
    """What one rank prints: on the console behind its number, whole lines only, and in files where asked."""

    def __init__(self, rank: int, folder: Path | None) -> None:
        self._label = f"[{rank}] ".encode()
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._rest = {"stdout": b"", "stderr": b""}
        self._files: dict[str, BinaryIO] = {}
        if folder:
            self._files = {name: (folder / f"rank-{rank}.{name}").open("ab", buffering=0) for name in self._rest}

    def write(self, name: str, arrived: bytes) -> None:
        if name in self._files:
            self._files[name].write(arrived)
        *lines, self._rest[name] = (self._rest[name] + arrived).split(b"\n")
        self._print(name, lines)

    def close(self) -> None:
        for name, rest in self._rest.items():
            self._print(name, [rest] if rest else [])
        for file in self._files.values():
            file.close()

    def _print(self, name: str, lines: list[bytes]) -> None:
        stream: TextIO = getattr(sys, name)
        with contextlib.suppress(BrokenPipeError):  # a console that is gone does not end a job
            stream.buffer.write(b"".join(self._label + line + b"\n" for line in lines))
            stream.flush()
        self.tail.extend(line.decode(errors="replace") for line in lines if line.strip())


class Rank:
    """One rank, as far as its keeper told."""

    def __init__(self, hello: Message, writer: asyncio.StreamWriter, folder: Path | None) -> None:
        self.number, self.host = int(hello["rank"]), str(hello["host"])
        self.hello, self._writer = hello, writer
        self.output = Output(self.number, folder)
        self.status: int | None = None
        self.gone = False

    @property
    def name(self) -> str:
        return f"rank {self.number} on {self.host}"

    def send(self, **message: Any) -> None:
        if not self.gone:
            self._writer.write(protocol.encode(message))

    def end(self) -> None:
        """Tell it to; a host that takes no word any more is not waited for."""
        with contextlib.suppress(OSError):
            protocol.give_up_after(self._writer.get_extra_info("socket"), protocol.UNHEARD_S)
        self.send(end=True)


class Supervisor:
    """Of one job. `starts`: one start for all ranks by a launcher, or, for the launcher `local`, one for each rank."""

    def __init__(self, launcher: str, job: Job, starts: list[LaunchSpec], environment: Mapping[str, str]) -> None:
        self._launcher, self._job, self._starts = launcher, job, starts
        self._environment, self._token = environment, secrets.token_hex(16)
        self._token_file = ""
        self._ranks: dict[int, Rank] = {}
        self._processes: list[asyncio.subprocess.Process] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._said: deque[str] = deque(maxlen=TAIL_LINES)
        self._running = False
        self.told_to_end = False
        """Whether a signal or the time limit asked for the end, so that another start would be against it."""
        self._failure: HvdtrainError | None = None
        self._over = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None

    async def run(self) -> int:
        """The job's exit status: 0, 75 where it stopped after a checkpoint, or that of the rank that failed first."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._heard, number)
        server = await asyncio.start_server(self._serve, *self._door(), limit=protocol.LINE_BYTES)
        port = server.sockets[0].getsockname()[1]
        try:
            await self._start(f"{','.join(self._addresses())}:{port}")
            await self._over.wait()
        finally:
            await self._end()
            server.close()
            await self._forget()
        if self._failure:
            raise self._failure
        stopped = any(rank.status == Stopped.exit_status for rank in self._ranks.values())
        return Stopped.exit_status if stopped else 0

    # How the ranks find this place.

    def _door(self) -> tuple[str, int]:
        here = self._launcher == "local"
        return (address_of(self._job.interface) if self._job.interface else "127.0.0.1" if here else "0.0.0.0"), 0

    def _addresses(self) -> list[str]:
        if self._door()[0] != "0.0.0.0":
            return [self._door()[0]]
        found = interfaces()
        real = [one.address for one in found if not one.virtual] or [one.address for one in found]
        elsewhere = bool(self._job.hosts) or "SLURM_JOB_ID" in os.environ or self._launcher == "srun"
        # Loopback last: on another host it leads nowhere, or to somebody else, who does not know the token.
        return real + ([] if elsewhere and real else ["127.0.0.1"])

    async def _start(self, address: str) -> None:
        control = {protocol.SUPERVISOR: address, **await self._word()}
        for index, start in enumerate(self._starts):
            own = {**start.set, **control, rank_info.LAUNCHER: self._launcher}
            words = start.words
            if words[0] == "mpirun":  # the names that are to go along
                names = [word for name in (*control, rank_info.LAUNCHER) for word in ("-x", name)]
                words = [words[0], *names, *words[1:]]
            try:
                process = await asyncio.create_subprocess_exec(
                    *words,
                    env={**self._environment, **own},
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=None if self._on_terminal(words) else asyncio.subprocess.PIPE,
                    stderr=None if self._on_terminal(words) else asyncio.subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C is heard here, and told to the ranks
                )
            except OSError as error:
                raise UserError(f"{words[0]} cannot be started ({error.strerror}); is it on PATH?") from None
            self._processes.append(process)
            self._tasks.append(asyncio.create_task(self._watch(index, process)))

    async def _word(self) -> dict[str, str]:
        """The variable by which the ranks' keepers learn the token."""
        if self._launcher != "horovodrun" or self._job.controller != "gloo":
            return {rank_info.TOKEN: self._token}
        # It writes all variables on command lines, which everybody on a host can read.
        others = hosts.elsewhere(self._job.hosts)
        self._token_file = await asyncio.to_thread(hosts.entrust, others, self._token)
        return {rank_info.TOKEN_FILE: self._token_file}

    async def _forget(self) -> None:
        """Remove the token's file."""
        path, self._token_file = self._token_file, ""
        if path:
            with contextlib.suppress(UserError):  # of a host that is gone
                await asyncio.to_thread(hosts.forget, hosts.elsewhere(self._job.hosts), path)

    @staticmethod
    def _on_terminal(words: list[str]) -> bool:
        return "--on-terminal" in words

    async def _watch(self, index: int, process: asyncio.subprocess.Process) -> None:
        """Show what a launcher itself says, and notice its end."""
        streams = [(process.stdout, sys.stdout), (process.stderr, sys.stderr)]
        await asyncio.gather(*(self._copy(index, source, sink) for source, sink in streams if source))
        status = await process.wait()
        await asyncio.sleep(0.2)  # its ranks' last words are on their way
        if not self._ended() and not self._failure:
            if self._launcher == "local" and index in self._ranks:
                return  # its connection tells
            await asyncio.sleep(LEAVE_S)
            if not self._ended():
                self._fail(self._launcher_gone(index, status))

    async def _copy(self, index: int, source: asyncio.StreamReader, sink: TextIO) -> None:
        label = f"[{index}] " if self._launcher == "local" else f"[{self._launcher}] "
        while True:
            try:
                line = await source.readline()
            except ValueError:  # a line without end
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip("\n")
            if text.strip():
                self._said.append(text)
            if not self._failure:  # then it says in many lines what was told in one
                with contextlib.suppress(BrokenPipeError):
                    print(f"{label}{text}", file=sink, flush=True)

    def _launcher_gone(self, index: int, status: int) -> HvdtrainError:
        missing = [str(rank) for rank in range(self._job.ranks) if rank not in self._ranks]
        name = f"rank {index}" if self._launcher == "local" else self._launcher
        what = f"before rank {', '.join(missing)} came" if missing else "before its ranks did"
        said = f"; it said: {' | '.join(self._said)}" if self._said else ""
        return JobFailed(f"{name} {described(status)} {what}{said}", shell_status(status) or 1)

    # The ranks.

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One keeper, from its first word to its end."""
        rank: Rank | None = None
        try:
            rank = await asyncio.wait_for(self._greet(reader, writer), protocol.ANSWER_S)
            if rank:
                self._came(rank)
                while line := await reader.readline():
                    self._told(rank, protocol.decode(line))
        except (ValueError, KeyError, TypeError, OverflowError, OSError, asyncio.TimeoutError, HvdtrainError) as error:
            if isinstance(error, HvdtrainError):
                self._fail(error)
        finally:
            if rank:
                self._left(rank)
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Rank | None:
        """The rank whose keeper this is; None for a caller that does not know the token."""
        first, challenge = protocol.decode(await reader.readline()), secrets.token_hex(16)
        mine = proof(self._token, str(first["challenge"]), "supervisor")
        writer.write(protocol.encode({"challenge": challenge, "proof": mine}))
        answer = protocol.decode(await reader.readline())
        expected = proof(self._token, challenge, "rank")
        if not hmac.compare_digest(protocol.data(str(answer["proof"])), expected.encode()):
            return None
        hello = protocol.decode(await reader.readline())
        protocol.keep_alive(writer.get_extra_info("socket"))
        return Rank(hello, writer, self._job.output_dir)

    def _came(self, rank: Rank) -> None:
        expected = self._job.ranks
        if rank.hello["size"] != expected or rank.number in self._ranks:
            raise UserError(
                f"{self._launcher} started {rank.name} of {rank.hello['size']}, and {expected} ranks were asked for: "
                "it is of another MPI than this one, or was told another number; look at python -m hvdtrain doctor"
            )
        self._ranks[rank.number] = rank
        if len(self._ranks) == 1:
            asyncio.get_running_loop().call_later(self._job.start_timeout_s, self._late)
        if self._failure:
            rank.end()
        elif len(self._ranks) == expected:
            self._begin()

    def _late(self) -> None:
        missing = [str(rank) for rank in range(self._job.ranks) if rank not in self._ranks]
        if missing and not self._failure:
            self._fail(
                UserError(
                    f"rank {', '.join(missing)} did not come within {self._job.start_timeout_s:g} s after the first: "
                    "look whether its host reaches this one (--interface), or give a longer --start-timeout"
                )
            )

    def _begin(self) -> None:
        """All are here: see that they are alike, and let them start."""
        first = self._ranks[0]
        for rank in self._ranks.values():
            differs = versions.difference(rank.hello["versions"], first.hello["versions"])
            if differs:
                raise UserError(
                    f"{rank.name} differs from {first.name}: {differs}; make setup on both, from the same checkout"
                )
        address, port = str(first.hello["address"]), int(first.hello["port"])
        self._tasks.append(asyncio.create_task(self._forget()))  # all keepers have read it
        meeting = {rank_info.ADDRESS: address, rank_info.PORT: str(port)}
        for number, rank in sorted(self._ranks.items()):
            place = map(str, (number, self._job.ranks, rank.hello["local_rank"]))
            torch = dict(zip(rank_info.VARIABLES["torchrun"], place, strict=True))
            rank.send(environment={**meeting, **torch}, store=[address, int(first.hello["store"])])
        self._running = True
        if self._job.time_limit_s:
            asyncio.get_running_loop().call_later(self._job.time_limit_s, self._time_is_up)

    def _told(self, rank: Rank, message: Message) -> None:
        for name in ("stdout", "stderr"):
            if name in message:
                rank.output.write(name, protocol.data(message[name]))
        if "failed" in message:
            self._fail(UserError(f"{rank.name}: {message['failed']}"))
        if "ended" not in message:
            return
        rank.status = int(message["ended"])
        rank.output.close()
        if rank.status == Stopped.exit_status:
            self._hurry()
        elif rank.status:
            self._fail(self._rank_failed(rank))

    def _left(self, rank: Rank) -> None:
        rank.gone = True
        if self._ranks.get(rank.number) is rank and rank.status is None and not self._failure:
            rank.output.close()
            text = f"{rank.name} is gone without a word: its host or its keeper there died; ending the others"
            self._fail(JobFailed(text, 1))
        if self._ended():
            self._over.set()

    def _ended(self) -> bool:
        return len(self._ranks) == self._job.ranks and all(rank.gone for rank in self._ranks.values())

    def _rank_failed(self, rank: Rank) -> JobFailed:
        assert rank.status is not None
        lines = "".join(f"\n  {line}" for line in rank.output.tail)
        last = f"; its last lines:{lines}" if lines else ""
        ending = "; ending the others" if self._job.ranks > 1 else ""
        return JobFailed(f"{rank.name} {described(rank.status)}{ending}{last}", shell_status(rank.status))

    # Ends.

    def _fail(self, failure: HvdtrainError) -> None:
        """The first failure counts; the other ranks are ended."""
        if self._failure:
            return
        self._failure = failure
        if isinstance(failure, JobFailed):
            print(f"hvdtrain: {failure}", file=sys.stderr, flush=True)
            failure.told = True
        for rank in self._ranks.values():
            rank.end()
        asyncio.get_running_loop().call_later(0 if not self._running else GRACE_S + 0.5, self._over.set)

    def _heard(self, number: int) -> None:
        """Tell the ranks. What they do is theirs, but a program that does not end at all is ended."""
        name, self.told_to_end = signal.Signals(number).name, True
        if not self._running or (self._deadline and number != signal.SIGUSR1):
            self._fail(ended_early(number, f"ended by {name}"))
            return
        for rank in self._ranks.values():
            rank.send(signal=number)
        if number != signal.SIGUSR1:
            self._hurry()

    def _time_is_up(self) -> None:
        if not self._failure and not self._ended():
            self.told_to_end = True
            print(f"hvdtrain: the time limit of {self._job.time_limit_s:g} s is reached; stopping", file=sys.stderr)
            for rank in self._ranks.values():
                rank.send(signal=int(signal.SIGTERM))
            self._hurry()

    def _hurry(self) -> None:
        """From now on the ranks have `STOP_S` left."""
        if not self._deadline:
            self._deadline = asyncio.get_running_loop().call_later(STOP_S, self._too_slow)

    def _too_slow(self) -> None:
        still = ", ".join(rank.name for rank in self._ranks.values() if not rank.gone)
        text = f"{still} still run {STOP_S:.0f} s after they were told to end, or after the others did"
        self._fail(JobFailed(text, 128 + signal.SIGKILL))

    async def _end(self) -> None:
        """Leave no process behind: what still runs is asked to end, then made to."""
        began = time.monotonic()
        by_itself = self._ended() and all(rank.status is not None for rank in self._ranks.values())
        for number, wait_s in ((0, LEAVE_S if by_itself else 0.2), (signal.SIGTERM, GRACE_S), (signal.SIGKILL, 5)):
            for process in self._processes:
                if number and process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, number)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.gather(*(one.wait() for one in self._processes)), wait_s)
                break
        for task in self._tasks:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(task, max(1 - (time.monotonic() - began), 0.1))
