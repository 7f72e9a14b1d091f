"""A switch that holds each frame for a time: a program, which runs in the switch's network namespace.

usage: python delay.py MILLISECONDS INTERFACE INTERFACE...

It takes frames from packet sockets (packet(7)). A header of virtio before each frame, which is handed on with it, says
what the kernel left for a network card to do: checksums, and cutting a packet into frames.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
from collections import deque
from typing import NamedTuple

ETH_P_ALL, SOL_PACKET = 3, 263  # linux/if_ether.h, linux/socket.h
PACKET_VNET_HDR, PACKET_QDISC_BYPASS, PACKET_IGNORE_OUTGOING = 15, 20, 23  # linux/if_packet.h
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33  # asm-generic/socket.h
HEADER = 10
"""Bytes of a virtio_net_hdr (linux/virtio_net.h)."""
FRAME_BYTES, BUFFER_BYTES = 1 << 17, 1 << 25
AT_ONCE = 64
"""Frames that are taken from an interface before the next one has its turn."""
PRIORITY = 10


class Held(NamedTuple):
    """A frame, and when it goes on."""

    due: float
    to: list[socket.socket]
    frame: bytes


class Switch:
    """Learns at which port each address is, as switches do; a frame for one that is not known goes to all others."""

    def __init__(self, ports: list[socket.socket], delay_s: float) -> None:
        self._ports, self._delay_s = ports, delay_s
        self._known: dict[bytes, list[socket.socket]] = {}
        self._others = {port: [other for other in ports if other is not port] for port in ports}
        self._held: deque[Held] = deque()
        """In the order in which they are due, as all are held equally long."""
        self._buffer = memoryview(bytearray(FRAME_BYTES))

    def serve(self) -> None:
        """For ever."""
        while True:
            wait_s = max(self._held[0].due - time.monotonic(), 0.0) if self._held else None
            for port in select.select(self._ports, (), (), wait_s)[0]:
                self.take(port, time.monotonic())
            self.send(time.monotonic())

    def take(self, port: socket.socket, now: float) -> None:
        """Hold the frames that have arrived at a port."""
        for _ in range(AT_ONCE):
            try:
                length = port.recv_into(self._buffer)
            except (BlockingIOError, OSError):  # no more; or the interface is down for a moment
                return
            frame = bytes(self._buffer[:length])
            to, sender = frame[HEADER : HEADER + 6], frame[HEADER + 6 : HEADER + 12]
            self._known[sender] = [port]
            self._held.append(Held(now + self._delay_s, self._known.get(to) or self._others[port], frame))

    def send(self, now: float) -> None:
        """Send all frames that are due. One that a port does not accept is lost, as in a full queue."""
        while self._held and self._held[0].due <= now:
            _, ports, frame = self._held.popleft()
            for port in ports:
                with contextlib.suppress(OSError):
                    port.send(frame)


def open_port(name: str) -> socket.socket:
    """A socket with all frames of an interface. Raises OSError if there is none, or this user may not."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    port.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    with contextlib.suppress(OSError):  # not with virtio's header in older kernels
        port.setsockopt(SOL_PACKET, PACKET_QDISC_BYPASS, 1)
    for size in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
        port.setsockopt(socket.SOL_SOCKET, size, BUFFER_BYTES)
    port.setblocking(False)
    port.bind((name, ETH_P_ALL))
    return port


def main(arguments: list[str]) -> None:
    """Say that it is ready, and serve until it is killed."""
    milliseconds, *names = arguments
    switch = Switch([open_port(name) for name in names], float(milliseconds) / 1e3)
    with contextlib.suppress(OSError):  # so that it is not late because others compute
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    print("ready", flush=True)
    switch.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
