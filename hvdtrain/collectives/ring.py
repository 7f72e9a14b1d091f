"""Ring allreduce over TCP, written with NumPy arrays and sockets only.

Each rank sends to the next rank and receives from the previous one. An allreduce of n bytes over p ranks cuts the array
into p parts and has two phases (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of
workstations, 2009):

1. Reduce-scatter, p - 1 steps: send one part, add the part that arrives; in the end each rank has the sum of one part.
2. Allgather, p - 1 steps: send the finished part, store the one that arrives.

Each rank sends 2 (p - 1) / p * n bytes, so the traffic per rank hardly depends on p. Each part is summed in one order
and then copied, so all ranks end with bit-identical sums.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hvdtrain.collectives.encoding import MESSAGE_BYTES, decode, encode
from hvdtrain.collectives.groups import SAME_CALLS, CommunicationTime
from hvdtrain.collectives.limits import LIBRARY_TIMEOUT_S
from hvdtrain.collectives.ring_rendezvous import connect_ranks
from hvdtrain.errors import PeerLost, TrainingError, UserError
from hvdtrain.system import credentials, rank_info
from hvdtrain.system.membership import Membership
from hvdtrain.system.network import PortReservation
from hvdtrain.system.phases import collective
from hvdtrain.system.processes import TICK_S, RunningLimit, RunningTime

CHUNK_BYTES = 1 << 18
"""Size of the pieces that are summed as they arrive: small enough to be in the processor's cache still."""
OPERATIONS = ("a sum", "an exchange of values", "a copy of arrays", "an exchange of parts")
"""What ranks do together, for the header of each and for messages."""
SILENCE_S = 1800.0
"""How long a rank may send nothing while this process runs. A job that hangs is ended by its watchdog before."""
TRY_AGAIN_S = 0.02
SILENCE_AFTER_HANG_S = 60.0
"""With a longer --hang-timeout: how long after it."""
HEADER = struct.Struct("3q40x")
"""Operation, bytes and type of the array. A cache line: data at other offsets would be copied at half the speed."""
NOTHING = np.empty(0, np.uint8)


class RingGroup(CommunicationTime):
    """The processes of a job in a ring: a `Group` with an `allreduce` for gradients.

    rank: this process's rank and size. address: where rank 0 listens until all ranks have connected; after that,
    rank 0 is a rank like the others. token: the job's secret. gives_up: see `RunningLimit`. Raises TrainingError if
    the ranks are not connected within `start_timeout_s`, or one dies or sends nothing for `timeout_s`.
    """

    def __init__(
        self,
        rank: rank_info.RankInfo,
        address: tuple[str, int],
        token: str = "",
        start_timeout_s: float = rank_info.START_TIMEOUT_S,
        timeout_s: float = SILENCE_S,
        gives_up: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__()
        self.rank, self.size, self.local_rank = rank.rank, rank.size, rank.local_rank
        self._timeout_s = timeout_s
        self._links: dict[int, socket.socket] = {}
        """Connections to the other ranks."""
        self._to = self._from = self.rank
        """The ranks of the present exchange."""
        self._reserved: list[PortReservation] = []
        self._scratch = np.empty(CHUNK_BYTES, np.uint8)
        if self.size > 1:
            with RunningLimit(start_timeout_s, gives_up) as limit:  # a job may be suspended for longer
                self._links = connect_ranks(rank, address, token, limit)

    def free_address(self) -> str:
        """host:port on the interface that the ring uses, where another server can listen; no other program gets it."""
        interface = next((link.getsockname()[0] for link in self._links.values()), "127.0.0.1")
        self._reserved.append(PortReservation(interface))
        return f"{interface}:{self._reserved[-1].port}"

    def allreduce(self, values: np.ndarray) -> None:
        rank, size = self.rank, self.size
        if size == 1:
            return
        cuts = [len(values) * i // size for i in range(size + 1)]
        parts = [values[a:b] for a, b in itertools.pairwise(cuts)]
        with self.communicating:
            header = _header(0, values)
            for step in range(size - 1):
                self._exchange(parts[(rank - step) % size], parts[(rank - step - 1) % size], add=True, header=header)
                header = b""
            for step in range(size - 1):
                self._exchange(parts[(rank - step + 1) % size], parts[(rank - step) % size], add=False)

    @collective
    def exchange(self, name: str, vector: np.ndarray, counts: list[int], lengths: list[int]) -> np.ndarray:
        received = np.empty(sum(lengths), vector.dtype)
        sent, parts = (np.split(of, np.cumsum(each)[:-1]) for of, each in ((vector, counts), (received, lengths)))
        parts[self.rank][:] = sent[self.rank]
        with self.communicating:
            for step in range(1, self.size):
                out, into = sent[(self.rank + step) % self.size], parts[(self.rank - step) % self.size]
                self._exchange(out, into, add=False, header=_header(3, out), theirs=_header(3, into), step=step)
        return received

    def _exchange(
        self, out: np.ndarray, into: np.ndarray, add: bool, header: bytes = b"", theirs: bytes = b"", step: int = 1
    ) -> None:
        """Send `out` so many ranks ahead while `into` arrives from as far behind; `add` adds to what `into` holds.

        header: what `_header` returns, in the first exchange of an operation. theirs: the one that has to arrive; by
        default the same.
        """
        self._to, self._from = (self.rank + step) % self.size, (self.rank - step) % self.size
        outgoing, arriving = out.view(np.uint8).data, memoryview(bytearray(len(header)))
        sent = received = -len(header)  # headers come first
        length = CHUNK_BYTES // into.itemsize * into.itemsize
        while sent < len(outgoing) or received < into.nbytes:
            start = max(received, 0) // length * length
            end = min(start + length, into.nbytes)
            chunk = into[start // into.itemsize : end // into.itemsize]
            target = self._scratch[: end - start] if add else chunk.view(np.uint8)
            moved = self._send(header, outgoing, sent)
            arrived = self._receive(arriving, target.data, received - start)
            if received < 0 <= received + arrived:
                self._check(theirs or header, arriving)
            sent, received = sent + moved, received + arrived
            if add and arrived and received == end:
                chunk += target.view(into.dtype)
            if not moved and not arrived:
                self._wait(writing=sent < len(outgoing), reading=received < into.nbytes)

    def _check(self, expected: bytes, arriving: memoryview) -> None:
        """Raise TrainingError unless the other rank has begun the same operation.

        A script that leaves its loop on one rank only is elsewhere: gradients would be read as something else.
        """
        if arriving != expected:
            raise TrainingError(
                f"rank {self._from} and rank {self.rank} are not at the same place of their program: rank {self._from} "
                f"begins {_described(arriving)}, rank {self.rank} expects {_described(expected)}",
                SAME_CALLS,
            )

    def _send(self, header: bytes, data: memoryview, done: int) -> int:
        """Send what follows the first `done` bytes of the data; below 0, that many bytes of the header come first."""
        try:
            if done < 0:
                return self._links[self._to].sendmsg((header[done:], data))
            return self._links[self._to].send(data[done:]) if done < len(data) else 0
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._lost(self._to, error) from None

    def _receive(self, header: memoryview, target: memoryview, done: int) -> int:
        """Receive what follows the first `done` bytes of the target, as `_send` sends it."""
        if done == len(target):
            return 0
        try:
            if done < 0:
                count = self._links[self._from].recvmsg_into((header[done:], target))[0]
            else:
                count = self._links[self._from].recv_into(target[done:])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._lost(self._from, error) from None
        if count == 0:
            raise self._lost(self._from, "it closed the connection")
        return count

    def _wait(self, writing: bool, reading: bool) -> None:
        waiter = select.poll()
        ahead, behind = self._links[self._to].fileno(), self._links[self._from].fileno()
        if reading:
            waiter.register(behind, select.POLLIN)
        # The rank ahead is watched even if there is nothing to send to it, so that its end is noticed at once.
        both = select.POLLIN if reading and ahead == behind else 0  # of two ranks, replaces the one before
        waiter.register(ahead, both | (select.POLLOUT if writing else 0) | select.POLLRDHUP)
        clock = RunningTime()  # a job may be suspended for longer than the limit
        while not (events := dict(waiter.poll(min(TICK_S, self._timeout_s) * 1000))):
            clock.tick()
            if clock.seconds >= self._timeout_s:
                raise self._lost(self._from if reading else self._to, f"no data for {self._timeout_s:g} s")
        has_data = reading and events.get(behind, 0) & select.POLLIN  # it may say why the rank ends
        if not has_data and events.get(ahead, 0) & (select.POLLRDHUP | select.POLLHUP | select.POLLERR):
            raise self._lost(self._to, "it closed the connection")

    def _lost(self, rank: int, why: object) -> PeerLost:
        try:
            host = self._links[rank].getpeername()[0]
        except OSError:
            host = "its host"
        return PeerLost(f"lost rank {rank} on {host} ({why})", "see its log")

    @collective
    def gather(self, value: Any) -> list[Any]:
        rank, size = self.rank, self.size
        packed = [b""] * size
        packed[rank] = encode(value)
        header = _header(1)
        for step in range(size - 1):
            packed[(rank - step - 1) % size] = self._exchange_bytes(packed[(rank - step) % size], header)
            header = b""
        return [decode(message) for message in packed]

    def _exchange_bytes(self, out: bytes, header: bytes) -> bytes:
        """Send bytes to the next rank; returns those of the previous rank, which may differ in length."""
        length = np.empty(1, np.int64)
        self._exchange(np.array([len(out)], np.int64), length, add=False, header=header)
        if not 0 <= length[0] <= MESSAGE_BYTES:
            raise self._lost(self._from, f"it sends {length[0]} bytes, more than a rank sends")
        into = np.empty(int(length[0]), np.uint8)
        self._exchange(np.frombuffer(out, np.uint8), into, add=False)
        return into.tobytes()

    @collective
    def broadcast_bytes(self, values: np.ndarray, root: int) -> None:
        header = _header(2, values)
        if self.rank != root:
            self._exchange(NOTHING, values, add=False, header=header)
            header = b""
        if (self.rank + 1) % self.size != root:
            self._exchange(values, NOTHING, add=False, header=header)

    @collective
    def close(self) -> None:
        if self.size > 1:
            with contextlib.suppress(PeerLost):  # another rank may have passed this barrier and exited already
                self.gather(None)  # a barrier: no rank closes a connection that another still uses
            self.disconnect()

    def abort(self) -> None:
        for link in self._links.values():
            with contextlib.suppress(OSError):  # the other rank has closed it
                link.shutdown(socket.SHUT_RDWR)

    def disconnect(self) -> None:
        for link in self._links.values():
            link.close()


def _header(operation: int, values: np.ndarray = NOTHING) -> bytes:
    """What announces one of OPERATIONS on an array: the same on every rank."""
    return HEADER.pack(operation, values.nbytes, ord(values.dtype.char))


def _described(header: bytes | memoryview) -> str:
    operation, size, _ = HEADER.unpack(header)
    name = OPERATIONS[operation] if 0 <= operation < len(OPERATIONS) else "what no rank sends"
    return f"{name} of {size} bytes" if size else name


def connect(membership: Membership, position: int, is_superseded: Callable[[], bool]) -> RingGroup:
    """The ring of a membership. Raises TrainingError if there is a newer one before all members have connected."""
    first, local = membership.members[0], membership.members[position]
    rank = rank_info.RankInfo(rank_info.LAUNCH, position, len(membership.members), local.local_rank)
    # Members that still connect to the ring before have another token, and are not taken for members of this one.
    token = f"{rank_info.token()} {membership.number}"
    while True:
        try:
            address = first.address, first.port
            return RingGroup(rank, address, token, LIBRARY_TIMEOUT_S, LIBRARY_TIMEOUT_S, is_superseded)
        except TrainingError:  # others may not have left the ring before, whose first rank listened at the same port
            if is_superseded():
                raise
            time.sleep(TRY_AGAIN_S)


def start(hang_timeout_s: float = 0) -> RingGroup:
    """The ring of this job, at the address that its launcher gives.

    hang_timeout_s: --hang-timeout, which the ring outlasts. Raises UserError if there is no address, or if ranks on
    several hosts have no token to recognize each other by.
    """
    launched = rank_info.detect()
    if launched.size == 1:
        return RingGroup(launched, ("", 0))
    address = rank_info.rendezvous()
    token = rank_info.token() or credentials.token_of_one_host(launched, address)
    if not token:
        raise UserError(
            f"{launched.launcher} set no {rank_info.TOKEN}, and {address[0]} is not loopback, so other programs on the "
            "network could join the job",
            f"start by python -m hvdtrain launch, or set {rank_info.TOKEN} to the same random text on all ranks",
        )
    silence_s = max(SILENCE_S, hang_timeout_s + SILENCE_AFTER_HANG_S)
    return RingGroup(launched, address, token, rank_info.start_timeout_s(), silence_s)
