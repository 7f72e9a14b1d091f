"""Starts the ranks of a job. Imports no framework, and NumPy neither: it is up at once."""

from __future__ import annotations

import argparse
import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from types import FrameType

from hvdtrain import environ
from hvdtrain.errors import HvdtrainError, UserError

GRACE_S = 5.0
"""How long ranks may take to end after SIGTERM, before SIGKILL."""
STOP_S = 60.0
"""How long a job that was told to end may take for its last checkpoint."""
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(argv: list[str]) -> None:
    """python -m hvdtrain launch local; ends the process with the job's exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m hvdtrain launch", description="Start the ranks of a job, for strategies that need no Horovod."
    )
    commands = parser.add_subparsers(dest="launcher", required=True)
    local = commands.add_parser("local", help="all ranks on this machine", allow_abbrev=False)
    local.add_argument("-n", "--ranks", type=int, required=True, metavar="N", help="number of ranks")
    local.add_argument("program", nargs=argparse.REMAINDER, help="program and its options, after --")
    options = parser.parse_args(argv)
    words = options.program[1:] if options.program[:1] == ["--"] else options.program
    try:
        if options.ranks < 1:
            raise UserError(f"-n {options.ranks}: give 1 or more")
        if not words:
            raise UserError(
                "no program to start: python -m hvdtrain launch local -n 2 -- python -m hvdtrain.torch_lenet"
            )
        sys.exit(Local(words, options.ranks).run())
    except HvdtrainError as error:
        print(f"hvdtrain: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


def mpirun(ranks: int) -> list[str]:
    """Words that start this many ranks on this machine by Open MPI, however many cores it has.

    Ranks are not bound, so that a framework's threads have other cores too, and yield while they wait, where Open MPI
    spins otherwise.
    """
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    polite = ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    return ["mpirun", *as_root, "-np", str(ranks), *polite]


class Local:
    """The ranks of a job on this machine, each a process of `words`."""

    def __init__(self, words: list[str], ranks: int) -> None:
        self._words, self._ranks = words, ranks
        self._processes: list[subprocess.Popen[bytes]] = []
        self._deadline = float("inf")

    def run(self) -> int:
        """Start all ranks and wait; returns the status of the first rank that failed, else 0.

        When one rank fails or a signal comes, the others are ended too. Raises UserError where the program cannot be
        started.
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._heard)
        try:
            self._start()
            return self._wait()
        finally:
            self._end()

    def _start(self) -> None:
        port, token = free_port(), secrets.token_hex(16)
        for rank in range(self._ranks):
            place = dict(zip(environ.VARIABLES["launch local"], map(str, (rank, self._ranks, rank)), strict=True))
            torch = dict(zip(environ.VARIABLES["torchrun"], place.values(), strict=True))
            meeting = {environ.ADDRESS: "127.0.0.1", environ.PORT: str(port), environ.TOKEN: token}
            threads = {"OMP_NUM_THREADS": str(max(len(os.sched_getaffinity(0)) // self._ranks, 1))}
            environment = {**threads, **os.environ, **place, **torch, **meeting}
            try:
                self._processes.append(subprocess.Popen(self._words, env=environment, preexec_fn=end_with_parent))
            except OSError as error:
                raise UserError(f"{self._words[0]} cannot be started ({error.strerror}); is it on PATH?") from None

    def _wait(self) -> int:
        """Wait until all ranks ended well or one did not."""
        running = set(range(self._ranks))
        while running:
            for rank in sorted(running):
                status = self._processes[rank].poll()
                if status is None:
                    continue
                running.remove(rank)
                if status:
                    return self._explain(rank, status)
            if time.monotonic() > self._deadline:
                print(f"hvdtrain: ranks still run {STOP_S:.0f} s after they were told to end", file=sys.stderr)
                return 128 + signal.SIGKILL
            time.sleep(0.02)
        return 0

    def _explain(self, rank: int, status: int) -> int:
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
        print(f"hvdtrain: rank {rank} {how}; ending the others", file=sys.stderr)
        return 128 - status if status < 0 else status

    def _heard(self, number: int, _: FrameType | None) -> None:
        """Tell the ranks. What they do is theirs, but a program that does not end at all is ended."""
        if number != signal.SIGUSR1:
            self._deadline = min(self._deadline, time.monotonic() + STOP_S)
        self._forward(number)

    def _forward(self, number: int) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)

    def _end(self) -> None:
        """End the ranks that still run: asked first, then made to."""
        self._forward(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and any(process.poll() is None for process in self._processes):
            time.sleep(0.02)
        self._forward(signal.SIGKILL)
        for process in self._processes:
            process.wait()


def end_with_parent() -> None:
    """Have the kernel kill this process when the launcher dies, whatever it dies of (Linux)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port() -> int:
    """A port that is free on the loopback interface together with the one above it (see `environ.rendezvous`)."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = first.getsockname()[1]
            try:
                with socket.create_server(("127.0.0.1", port + 1)):
                    return port
            except OSError:
                continue
