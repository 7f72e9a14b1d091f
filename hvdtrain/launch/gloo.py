"""What Horovod's Gloo needs of a launcher: variables for each rank, and a place where the ranks find each other."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.system import rank_info, slurm


class Layout(NamedTuple):
    """Where a rank stands among the hosts. cross: the ranks of all hosts that have its local rank."""

    local_size: int
    cross_rank: int
    cross_size: int


def environment(place: rank_info.RankInfo, address: str, port: int, interface: str | None) -> dict[str, str]:
    """Horovod's variables for this rank, as horovodrun sets them; address, port: where the `Store` is."""
    local_size, cross_rank, cross_size = layout(place, os.environ)
    told = {
        "RANK": place.rank,
        "SIZE": place.size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_SIZE": local_size,
        "CROSS_RANK": cross_rank,
        "CROSS_SIZE": cross_size,
        "HOSTNAME": rank_info.host_name(),
        "GLOO_RENDEZVOUS_ADDR": address,
        "GLOO_RENDEZVOUS_PORT": port,
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
        **({"GLOO_IFACE": interface} if interface else {}),
    }
    return {f"HOROVOD_{name}": str(value) for name, value in told.items()}


def layout(place: rank_info.RankInfo, environment: Mapping[str, str]) -> Layout:
    """From Slurm's variables under srun; elsewhere all ranks are on this host.

    Raises UserError where Slurm's variables are not as Slurm writes them.
    """
    if place.launcher != "srun":
        return Layout(place.size, 0, 1)
    tasks = environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    counts, node = slurm.tasks_per_node(tasks), environment.get("SLURM_NODEID", "")
    known = rank_info.NUMBER.fullmatch(node) and int(node) < len(counts) and place.local_rank < counts[int(node)]
    if not known or sum(counts) != place.size:
        raise UserError(
            f"SLURM_NODEID={node} and SLURM_STEP_TASKS_PER_NODE={tasks} do not belong together with "
            f"{place.size} tasks; start by srun, and leave SLURM_* as it sets them"
        )
    having = [index for index, count in enumerate(counts) if count > place.local_rank]
    return Layout(counts[int(node)], having.index(int(node)), len(having))


class Store:
    """Keys and values by HTTP, in which Gloo's ranks leave their addresses: GET, PUT and DELETE of /scope/key.

    It serves on an interface (all of them where `address` is empty) until this process ends. Horovod's protocol knows
    no secret: whoever reaches the port can read and change what the ranks find.
    """

    def __init__(self, address: str, port: int = 0) -> None:
        try:
            self._server = _Server((address, port), _Handler)
        except OSError as error:
            raise UserError(f"port {port} for Gloo's ranks to meet cannot be opened ({error.strerror})") from None
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.values: dict[str, bytes] = {}
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Without HTTPServer's question for this host's own name, which may take seconds."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "", self.server_address[1]


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10

    def do_GET(self) -> None:
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
        """Not a line for each request."""
