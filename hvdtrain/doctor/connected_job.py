"""The ranks of a job, connected for the doctor.

They connect over hvdtrain's own ring, which depends on neither Horovod nor MPI. Ranks learn where rank 0 listens from
the launcher's variables, from the store of `horovodrun --gloo`, or, under mpirun, from MPI in a helper process.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hvdtrain.doctor.findings import Finding, fail, ok, warn
from hvdtrain.doctor.mpi_helper import MpiHelper
from hvdtrain.doctor.remedies import wrong_size
from hvdtrain.doctor.rendezvous import RENDEZVOUS_S, Rendezvous, from_gloo_store
from hvdtrain.errors import HvdtrainError
from hvdtrain.system import credentials, rank_info

if TYPE_CHECKING:  # it imports NumPy, which may be what is broken
    from hvdtrain.collectives.ring import RingGroup


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
            return from_gloo_store(self._rank)
        if launcher not in ("mpirun", "mpiexec"):
            host, port = rank_info.rendezvous()
            token = rank_info.token() or credentials.token_of_one_host(self._rank, (host, port))
            if not token:
                self.findings.append(without_token(launcher))
            return Rendezvous(host, port, token)
        self.mpi_helper = MpiHelper(self._helper_limit_s)
        deadline = time.monotonic() + RENDEZVOUS_S
        size = self.mpi_helper.size(deadline)
        if size != self._rank.size:
            self.findings.append(wrong_size(f"{launcher} (mpi4py)", self._rank.size, size, gloo=False))
            raise OSError(f"MPI sees {size} of {self._rank.size} processes")
        return self.mpi_helper.rendezvous(deadline)

    @property
    def local_ranks(self) -> int:
        """Number of ranks on this host."""
        return self.hosts.count(self._host) if self.connected else rank_info.local_size()

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order; all ranks must call it. Raises HvdtrainError."""
        assert self._ring
        return self._ring.gather(value)

    def disconnect(self) -> None:
        """Close the connections after a failure, so that the neighbors notice."""
        self._ring = None

    def close(self) -> None:
        """End the helper process and leave the ring in order."""
        if self.mpi_helper:
            self.mpi_helper.close()
        if self._ring:
            with suppress(HvdtrainError, OSError):
                self._ring.close()


def without_token(launcher: str) -> Finding:
    """The finding that anyone on the network can take part in this exchange."""
    return warn(
        f"{launcher} set no {rank_info.TOKEN}, so ranks on several hosts cannot recognize each other; strategies that "
        "use hvdtrain's ring do not start",
        f"start by python -m hvdtrain launch, or set {rank_info.TOKEN_FILE} on all ranks",
    )


def cannot_exchange(error: BaseException) -> Finding:
    """The finding that ranks cannot exchange findings, and why."""
    reason, remedy = (error.reason, error.remedy) if isinstance(error, HvdtrainError) else (str(error), "")
    text = f"the ranks cannot exchange their findings, so these are rank 0's only ({reason})"
    usual = "allow TCP between the ranks in the hosts' firewalls, and see the checks interfaces and host-name"
    return fail(text, f"{remedy}; {usual}" if remedy else usual)
