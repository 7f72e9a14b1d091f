"""Ring allreduce over TCP, from scratch: NumPy arrays, sockets, and nothing else.

Every rank talks to two neighbours only: it sends to the next rank and receives from the one before. An allreduce of n
bytes over p ranks cuts the array into p parts and goes round twice (Patarasuk and Yuan, Bandwidth optimal all-reduce
algorithms for clusters of workstations, 2009):

1. Reduce-scatter, p - 1 steps: send one part on, add the part that comes in. At the end each rank holds one part's sum.
2. All-gather, p - 1 steps: send the finished part on, keep the one that comes in.

Each rank sends 2 (p - 1) / p * n bytes, whatever p is. Each part is added up in one order and then copied, so all
ranks end with the same bits.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import itertools
import json
import pickle
import secrets
import select
import socket
import time
from typing import Any

import numpy as np

from hvdtrain.errors import TrainingError, UserError
from hvdtrain.system import rank_info
from hvdtrain.system.proof import proof

HELLO_TIMEOUT_S = 5  # within which a caller must say who it is
NO_LINE = (ValueError, KeyError, TypeError, RecursionError)
"""What reading a stranger's line may raise: it is not JSON, not what was expected, or nested without end."""
CHUNK_BYTES = 1 << 18  # added up while it still lies in the processor's cache
SENT = {
    ("hvdtrain.interfaces", "Checkpoint"),
    ("hvdtrain.interfaces", "Position"),
    ("hvdtrain.interfaces", "OptimizerState"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("pathlib", "PosixPath"),
}
"""What ranks send each other beside Python's own plain values: none of it runs anything when it is unpickled."""


class RingGroup:
    """The processes of a job in a ring; a `Group`, and `allreduce` for gradients.

    Rank 0 waits for the others at `address`, tells everyone where everyone listens, and has no part of its own after
    that. Raises UserError where the ring cannot be closed within `start_timeout_s`, TrainingError where a neighbour
    dies or is silent for `timeout_s`.
    """

    def __init__(
        self,
        place: rank_info.RankInfo,
        address: tuple[str, int],
        token: str = "",
        start_timeout_s: float = 120,
        timeout_s: float = 300,
    ) -> None:
        self.rank, self.size, self.local_rank = place.rank, place.size, place.local_rank
        self._timeout_s = timeout_s
        self._scratch = np.empty(CHUNK_BYTES, np.uint8)
        if self.size > 1:
            deadline = time.monotonic() + start_timeout_s
            self._next, self._before = _close_ring(place, address, token, deadline)

    def free_address(self) -> str:
        """host:port of this rank, for something else that is to listen where the ring does; free at this moment."""
        interface = self._next.getsockname()[0] if self.size > 1 else "127.0.0.1"
        with socket.create_server((interface, 0)) as free:
            host, port = free.getsockname()[:2]
        return f"{host}:{port}"

    def allreduce(self, values: np.ndarray) -> None:
        """Add up `values` over all ranks, in place: shape (n,), any numeric type, contiguous, the same n everywhere."""
        rank, size = self.rank, self.size
        if size == 1:
            return
        cuts = [len(values) * i // size for i in range(size + 1)]
        parts = [values[a:b] for a, b in itertools.pairwise(cuts)]
        for step in range(size - 1):
            self._exchange(parts[(rank - step) % size], parts[(rank - step - 1) % size], add=True)
        for step in range(size - 1):
            self._exchange(parts[(rank - step + 1) % size], parts[(rank - step) % size], add=False)

    def _exchange(self, out: np.ndarray, into: np.ndarray, add: bool) -> None:
        """Send `out` to the next rank while `into` comes from the one before; `add` adds to what `into` holds."""
        leaving, sent, received = out.view(np.uint8).data, 0, 0
        step = CHUNK_BYTES // into.itemsize * into.itemsize
        while sent < len(leaving) or received < into.nbytes:
            start = received // step * step
            end = min(start + step, into.nbytes)
            chunk = into[start // into.itemsize : end // into.itemsize]
            target = self._scratch[: end - start] if add else chunk.view(np.uint8)
            moved = self._send(leaving[sent:])
            arrived = self._receive(target.data[received - start :])
            sent, received = sent + moved, received + arrived
            if add and arrived and received == end:
                chunk += target.view(into.dtype)
            if not moved and not arrived:
                self._wait(writing=sent < len(leaving), reading=received < into.nbytes)

    def _send(self, data: memoryview) -> int:
        try:
            return self._next.send(data) if data else 0
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._lost(self.rank + 1, error) from None

    def _receive(self, target: memoryview) -> int:
        if not target:
            return 0
        try:
            count = self._before.recv_into(target)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._lost(self.rank - 1, error) from None
        if count == 0:
            raise self._lost(self.rank - 1, "it closed the connection")
        return count

    def _wait(self, writing: bool, reading: bool) -> None:
        waiter = select.poll()
        # The next rank is watched also while nothing is to be sent to it: its end must not go unnoticed.
        waiter.register(self._next, (select.POLLOUT if writing else 0) | select.POLLRDHUP)
        if reading:
            waiter.register(self._before, select.POLLIN)
        events = dict(waiter.poll(self._timeout_s * 1000))
        if not events:
            raise self._lost(self.rank + (-1 if reading else 1), f"no word for {self._timeout_s:g} s")
        if events.get(self._next.fileno(), 0) & (select.POLLRDHUP | select.POLLHUP | select.POLLERR):
            raise self._lost(self.rank + 1, "it closed the connection")

    def _lost(self, rank: int, why: object) -> TrainingError:
        neighbour = rank % self.size
        link = self._before if neighbour == (self.rank - 1) % self.size else self._next
        try:
            host = link.getpeername()[0]
        except OSError:
            host = "its host"
        return TrainingError(f"lost the neighbour in the ring, rank {neighbour} on {host} ({why}); see its log")

    def sum(self, values: np.ndarray) -> np.ndarray:
        total = np.array(values, np.float64)
        self.allreduce(total)
        return total

    def gather(self, value: Any) -> list[Any]:
        rank, size = self.rank, self.size
        packed = [b""] * size
        packed[rank] = pickle.dumps(value)
        for step in range(size - 1):
            packed[(rank - step - 1) % size] = self._pass_on(packed[(rank - step) % size])
        return [unpacked(one) for one in packed]

    def _pass_on(self, out: bytes) -> bytes:
        """Send bytes to the next rank; the bytes of the one before, of another length."""
        length = np.empty(1, np.int64)
        self._exchange(np.array([len(out)], np.int64), length, add=False)
        into = np.empty(int(length[0]), np.uint8)
        self._exchange(np.frombuffer(out, np.uint8), into, add=False)
        return into.tobytes()

    def broadcast(self, value: Any) -> Any:
        return self.gather(value if self.rank == 0 else None)[0]

    def close(self) -> None:
        if self.size > 1:
            with contextlib.suppress(TrainingError):  # a neighbour may be through, and gone, a moment earlier
                self.gather(None)  # nobody leaves while a neighbour still listens
            self._next.close()
            self._before.close()


class _Unpickler(pickle.Unpickler):
    """Of values alone: a pickle that names anything else to call is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in SENT:
            return super().find_class(module, name)
        raise TrainingError(
            f"a rank of the ring sent {module}.{name}, which ranks never send; look who reaches its ports"
        )


def unpacked(data: bytes) -> Any:
    """A value that another rank pickled. Raises TrainingError where it is more than a value."""
    return _Unpickler(io.BytesIO(data)).load()


def start() -> RingGroup:
    """The ring of this job, at the address that its launcher gives.

    Raises UserError where none does, or where ranks would meet on a network without a word that only they know.
    """
    place = rank_info.detect()
    if place.size == 1:
        return RingGroup(place, ("", 0))
    address, token = rank_info.rendezvous(), rank_info.token()
    if not token and not _is_loopback(address[0]):
        raise UserError(
            f"{place.launcher} gave the ranks no word by which they know each other, and {address[0]} is a network: "
            f"start by python -m hvdtrain launch, or set {rank_info.TOKEN} to the same random text on all ranks"
        )
    return RingGroup(place, address, token)


def _is_loopback(host: str) -> bool:
    try:
        return socket.gethostbyname(host).startswith("127.")
    except OSError:
        return False


def _close_ring(
    place: rank_info.RankInfo, address: tuple[str, int], token: str, deadline: float
) -> tuple[socket.socket, socket.socket]:
    """Connections to the next rank and from the one before, not blocking."""
    try:
        addresses, word, listener = _meet(place, address, token, deadline)
        next_rank = (place.rank + 1) % place.size
        after = socket.create_connection(addresses[next_rank], timeout=_left(deadline))
        _send_line(after, _hello(token, word, "ring", place.rank))
        before, _ = _accept(listener, token, word, deadline, wanted={(place.rank - 1) % place.size})
        listener.close()
    except (OSError, *NO_LINE) as error:
        raise UserError(
            f"rank {place.rank} cannot join the ring of {place.size} at {address[0]}:{address[1]} ({error}); "
            "look whether all ranks were started and reach that address"
        ) from None
    for link in (after, before):
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return after, before


def _meet(
    place: rank_info.RankInfo, address: tuple[str, int], token: str, deadline: float
) -> tuple[list[tuple[str, int]], str, socket.socket]:
    """Where each rank listens for the one before it, the word of this ring, and this rank's own listener.

    Rank 0 and each guest prove to each other that they know the token: it never crosses the network itself. The word
    that rank 0 gives them is new in each ring, so that no neighbour's proof of an older one is worth anything.
    """
    if place.rank == 0:
        door = socket.create_server(address, backlog=place.size)
        listener = socket.create_server((door.getsockname()[0], 0))
        guests: dict[int, tuple[socket.socket, dict[str, Any]]] = {}
        for _ in range(place.size - 1):
            wanted = set(range(1, place.size)) - set(guests)
            guest, hello = _accept(door, token, "", deadline, wanted)
            guests[hello["rank"]] = guest, hello
        others = [(guests[rank][0].getpeername()[0], guests[rank][1]["port"]) for rank in range(1, place.size)]
        addresses, word = [listener.getsockname()[:2], *others], secrets.token_hex(16)
        for guest, hello in guests.values():
            mine = proof(token, hello["challenge"], "rank 0")
            _send_line(guest, {"proof": mine, "addresses": addresses, "word": word})
            guest.close()
        door.close()
        return addresses, word, listener
    with _connect(address, deadline) as host:
        # Listen where rank 0 is reached from: no other network sees this port.
        listener = socket.create_server((host.getsockname()[0], 0))
        challenge = secrets.token_hex(16)
        hello = _hello(token, str(_read_line(host, deadline)), "door", place.rank)
        _send_line(host, {**hello, "port": listener.getsockname()[1], "challenge": challenge})
        answer = _read_line(host, deadline)
        if not hmac.compare_digest(answer["proof"], proof(token, challenge, "rank 0")):
            raise OSError("what listens there does not know this job's token")
        return [(name, port) for name, port in answer["addresses"]], answer["word"], listener


def _hello(token: str, word: str, where: str, rank: int) -> dict[str, Any]:
    """Who calls, and that he knows the token; `where`, so that a false rank 0 cannot use it at a neighbour's."""
    return {"rank": rank, "proof": proof(token, word, f"{where} rank {rank}")}


def _accept(
    listener: socket.socket, token: str, word: str, deadline: float, wanted: set[int]
) -> tuple[socket.socket, dict[str, Any]]:
    """A connection from one of the `wanted` ranks of this job; any other caller is turned away.

    word: that of the ring, with which neighbours prove the token; empty at rank 0's door, which gives each caller one.
    """
    while True:
        listener.settimeout(_left(deadline))
        try:
            caller, _ = listener.accept()
        except TimeoutError:
            raise OSError(f"rank {', '.join(map(str, sorted(wanted)))} did not come") from None
        try:
            challenge = word or secrets.token_hex(16)
            if not word:
                _send_line(caller, challenge)
            hello = _read_line(caller, min(time.monotonic() + HELLO_TIMEOUT_S, deadline))
            expected = _hello(token, challenge, "ring" if word else "door", hello["rank"])
            if hmac.compare_digest(hello["proof"], expected["proof"]) and hello["rank"] in wanted:
                return caller, hello
        except (OSError, *NO_LINE):
            pass
        caller.close()


def _connect(address: tuple[str, int], deadline: float) -> socket.socket:
    """A connection to rank 0, which may start later than this one."""
    while True:
        try:
            return socket.create_connection(address, timeout=_left(deadline))
        except OSError:
            if time.monotonic() + 0.1 >= deadline:
                raise
            time.sleep(0.05)


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.01)


def _send_line(link: socket.socket, value: Any) -> None:
    link.sendall(json.dumps(value).encode() + b"\n")


def _read_line(link: socket.socket, deadline: float) -> Any:
    """One JSON line of at most 64 KB, whole before the deadline; byte by byte so that nothing behind it is lost."""
    line = b""
    while not line.endswith(b"\n") and len(line) < 1 << 16:
        link.settimeout(_left(deadline))
        byte = link.recv(1)
        if not byte:
            raise OSError("the other side closed the connection")
        line += byte
    return json.loads(line)
