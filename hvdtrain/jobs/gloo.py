"""What Horovod needs of a launcher to run with Gloo: variables for each rank, and a rendezvous server."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.system import rank_info
from hvdtrain.system.network import address_of, gloo_variables


class Layout(NamedTuple):
    """A rank's position among the hosts. cross: among the ranks of all hosts that have its local rank."""

    local_size: int
    cross_rank: int
    cross_size: int


def environment(rank: rank_info.RankInfo, layout: Layout, address: str, port: int) -> dict[str, str]:
    """Horovod's variables for this rank; address and port are those of the `Store`."""
    numbers = (rank.rank, rank.size, rank.local_rank, *layout)
    return gloo_variables(numbers, rank_info.host_name(), (address, port))


def layout(rank: rank_info.RankInfo, environment: Mapping[str, str]) -> Layout:
    """With srun from Slurm's variables; with other launchers all ranks are on this host.

    Raises UserError if Slurm's variables are inconsistent.
    """
    if rank.launcher != "srun":
        return Layout(rank.size, 0, 1)
    tasks = environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    counts, node = rank_info.slurm_tasks_per_node(tasks), environment.get("SLURM_NODEID", "")
    known = rank_info.NUMBER.fullmatch(node) and int(node) < len(counts) and rank.local_rank < counts[int(node)]
    if not known or sum(counts) != rank.size:
        reason = f"SLURM_NODEID={node} and SLURM_STEP_TASKS_PER_NODE={tasks} do not match {rank.size} tasks"
        raise UserError(reason, "start with srun, and leave SLURM_* variables unchanged")
    having = [index for index, count in enumerate(counts) if count > rank.local_rank]
    return Layout(counts[int(node)], having.index(int(node)), len(having))


def standalone_variables(rank: rank_info.RankInfo) -> dict[str, str]:
    """Horovod's variables for a rank without a supervisor, from the launcher's; on rank 0 the server runs from now on.

    Raises UserError if they are inconsistent, or its port cannot be opened.
    """
    address, port = rank_info.rendezvous()
    store_port = port + 1  # above the ports on which rank 0 listens for other strategies
    if rank.rank == 0:
        interface = os.environ.get("HOROVOD_GLOO_IFACE")
        Store(address_of(interface) if interface else "", store_port, rank.size)
    return environment(rank, layout(rank, os.environ), address, store_port)


class Store:
    """The rendezvous server of Gloo's ranks, where they leave their addresses: GET, PUT and DELETE of /scope/key.

    It listens on one address (on all interfaces where `address` is empty) until `close`. Horovod's protocol
    has no authentication: whoever reaches the port can read and change the values. Raises UserError if the port
    cannot be opened.
    """

    def __init__(self, address: str, port: int = 0, ranks: int = 1) -> None:
        try:
            self._server = _Server((address, port), ranks + MAX_CONNECTIONS)
        except OSError as error:
            reason = f"port {port} for the rendezvous of Gloo's ranks cannot be opened ({error.strerror})"
            raise UserError(reason, "set MASTER_ADDR and another MASTER_PORT on all ranks") from None
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with self._server:  # closes its port
            self._server.serve_forever()

    def close(self) -> None:
        """Give no addresses any more, so that ranks that wait for some fail at once; serve no more after CLOSE_S.

        It waits for nothing.
        """
        self._server.is_closed = True
        end = threading.Timer(CLOSE_S, self._server.shutdown)
        end.daemon = True
        end.start()


CLOSE_S = 10.0
"""How long a closed rendezvous server answers: Horovod asks one that does not for another 1.5 s."""
NO_ADDRESS = b"closed"
"""What Gloo fails with as an address; where there is none, it waits."""
MAX_CONNECTIONS = 512
"""Of the rendezvous server, beyond one for each rank: of more, the oldest are closed. Ranks keep none open."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # All ranks ask at the same time, each with a new connection every 10 ms. With the default of 5 waiting connections,
    # those of 256 ranks are lost, and clients were seen to wait for more than a minute.
    request_queue_size = socket.SOMAXCONN

    def __init__(self, address: tuple[str, int], max_connections: int) -> None:
        self.values: dict[str, bytes] = {}
        self.is_closed = False
        self._open: dict[socket.socket, None] = {}
        """Connections in the order in which they came."""
        self._max_connections = max_connections
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """As HTTPServer does, without resolving this host's name, which may take seconds.

        A port of which the last job's connections have ended can be opened at once.
        """
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open[request] = None
        if len(self._open) > self._max_connections:
            oldest = next(iter(self._open.copy()))
            self._open.pop(oldest, None)
            with contextlib.suppress(OSError):  # its thread has closed it meanwhile
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """No traceback for a caller that breaks its connection."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10

    def do_GET(self) -> None:
        if self.server.is_closed:
            return self._answer(200, NO_ADDRESS)
        value = self.server.values.get(self.path)
        self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > 1 << 20:
            return self._answer(400)
        self.server.values[self.path] = self.rfile.read(int(length))
        self._answer(200)

    def do_DELETE(self) -> None:
        self.server.values.pop(self.path, None)
        self._answer(200)

    def _answer(self, status: int, value: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)

    def log_message(self, format: str, *args: object) -> None:
        """No line for each request."""
