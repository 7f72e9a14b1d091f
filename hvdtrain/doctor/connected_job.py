"""The ranks of a job, connected for the doctor.

They connect over hvdtrain's own ring, which depends on neither Horovod nor MPI. Ranks learn where rank 0 listens from
the launcher's variables, from the store of `horovodrun --gloo`, or, under mpirun, from MPI in a subprocess.
"""

from __future__ import annotations

import copy
import json
import os
import re
import secrets
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hvdtrain.doctor.check import Finding, fail, ok, warn
from hvdtrain.doctor.checks.software import first_loadable
from hvdtrain.doctor.checks.variables import uses_gloo
from hvdtrain.doctor.context import CheckContext
from hvdtrain.doctor.subprocesses import RANK_LIMIT_S
from hvdtrain.errors import HvdtrainError
from hvdtrain.system import credentials, rank_info, stacks
from hvdtrain.system.network import free_port

if TYPE_CHECKING:  # NumPy may be what is broken
    from hvdtrain.collectives.ring import RingGroup

MAX_ANSWER_BYTES = 1 << 16
RENDEZVOUS_S = RANK_LIMIT_S
"""Time within which the ranks must connect."""
MPI_S = 90
"""Time within which a rank must have entered and left MPI: it waits for others, and mpirun fails if one is killed."""
Rendezvous = tuple[str, int, str]
"""Host and port where rank 0 listens, and the token that only this job's ranks know."""
NO_FRAMEWORK, NO_GLOO = "no framework", "no Gloo"
DAEMON = "OMPI_MCA_orte_hnp_uri"
"""Variable in which Open MPI passes the address of mpirun's daemon to the ranks."""


class ConnectedJob:
    """This rank's connection to the other ranks of its job.

    timeout_s: seconds after which a silent neighbor counts as lost.
    ring: None if the ranks could not connect, or are connected no more.
    hosts: each rank's host; only this one's if the ranks could not connect.
    findings: what there is to report about connecting.
    over_mpi: what the probe `mpi` reported, and `reason` if it failed; None where the ranks do not connect by MPI.
    """

    def __init__(self, context: CheckContext, timeout_s: float) -> None:
        self._context, self._rank = copy.copy(context), context.rank_info
        self.ring: RingGroup | None = None
        self.hosts, self.local_ranks = [context.host], rank_info.local_size()
        self.findings: list[Finding] = []
        self.over_mpi: dict[str, Any] | None = None
        try:
            self._connect(context.host, timeout_s)
        except Exception as error:  # whatever it is, rank 0 must still report its own findings
            self.disconnect(error)

    @property
    def late(self) -> str:
        """Why connecting may have failed on a busy machine only."""
        return self._context.late

    def _connect(self, host: str, timeout_s: float) -> None:
        address, port, token = self._rendezvous()
        from hvdtrain.collectives.ring import RingGroup

        began = time.monotonic()
        self.ring = RingGroup(self._rank, (address, port), token, start_timeout_s=RENDEZVOUS_S, timeout_s=timeout_s)
        self.hosts = self.ring.gather(host)
        self.local_ranks = self.hosts.count(host)
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
        return host, port, token

    def _from_mpi(self) -> Rendezvous:
        # The address by which Open MPI's own daemons reach the host of mpirun.
        daemon = re.search(r"tcp://([0-9.]+)", os.environ.get(DAEMON, ""))
        offer = json.dumps(_offer(daemon.group(1) if daemon else ""))
        name = horovod_framework(self._context)
        values, completed = self._context.probe("mpi", offer, name, limit_s=MPI_S)
        self.over_mpi = values if "end" in values else {**values, "reason": completed.reason()}
        if (size := values.get("mpi_size", self._rank.size)) != self._rank.size:
            launcher = f"{self._rank.launcher} (mpi4py)"
            self.findings.append(wrong_size(launcher, self._rank.size, size, gloo=False))
            raise OSError(f"MPI sees {size} of {self._rank.size} processes")
        if "rendezvous" not in values:
            raise OSError(f"mpi4py cannot initialize MPI: {completed.reason()}")
        host, port, token = json.loads(values["rendezvous"])
        return host, port, token

    def disconnect(self, error: Exception) -> None:
        """Close the connections, so that the neighbors notice, and report why."""
        self.ring = None
        reason, remedy = (error.reason, error.remedy) if isinstance(error, HvdtrainError) else (str(error), "")
        text = f"the ranks cannot exchange their findings, so these are rank 0's only ({reason})"
        usual = "allow TCP between the ranks in the hosts' firewalls, and see the checks interfaces and host-name"
        self.findings.append(fail(text, f"{remedy}; {usual}" if remedy else usual))

    def close(self) -> None:
        if self.ring:
            with suppress(HvdtrainError, OSError):
                self.ring.close()


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


def _offer(towards: str) -> Rendezvous:
    """A free port of this process and a new token.

    towards: an address on the network of the other hosts; empty for that of the default route.
    """
    address = "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unconnected, suppress(OSError):
        unconnected.connect((towards or "192.0.2.1", 9))  # nothing is sent
        address = str(unconnected.getsockname()[0])
    return address, free_port(""), secrets.token_hex(16)


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
                address, port, token = json.loads(answer.read(MAX_ANSWER_BYTES))
                return address, port, token
        except urllib.error.HTTPError as error:
            if error.code != 404 or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def horovod_framework(context: CheckContext) -> str:
    """The framework through which a job tries Horovod: one rank of each host says the first for which it loads.

    NO_FRAMEWORK if there is none, NO_GLOO if Horovod would crash and mpirun end the job with it; empty on other ranks.
    """
    if os.environ.get("HOROVOD_CONTROLLER", "").lower() == "gloo" and not uses_gloo():
        return NO_GLOO
    return "" if context.rank_info.local_rank else first_loadable(context) or NO_FRAMEWORK
