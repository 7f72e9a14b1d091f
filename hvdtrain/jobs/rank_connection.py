"""The supervisor's side of one rank: the connection to its agent, what the agent reports, and what the rank prints."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from hvdtrain.jobs import protocol
from hvdtrain.jobs.console import Console
from hvdtrain.jobs.protocol import FRAME, STREAMS, End, Hello, Message
from hvdtrain.system import stacks
from hvdtrain.system.run_end import Failure

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


TAIL_LINES = 200
"""Lines that are kept to find out why a rank failed: a chain of tracebacks may be long."""
MAX_LINE_BYTES = 1 << 16
"""What follows is printed as another line, as a program may print forever without one."""


class RankOutput:
    """Prints whole lines only, so that lines of different ranks do not mix."""

    def __init__(self, rank: int, console: Console) -> None:
        self._label, self._console = f"[{rank}] ", console
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        """The last lines that are not empty."""
        self._incomplete = {"stdout": b"", "stderr": b""}
        self._files: dict[str, Path] = {}
        if console.output_dir:
            self._files = {name: console.output_dir / f"rank-{rank}.{name}" for name in self._incomplete}
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
                self.write(STREAMS[number], await reader.readexactly(size))
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

    def write(self, stream: str, data: bytes) -> None:
        """Take what the rank wrote to `stdout` or `stderr`."""
        self.store(stream, data)
        *lines, rest = (self._incomplete[stream] + data).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        self._incomplete[stream] = rest
        self._print(stream, lines)

    def store(self, stream: str, data: bytes) -> None:
        if stream in self._files:
            self._console.store(self._files[stream], data)

    def close(self) -> None:
        for stream, rest in self._incomplete.items():
            self._print(stream, [rest] if rest else [])
            self._incomplete[stream] = b""

    def _print(self, stream: str, lines: list[bytes]) -> None:
        if lines:
            self._console.print_lines(stream, self._label, lines)
            self.tail.extend(line.decode(errors="replace") for line in lines if line.strip())
