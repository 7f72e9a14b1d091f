"""The ranks of a job, connected for the doctor.

They connect over hvdtrain's own ring, which depends on neither Horovod nor MPI. Ranks learn where rank 0 listens from
the launcher's variables, from the store of `horovodrun --gloo`, or, under mpirun, from MPI in a helper process.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from hvdtrain.doctor import subprocesses
from hvdtrain.doctor.check import Finding, fail, ok, warn
from hvdtrain.errors import HvdtrainError
from hvdtrain.system import credentials, rank_info, stacks
from hvdtrain.system.network import free_port
from hvdtrain.system.processes import end_with_parent

if TYPE_CHECKING:  # NumPy may be what is broken
    import numpy as np

    from hvdtrain.collectives.ring import RingGroup

MAX_ANSWER_BYTES = 1 << 16
RENDEZVOUS_S = 30
"""Time within which the ranks must connect."""
POLL_S = 0.05
DAEMON = "OMPI_MCA_orte_hnp_uri"
"""Variable in which Open MPI passes the address of mpirun's daemon to the ranks."""


class ConnectedJob:
    """This rank's connection to the other ranks of its job.

    helper_limit_s: seconds that a process may take that runs MPI for this rank.
    timeout_s: seconds after which a silent neighbor counts as lost.
    connected: False if the ranks could not connect, or lost each other.
    hosts: each rank's host; only this one's while not connected.
    findings: what there is to report about connecting.
    """

    def __init__(self, rank: rank_info.RankInfo, host: str, helper_limit_s: float, timeout_s: float) -> None:
        self._rank, self._host, self._helper_limit_s = rank, host, helper_limit_s
        self._ring: RingGroup | None = None
        self.hosts = [host]
        self.findings: list[Finding] = []
        self.mpi_helper: MpiHelper | None = None
        try:
            self._connect(timeout_s)
        except Exception as error:  # whatever it is, rank 0 must still report its own findings
            self.findings.append(cannot_exchange(error))

    @property
    def connected(self) -> bool:
        return self._ring is not None

    def _connect(self, timeout_s: float) -> None:
        host, port, token = self._rendezvous()
        from hvdtrain.collectives.ring import RingGroup

        began = time.monotonic()
        self._ring = RingGroup(self._rank, (host, port), token, start_timeout_s=RENDEZVOUS_S, timeout_s=timeout_s)
        self.hosts = self._ring.gather(self._host)
        ranks = f"{self._rank.size} ranks on {len(set(self.hosts))} host(s), started by {self._rank.launcher}"
        seconds = time.monotonic() - began
        self.findings.append(ok(f"{ranks}, reach each other over TCP (connected in {seconds:.1f} s)"))

    def _rendezvous(self) -> Rendezvous:
        launcher = self._rank.launcher
        if launcher == "horovodrun":
            return _from_gloo_store(self._rank.rank)
        if launcher in ("mpirun", "mpiexec"):
            return self._from_mpi()
        host, port = rank_info.rendezvous()
        token = rank_info.token() or credentials.token_of_one_host(self._rank, (host, port))
        if not token:
            text = (
                f"{launcher} set no {rank_info.TOKEN}, so ranks on several hosts cannot recognize each other; "
                "strategies that use hvdtrain's ring do not start"
            )
            remedy = f"start by python -m hvdtrain launch, or set {rank_info.TOKEN_FILE} on all ranks"
            self.findings.append(warn(text, remedy))
        return Rendezvous(host, port, token)

    def _from_mpi(self) -> Rendezvous:
        self.mpi_helper = MpiHelper(self._helper_limit_s)
        deadline = time.monotonic() + RENDEZVOUS_S
        size = self.mpi_helper.expect("mpi_size", deadline)
        if size != self._rank.size:
            finding = wrong_size(f"{self._rank.launcher} (mpi4py)", self._rank.size, size, gloo=False)
            self.findings.append(finding)
            raise OSError(f"MPI sees {size} of {self._rank.size} processes")
        return Rendezvous(*json.loads(self.mpi_helper.expect("address", deadline)))

    @property
    def local_ranks(self) -> int:
        return self.hosts.count(self._host) if self.connected else rank_info.local_size()

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order; all ranks must call it. Raises HvdtrainError."""
        assert self._ring
        return self._ring.gather(value)

    def allreduce(self, values: np.ndarray) -> None:
        """Sum `values`, float32 (n,), over all ranks, in place; all ranks must call it. Raises HvdtrainError."""
        assert self._ring
        self._ring.allreduce(values)

    def disconnect(self) -> None:
        """Close the connections after a failure, so that the neighbors notice."""
        self._ring = None

    def close(self) -> None:
        if self.mpi_helper:
            self.mpi_helper.close()
        if self._ring:
            with suppress(HvdtrainError, OSError):
                self._ring.close()


def cannot_exchange(error: BaseException) -> Finding:
    """The finding that ranks cannot exchange findings, and why."""
    reason, remedy = (error.reason, error.remedy) if isinstance(error, HvdtrainError) else (str(error), "")
    text = f"the ranks cannot exchange their findings, so these are rank 0's only ({reason})"
    usual = "allow TCP between the ranks in the hosts' firewalls, and see the checks interfaces and host-name"
    return fail(text, f"{remedy}; {usual}" if remedy else usual)


def wrong_size(launcher: str, expected: int, size: int, gloo: bool) -> Finding:
    """Horovod does not see all processes of the launcher. gloo: they should connect over Gloo, else over MPI."""
    each = "every process is rank 0 and would train alone" if size == 1 else f"Horovod sees {size}"
    builds = "Gloo" if gloo else "MPI; use the mpirun of the MPI that it was built with"
    remedy = (
        "unset HOROVOD_CONTROLLER and HOROVOD_CPU_OPERATIONS; see horovodrun --check-build: "
        f"{stacks.repair_command()} builds Horovod with {builds}"
    )
    if launcher.endswith("srun") and not gloo:
        remedy = "python -m hvdtrain launch srun, which uses Gloo; or srun --mpi=pmix, if the site's MPI supports it"
    return fail(f"{launcher} started {expected} processes, but {each}", remedy)


class Rendezvous(NamedTuple):
    """Where rank 0 listens, and the token that only this job's ranks know."""

    host: str
    port: int
    token: str


def _offer(towards: str) -> Rendezvous:
    """A free port of this process and a new token.

    towards: an address on the network of the other hosts; empty for that of the default route.
    """
    address = "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unconnected, suppress(OSError):
        unconnected.connect((towards or "192.0.2.1", 9))  # nothing is sent
        address = str(unconnected.getsockname()[0])
    return Rendezvous(address, free_port(""), secrets.token_hex(16))


def _from_gloo_store(rank: int) -> Rendezvous:
    """Exchange the rendezvous over the HTTP store of `horovodrun --gloo`. Raises OSError."""
    import urllib.error
    import urllib.request

    host, port = (os.environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{what}", "") for what in ("ADDR", "PORT"))
    if not host:
        raise OSError("horovodrun did not set HOROVOD_GLOO_RENDEZVOUS_ADDR, the address of its store")
    url = f"http://{host}:{port}/hvdtrain-doctor/address"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the store is not behind a proxy
    if rank == 0:
        offer = _offer(host)
        opener.open(urllib.request.Request(url, json.dumps(offer).encode(), method="PUT"), timeout=10).close()
        return offer
    deadline = time.monotonic() + RENDEZVOUS_S
    while True:
        try:
            with opener.open(url, timeout=10) as answer:
                return Rendezvous(*json.loads(answer.read(MAX_ANSWER_BYTES)))
        except urllib.error.HTTPError as error:
            if error.code != 404 or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class MpiHelper:
    """A subprocess of this rank that initializes MPI, under mpirun.

    A separate process, because MPI may crash or hang; only one, because Open MPI lets each rank initialize MPI once.
    First it broadcasts rank 0's rendezvous, then it tries Horovod with the framework that `start_collective` names.
    """

    def __init__(self, limit_s: float) -> None:
        # The address by which Open MPI's own daemons reach the host of mpirun.
        daemon = re.search(r"tcp://([0-9.]+)", os.environ.get(DAEMON, ""))
        rendezvous = _offer(daemon.group(1) if daemon else "")
        command = subprocesses.probe_command("mpi", json.dumps(rendezvous), limit_s=limit_s)
        self._out, self._err = subprocesses.output_file(), subprocesses.output_file()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self._out, stderr=self._err, preexec_fn=end_with_parent
        )

    def wait_for(self, key: str, deadline: float) -> Any:
        """The value of this key in its messages; None if it ends, or the deadline passes, without one."""
        ended = False
        while not ended and time.monotonic() < deadline:
            ended = self._process.poll() is not None  # before its messages are read, so that none is missed
            if key in (values := self.values):
                return values[key]
            time.sleep(0 if ended else POLL_S)
        return None

    @property
    def values(self) -> dict[str, Any]:
        return subprocesses.merged_messages(subprocesses.content(self._out))

    def expect(self, key: str, deadline: float) -> Any:
        """The value of this key in its messages. Raises OSError if there is none before the deadline."""
        value = self.wait_for(key, deadline)
        if value is None:
            raise OSError(f"mpi4py cannot initialize MPI: {self.reason()}")
        return value

    def start_collective(self, framework: str) -> None:
        """Have it run Horovod's allreduce through a framework, or exit if the name is empty."""
        assert self._process.stdin
        with suppress(OSError, ValueError):  # it has ended, or was asked before
            self._process.stdin.write(f"{framework}\n".encode())
            self._process.stdin.close()

    def reason(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        error = subprocesses.content(self._err)
        return subprocesses.Completed(self._process.poll(), "", error, RENDEZVOUS_S).reason()

    def close(self) -> None:
        self.start_collective("")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
            return
        subprocesses.end(self._process)
