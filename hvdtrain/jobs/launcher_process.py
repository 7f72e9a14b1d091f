"""A process that a LaunchSpec describes: it is started, its own output is shown, and its end is noticed."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping

from hvdtrain.errors import UserError
from hvdtrain.jobs.console import Console
from hvdtrain.jobs.launchers.settings import LaunchSpec
from hvdtrain.system.run_end import LAST_LINES


class LauncherProcess:
    """A launcher such as mpirun, or with `launch local` the agent of one rank."""

    def __init__(self, process: asyncio.subprocess.Process, name: str, label: str) -> None:
        self._process, self.name, self._label = process, name, label
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)

    @classmethod
    async def start(cls, launcher: str, spec: LaunchSpec, environment: Mapping[str, str]) -> LauncherProcess:
        """Raises UserError if the command cannot be started."""
        output = None if spec.on_terminal else asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *spec.command,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C goes to the supervisor, which forwards it to the ranks
            )
        except OSError as error:
            raise UserError(
                f"{spec.command[0]} cannot be started ({error.strerror})", "check that it is on PATH"
            ) from None
        name = launcher if spec.rank is None else f"rank {spec.rank}"
        return cls(process, name, f"[{launcher if spec.rank is None else spec.rank}] ")

    async def show_output(self, console: Console, hidden: Callable[[], bool]) -> int:
        """Print what the process itself prints, except while `hidden`; its exit status when it has ended."""

        async def copy(stream: str, source: asyncio.StreamReader | None) -> None:
            async for line in _lines(source):
                if line.strip():
                    self.last_lines.append(line)
                if not hidden():
                    console.print(stream, f"{self._label}{line}\n".encode())
                    await console.room()

        await asyncio.gather(copy("stdout", self._process.stdout), copy("stderr", self._process.stderr))
        return await self._process.wait()

    async def wait(self) -> int:
        return await self._process.wait()

    def signal_group(self, number: int) -> None:
        """Send a signal to the process and its children, if it still runs."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


async def _lines(source: asyncio.StreamReader | None) -> AsyncIterator[str]:
    """Lines of a pipe, without their ends."""
    while source:
        try:
            line = await source.readline()
        except ValueError:  # a line that is longer than the buffer
            continue
        if not line:
            return
        yield line.decode(errors="replace").rstrip("\n")
