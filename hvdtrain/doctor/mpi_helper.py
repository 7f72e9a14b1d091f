"""A process next to each rank that runs MPI for the doctor."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import time
from contextlib import suppress
from typing import Any

from hvdtrain.doctor import subprocesses
from hvdtrain.doctor.rendezvous import RENDEZVOUS_S, Rendezvous, offer
from hvdtrain.system.processes import end_with_parent

DAEMON = "OMPI_MCA_orte_hnp_uri"
"""Variable in which Open MPI passes the address of mpirun's daemon to the ranks."""


class MpiHelper:
    """A subprocess of this rank that initializes MPI, under mpirun.

    A separate process, because MPI may crash or hang; only one, because Open MPI lets each rank initialize MPI once.
    First it broadcasts rank 0's rendezvous, then it tries Horovod with the framework that `start_collective` names.
    """

    def __init__(self, limit_s: float) -> None:
        # The address by which Open MPI's own daemons reach the host of mpirun.
        daemon = re.search(r"tcp://([0-9.]+)", os.environ.get(DAEMON, ""))
        rendezvous = offer(daemon.group(1) if daemon else "")
        command = subprocesses.probe_command("mpi", json.dumps(rendezvous), limit_s=limit_s)
        self._err = os.memfd_create("err")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._err, preexec_fn=end_with_parent
        )
        self._output = b""

    def wait_for(self, key: str, deadline: float) -> dict[str, Any]:
        """Its first message with this key; empty if it ends, or the deadline passes, without one."""
        assert self._process.stdout
        while time.monotonic() < deadline:
            for message in self.messages():
                if key in message:
                    return message
            if not select.select([self._process.stdout], [], [], 0.2)[0]:
                continue
            received = os.read(self._process.stdout.fileno(), 1 << 16)
            if not received:
                break
            self._output += received
        return {}

    def messages(self) -> list[dict[str, Any]]:
        """All messages so far."""
        return subprocesses.read_messages(self._output.decode(errors="replace"))

    def size(self, deadline: float) -> int:
        """The number of ranks that MPI sees. Raises OSError if MPI does not start."""
        return int(self._expect("mpi_size", deadline)["mpi_size"])

    def rendezvous(self, deadline: float) -> Rendezvous:
        """Rank 0's rendezvous, from MPI's broadcast. Raises OSError if it does not arrive."""
        return Rendezvous(*json.loads(self._expect("address", deadline)["address"]))

    def _expect(self, key: str, deadline: float) -> dict[str, Any]:
        message = self.wait_for(key, deadline)
        if not message:
            raise OSError(f"mpi4py cannot initialize MPI: {self.reason()}")
        return message

    def start_collective(self, framework: str) -> None:
        """Have it run Horovod's allreduce through a framework, or exit if the name is empty."""
        assert self._process.stdin
        with suppress(OSError, ValueError):  # it has ended, or was asked before
            self._process.stdin.write(f"{framework}\n".encode())
            self._process.stdin.close()

    def reason(self) -> str:
        """Why it failed."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        error = os.pread(self._err, 1 << 20, 0).decode(errors="replace")
        return subprocesses.Completed(self._process.poll(), "", error, RENDEZVOUS_S).reason()

    def close(self) -> None:
        """Have it exit, or end it after 5 s."""
        self.start_collective("")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
            return
        subprocesses.end(self._process)
