"""The processes of a job on this host: launchers such as mpirun, or with `launch local` the agents of the ranks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping

from hvdtrain.errors import UserError
from hvdtrain.jobs import hosts
from hvdtrain.jobs.agent import GRACE_S
from hvdtrain.jobs.agents import MAX_STRANGERS, LineOutput
from hvdtrain.jobs.console import Console
from hvdtrain.jobs.event_loop import in_thread, start_task
from hvdtrain.jobs.job import CONTROL_VARIABLES, Job, LaunchSpec, inherited, passed_on, remote_script
from hvdtrain.system import credentials, rank_info, resources
from hvdtrain.system.processes import adopt_orphans, end_descendants, start_remedy
from hvdtrain.system.run_end import LAST_LINES

LEAVE_S = 1.0
"""How long a launcher may take to end after its ranks have ended."""
RETIRE_S = GRACE_S + 1.0
"""How long the process of a lost rank may take to end, while the job goes on."""
OWN_FILES = 32
"""Files that the launcher opens beyond those for each rank."""
READ_BYTES = 1 << 16
AGENT_VARIABLE = rank_info.VARIABLES[rank_info.LAUNCH][0]
"""Agents set it for their programs."""


class JobProcesses:
    """Starts the processes of a job, and ends them.

    variables: of the process that launches. hidden: whether what they print themselves is not shown. on_end: called
    with each that ends, and its status.
    """

    def __init__(
        self,
        job: Job,
        variables: Mapping[str, str],
        console: Console,
        hidden: Callable[[], bool],
        on_end: Callable[[LauncherProcess, int], None],
    ) -> None:
        self._job, self._console = job, console
        self._environment, _ = inherited(job, variables)
        self._hidden, self._on_end = hidden, on_end
        self.token, self._variables_file = secrets.token_hex(16), ""
        """The token is of this job, for its agents."""
        self._processes: list[LauncherProcess] = []
        self._tasks: list[asyncio.Task[None]] = []

    def prepare(self, address: str) -> None:
        """Get ready for `start_one`. address: the supervisor's, as agents look for it."""
        resources.allow_files(_files(self._job), self._job.max_ranks + MAX_STRANGERS)
        adopt_orphans()
        self.control = dict(zip(CONTROL_VARIABLES, (address, self.token, self._job.launcher), strict=True))

    async def start_one(self, spec: LaunchSpec, quiet: bool = False) -> LauncherProcess:
        """Start a process. quiet: what it prints itself is not shown. Raises UserError if it cannot be started."""
        environment = {**self._environment, **spec.variables, **self.control}
        if spec.shows_variables:
            environment = await self._without_credentials(environment)
        process = await LauncherProcess.start(self._job.launcher, spec, environment)
        self._processes.append(process)
        self._tasks.append(start_task(self._watch(process, (lambda: True) if quiet else self._hidden)))
        return process

    async def retire(self, process: LauncherProcess) -> None:
        """The job goes on without it: kill it, unless it ends by itself as its rank does."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), RETIRE_S)
        process.signal_group(signal.SIGKILL)
        await process.wait()
        self._processes.remove(process)

    async def _watch(self, process: LauncherProcess, hidden: Callable[[], bool]) -> None:
        status = await process.show_output(self._console, hidden)
        await asyncio.sleep(0.2)  # for the last messages of its ranks
        self._on_end(process, status)

    async def _without_credentials(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The variables with a file in place of those that hold credentials, and of the user's own."""
        public = {name: value for name, value in passed_on(environment).items() if not credentials.holds(name, value)}
        private = {name: value for name, value in environment.items() if name not in public}
        others = hosts.other_hosts(self._job.hosts)
        self._variables_file = await in_thread(hosts.distribute_variables, others, private)
        return {**public, hosts.VARIABLES_FILE: self._variables_file}

    def all_registered(self) -> None:
        """All agents have read their credentials: remove the file."""
        self._tasks.append(start_task(self._remove_credentials()))

    async def _remove_credentials(self) -> None:
        path, self._variables_file = self._variables_file, ""
        if path:
            await in_thread(hosts.remove_variables, path)

    async def end(self, by_itself: bool) -> None:
        """Leave no process behind: what still runs gets SIGTERM, then SIGKILL. by_itself: the ranks have ended well."""
        began = time.monotonic()
        for number, wait_s in ((0, LEAVE_S if by_itself else 0.2), (signal.SIGTERM, GRACE_S), (signal.SIGKILL, 5)):
            for process in self._processes:
                if number:
                    process.signal_group(number)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.gather(*(running.wait() for running in self._processes)), wait_s)
                break
        if self._tasks:  # of which errors go to the event loop's handler
            _, late = await asyncio.wait(self._tasks, timeout=max(1 - (time.monotonic() - began), 0.1))
            for task in late:
                task.cancel()
        await self._remove_credentials()
        # What the programs of killed agents have left; not what an ssh of the launcher has left for the next ssh.
        await in_thread(end_descendants, AGENT_VARIABLE if self._job.hosts else "")


def _files(job: Job) -> int:
    """How many files the launcher opens: for each rank its connections, its --output-dir and the pipes of its agent."""
    own_process = job.launcher == "local" or job.survives
    return OWN_FILES + job.max_ranks * (2 + (2 if job.output_dir else 0) + (3 if own_process else 0))


class LauncherProcess:
    """A launcher such as mpirun, or with `launch local` the agent of one rank."""

    def __init__(self, process: asyncio.subprocess.Process, launcher: str, rank: int | None) -> None:
        self._process, self.rank = process, rank
        self.name = launcher if rank is None else f"rank {rank}"
        self._label = f"[{launcher if rank is None else rank}] "
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)

    @classmethod
    async def start(cls, launcher: str, spec: LaunchSpec, environment: Mapping[str, str]) -> LauncherProcess:
        output = None if spec.on_terminal else asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *spec.command,
                env=os.environ if spec.remote else environment,
                stdin=asyncio.subprocess.PIPE if spec.remote else asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=resources.restore_files,
                start_new_session=True,  # Ctrl-C goes to the supervisor, which forwards it to the ranks
            )
        except OSError as error:
            raise UserError(f"{spec.command[0]} cannot be started ({error.strerror})", start_remedy(error)) from None
        if process.stdin:
            process.stdin.write(remote_script(spec.remote, environment))
            process.stdin.close()
        return cls(process, launcher, spec.rank)

    async def show_output(self, console: Console, hidden: Callable[[], bool]) -> int:
        """Print what the process itself prints, except while `hidden`; its exit status when it has ended."""
        output = LineOutput(self._label, console, self.last_lines, hidden)

        async def copy(stream: str, source: asyncio.StreamReader | None) -> None:
            while source and (data := await source.read(READ_BYTES)):
                output.write(stream, data)
                await console.room(lambda: not hidden())

        await asyncio.gather(copy("stdout", self._process.stdout), copy("stderr", self._process.stderr))
        output.close()
        return await self._process.wait()

    async def wait(self) -> int:
        return await self._process.wait()

    def signal_group(self, number: int) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
