"""A job with one rank on each of the hosts that `hosts` makes: variables of its ranks, their end, what they send."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hosts import INTERFACE, address, inside

from hvdtrain.doctor.subprocesses import error_line
from hvdtrain.errors import TrainingError
from hvdtrain.jobs import gloo
from hvdtrain.measure.bench.strategies import environment
from hvdtrain.system import rank_info
from hvdtrain.system.files import last_bytes
from hvdtrain.system.processes import end_with_parent, signal_name
from hvdtrain.system.rank_info import RankInfo

MASTER_PORT, STORE_PORT = 29600, 29700
STORE = """
import time
from hvdtrain.jobs.gloo import Store
Store("", {port})
print("ready", flush=True)
time.sleep(1e6)
"""
POLL_S = 0.02
LOG_BYTES = 1 << 14
"""What is read of the end of a rank's output."""


class HostJob(NamedTuple):
    """A program, on each host once."""

    name: str
    command: Sequence[str]
    horovod: bool
    """Whether its ranks use Horovod, over Gloo."""
    folder: Path
    """For the output of its ranks."""
    limit_s: float = 900.0

    def run(self, spaces: Sequence[str], watch: Callable[[Ranks], None] = lambda _: None) -> None:
        """Run it to its end, and remove its output. watch: called all the time while it runs.

        Raises TrainingError, with the end of the output, if a rank fails; the others are killed then, and whenever
        anything else is raised meanwhile.
        """
        logs = [self.folder / f"{self.name}-{rank}.log" for rank in range(len(spaces))]
        token = secrets.token_hex(16)
        with contextlib.ExitStack() as stack:
            if self.horovod:
                stack.enter_context(_store(spaces[0], self.folder / f"{self.name}-store.log"))
            processes = []
            for rank, (space, log) in enumerate(zip(spaces, logs, strict=True)):
                variables = _variables(rank, len(spaces), token)
                processes.append(stack.enter_context(_running([*inside(space), *self.command], variables, log)))
            self._wait(Ranks(processes, logs), watch)
        for log in logs:
            log.unlink(missing_ok=True)

    def _wait(self, ranks: Ranks, watch: Callable[[Ranks], None]) -> None:
        ends = time.monotonic() + self.limit_s
        while not ranks.have_ended(self.name):
            if time.monotonic() > ends:
                raise TrainingError(f"{self.name}: no end within {self.limit_s:g} s; its output is in {self.folder}")
            watch(ranks)
            time.sleep(POLL_S)


class Ranks(NamedTuple):
    """The processes of a job that runs, and the files of their output."""

    processes: list[subprocess.Popen[bytes]]
    logs: list[Path]

    def have_ended(self, name: str) -> bool:
        """Whether all have ended without an error. Raises TrainingError if one has failed."""
        for rank, (process, log) in enumerate(zip(self.processes, self.logs, strict=True)):
            if status := process.poll():
                how = f"exit status {status}" if status > 0 else f"killed by {signal_name(-status)}"
                line = error_line(last_bytes(log, LOG_BYTES).decode(errors="replace"))
                raise TrainingError(f"{name}: rank {rank} failed ({how}): {line}; its output is in {log}")
        return all(process.poll() is not None for process in self.processes)

    def sent_bytes(self) -> int | None:
        """What all hosts have sent since they exist, with the headers of frames; None if a rank has ended."""
        total = 0
        for process in self.processes:
            try:
                lines = Path(f"/proc/{process.pid}/net/dev").read_text().splitlines()
                columns = next(line.split() for line in lines if line.strip().startswith(f"{INTERFACE}:"))
            except (OSError, StopIteration):  # it has ended, or is not on its host yet
                return None
            total += int(columns[9])
        return total


@contextlib.contextmanager
def _store(space: str, log: Path) -> Iterator[None]:
    """The rendezvous of Horovod's ranks, on the host of the first one."""
    command = [*inside(space), sys.executable, "-c", STORE.format(port=STORE_PORT)]
    with _running(command, environment(), log) as process:
        while not log.read_text().startswith("ready"):
            if process.poll() is not None:
                line = error_line(log.read_text())
                raise TrainingError(f"the rendezvous of Horovod's ranks cannot be started: {line}")
            time.sleep(POLL_S)
        yield
    log.unlink(missing_ok=True)


@contextlib.contextmanager
def _running(command: Sequence[str], variables: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes to a log, and is killed at the end, or with this process."""
    with open(log, "w") as file:
        process = subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _variables(rank: int, size: int, token: str) -> dict[str, str]:
    """Those by which a rank knows its place, as launchers set them, also for Horovod."""
    place = dict(zip(rank_info.VARIABLES[rank_info.LAUNCH], map(str, (rank, size, 0)), strict=True))
    master = {rank_info.ADDRESS: address(0), rank_info.PORT: str(MASTER_PORT), rank_info.TOKEN: token}
    known = RankInfo(rank_info.LAUNCH, rank, size, 0)
    horovod = gloo.environment(known, gloo.Layout(1, rank, size), address(0), STORE_PORT)
    own = {"HOROVOD_HOSTNAME": f"host{rank}", "GLOO_SOCKET_IFNAME": INTERFACE, "HOROVOD_GLOO_IFACE": INTERFACE}
    return {**environment(), **place, **master, **horovod, **own}
