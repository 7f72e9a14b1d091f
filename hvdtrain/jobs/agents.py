"""The supervisor's side of the ranks' agents: its port, their connections and reports, and what the ranks print."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from hvdtrain.jobs import protocol
from hvdtrain.jobs.console import Console
from hvdtrain.jobs.event_loop import start_task
from hvdtrain.jobs.job import Job, has_other_hosts
from hvdtrain.jobs.protocol import FRAME, STREAMS, End, Hello, Message
from hvdtrain.system import stacks
from hvdtrain.system.handshake import Callers
from hvdtrain.system.network import address_of, interfaces
from hvdtrain.system.run_end import Failure

MAX_STRANGERS = 128
"""Connections without a proof at a time, beyond one for each rank."""
PROOF_S = 10.0
"""How long they may take for it; an agent waits less than this for each answer, and tries again."""
LOOK_S = 1.0
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


def listening(job: Job) -> tuple[str, list[str]]:
    """The address on which to listen, empty for all of this host, and those at which agents look for it.

    Raises UserError for an interface that has no address.
    """
    if job.interface or job.launcher == "local":
        address = address_of(job.interface or "lo")
        return address, [address]
    known = interfaces()
    addresses = [interface.address for interface in known if not interface.virtual]
    addresses = addresses or [interface.address for interface in known]
    # Loopback comes last, and is left out for agents on other hosts, where it does not lead to this one.
    return "", addresses + ([] if addresses and has_other_hosts(job, os.environ) else ["127.0.0.1"])


class AgentServer:
    """Listens for the agents of a job, on all addresses where `address` is empty.

    serve: takes the connection of an agent, from its proof to its end.
    """

    def __init__(self, address: str, token: str, ranks: int, serve: Serve) -> None:
        """Call it in the event loop."""
        self._serve, self._loop = serve, asyncio.get_running_loop()
        # The agents of all hosts connect at about the same time.
        listener = socket.create_server((address, 0), backlog=socket.SOMAXCONN)
        self.port = int(listener.getsockname()[1])
        self._callers = Callers(listener, token, protocol.PURPOSE, ranks + MAX_STRANGERS, PROOF_S)
        self._loop.add_reader(self._callers.fileno(), self._admit)
        self._look()

    def close(self) -> None:
        """Accept no more; agents stay connected."""
        self._timer.cancel()
        self._loop.remove_reader(self._callers.fileno())
        self._callers.close()

    def _look(self) -> None:
        """Strangers whose time is over are closed also where nothing else happens."""
        self._admit()
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def _admit(self) -> None:
        for connection in self._callers.take():
            start_task(self._on_agent(connection))

    async def _on_agent(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=protocol.LINE_BYTES)
        try:
            await self._serve(reader, writer)
        finally:
            writer.close()


OUTPUT_END_S = 10.0
"""How long the end of an agent's output may come after that of its messages."""


class RankConnection:
    """One rank. hello: the agent's first message."""

    def __init__(self, hello: Hello, writer: asyncio.StreamWriter, console: Console) -> None:
        self.number, self.host = hello.rank, hello.host
        self.hello, self._writer = hello, writer
        self.output = RankOutput(self.number, console)
        self.ended: int | None = None
        """How the program ended, as Popen has it; None while it runs."""
        self.status: int | None = None
        """The same, when all is read that it printed."""
        self.failure: Failure | None = None
        self.disconnected = False
        self.host_answers = True
        """Whether its host is there, as far as that is known."""

    @property
    def name(self) -> str:
        return f"rank {self.number} on {self.host}"

    def send(self, message: Message) -> None:
        if not self.disconnected:
            self._writer.write(protocol.encode(message))

    def end(self, at_once: bool = False) -> None:
        """Ask the agent to end the program, without waiting for a host that no longer responds.

        at_once: kill it, as the job goes on without this rank.
        """
        with contextlib.suppress(OSError):
            protocol.close_if_unacknowledged(self._writer.get_extra_info("socket"), protocol.UNREACHABLE_AFTER_S)
        self.output.hurry()
        self.send(End(at_once))


def conflict_of(ranks: Mapping[int, RankConnection]) -> Failure | None:
    """Why the ranks of a job cannot run together: versions differ, or a host has several names.

    Its ranks then have the same local rank, and would use the same cores and the same GPU.
    """
    seen: dict[tuple[str, str, int], RankConnection] = {}
    first = ranks[min(ranks)]
    for _, rank in sorted(ranks.items()):
        differs = stacks.version_difference(rank.hello.versions, first.hello.versions)
        if differs:
            reason = f"{rank.name} differs from {first.name}: {differs}"
            return Failure(reason, "run make setup on both, from the same checkout", at_start=True)
        place = rank.hello.place  # empty where the kernel does not tell it
        other = seen.setdefault((rank.host, place, rank.hello.local_rank), rank)
        if place and other is not rank:
            count = sum(rank.hello.place == place for rank in ranks.values())
            reason = f"{other.name} and rank {rank.number} have the same local rank: the host has several names"
            return Failure(reason, f"name it once, with all its slots: -H {rank.host}:{count}", at_start=True)
    return None


async def received(reader: asyncio.StreamReader) -> AsyncIterator[Message]:
    """The messages of an agent, until the connection ends or breaks."""
    with contextlib.suppress(OSError, ValueError):
        while line := await reader.readline():
            yield protocol.decode(line)


TAIL_LINES, TAIL_LINE_BYTES = 200, 1000
"""What is kept to find out why a rank failed: a chain of tracebacks may be long, and progress without a newline too."""
LINE_END = re.compile(rb"\r*\n\r*|\r+")
"""Progress bars have no newline."""
MAX_LINE_BYTES = 1 << 16
"""What follows is printed as another line, as a program may print forever without one."""


class LineOutput:
    """Prints whole lines only, each after a label, so that those of different processes do not mix.

    tail: gets those that are not empty. is_hidden: whether nothing is printed now.
    """

    def __init__(
        self, label: str, console: Console, tail: deque[str], is_hidden: Callable[[], bool] = lambda: False
    ) -> None:
        self._label, self._console, self.tail, self._is_hidden = label, console, tail, is_hidden
        self._incomplete = {"stdout": b"", "stderr": b""}

    def write(self, stream: str, data: bytes) -> None:
        """Take what the process wrote to `stdout` or `stderr`."""
        data = (self._incomplete[stream] + data).lstrip(b"\r")
        text = data.rstrip(b"\r")  # of which a newline may follow
        *lines, rest = LINE_END.split(text)
        rest += data[len(text) :]
        if len(rest) > MAX_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        self._incomplete[stream] = rest
        self._print(stream, lines)

    def close(self) -> None:
        for stream, rest in self._incomplete.items():
            self._print(stream, [rest.rstrip(b"\r")] if rest else [])
            self._incomplete[stream] = b""

    def _print(self, stream: str, lines: list[bytes]) -> None:
        if lines and not self._is_hidden():
            self._console.print_lines(stream, self._label, lines)
        self.tail.extend(line[:TAIL_LINE_BYTES].decode(errors="replace") for line in lines if line.strip())


class RankOutput(LineOutput):
    """That of a rank's program, which also goes to the files of --output-dir."""

    def __init__(self, rank: int, console: Console) -> None:
        super().__init__(f"[{rank}] ", console, deque(maxlen=TAIL_LINES))
        self._files: dict[str, Path] = {}
        if console.output_dir:
            self._files = {name: console.output_dir / f"rank-{rank}.{name}" for name in STREAMS}
        for stream in self._files:
            self.store(stream, b"")  # a rank that prints nothing has empty files
        self._waits = True
        self._reading: asyncio.Task[None] | None = None

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Print what arrives on the agent's connection for output, until its end, no faster than the console does."""
        self._reading = asyncio.current_task()
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                number, size = FRAME.unpack(await reader.readexactly(FRAME.size))
                data = await reader.readexactly(size)
                self.store(STREAMS[number], data)
                self.write(STREAMS[number], data)
                await self._console.room(lambda: self._waits)

    def hurry(self) -> None:
        """From now on the console holds up nothing: the program has ended, or is to end."""
        self._waits = False

    async def end(self, limit_s: float) -> None:
        """Wait so long for the end of the output that is read, and read no more."""
        self.hurry()
        if self._reading:
            done, _ = await asyncio.wait([self._reading], timeout=limit_s)
            if not done:
                self._reading.cancel()

    def store(self, stream: str, data: bytes) -> None:
        if stream in self._files:
            self._console.store(self._files[stream], data)
