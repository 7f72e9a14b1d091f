"""Initializes Horovod again and again in one process, and checks it each time.

usage: python reinit.py FRAMEWORK TIMES [late]

late: rank 0 is late, as on a busy machine: its requests to remove its addresses reach the rendezvous server after a
delay, and it initializes Horovod after the others.
"""

from __future__ import annotations

import http.client
import importlib
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ADDRESS, PORT = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
LATE_S = 0.1


def main(framework: str, times: str, late: str = "") -> None:
    """Initialize TIMES times, each time with a process set, and then fail to; print both on each rank."""
    rank_0_is_late = bool(late) and os.environ["HOROVOD_RANK"] == "0"
    if rank_0_is_late:
        send_late()
    hvd = importlib.import_module(f"horovod.{framework}")
    for _ in range(int(times)):
        time.sleep(2 * LATE_S * rank_0_is_late)
        hvd.init(process_sets=[hvd.ProcessSet([1])])
        assert hvd.size() == int(os.environ["HOROVOD_SIZE"])
        assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
        hvd.shutdown()
    os.environ[PORT] = "1"  # where no server listens
    try:
        hvd.init()
    except ValueError as error:
        print(f"initialized {times} times, then: {error}", flush=True)


def send_late() -> None:
    """Send this process's requests through a server that delays those to remove an address."""
    address, port = os.environ[ADDRESS], int(os.environ[PORT])

    class Forward(BaseHTTPRequestHandler):
        def forward(self) -> None:
            time.sleep(LATE_S * (self.command == "DELETE"))
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            connection = http.client.HTTPConnection(address, port)
            connection.request(self.command, self.path, body)
            answer = connection.getresponse()
            value = answer.read()
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(value)))
            self.end_headers()
            self.wfile.write(value)

        do_GET = do_PUT = do_DELETE = forward

        def log_message(self, format: str, *args: object) -> None:
            """No line for each request."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Forward)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ.update({ADDRESS: "127.0.0.1", PORT: str(server.server_port)})


if __name__ == "__main__":
    main(*sys.argv[1:])
