"""Hosts on one machine whose links are slow: network namespaces, each with eth0 on one switch.

`tc` limits what each host sends (a token bucket, tbf). Where there is a delay, the frames between the hosts pass
through a program in the switch's namespace that holds each of them (`delay.py`), as not every kernel has the
queue that delays (netem). Everything is removed at the end; what a benchmark left that was killed is removed when the
next one begins.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.system.processes import end_with_parent

PAYLOAD = 1448 / (1514 + 66 / 2)
"""Of the bytes that `tc` counts, the share that is data: a frame of 1514 bytes carries 1448, and every second frame is
acknowledged by one of 66."""
INTERFACE = "eth0"
ETC = Path("/etc/netns")
"""Where `ip netns exec` finds a namespace's own files for /etc."""
PREFIX = "hvdtrain"
SUBNET = "10.78.41"
NEEDED = ("ip", "tc")
SPEED = re.compile(r"(\d+(?:\.\d+)?)(?:/(\d+(?:\.\d+)?)ms)?")
ROOT = "slow links are made of network namespaces, which only root may create"


class Speed(NamedTuple):
    """Of the link of each host; without a limit by default."""

    mbit_s: float = 0.0
    """What a host sends at most, in Mbit/s of whole frames; 0 for no limit."""
    delay_ms: float = 0.0
    """How long each frame is held, so that a message and its answer take twice as long."""

    @classmethod
    def parse(cls, text: str) -> Speed:
        """Of 100 or 100/10ms, with at least 0.1 Mbit/s. Raises ValueError for other text."""
        match = SPEED.fullmatch(text)
        if not match or not 0.1 <= float(match[1]) <= 1e5 or float(match[2] or 0) > 1e4:
            raise ValueError(f"{text!r} is not a speed such as 100, or 100/10ms")
        return cls(float(match[1]), float(match[2] or 0))

    def __str__(self) -> str:
        if not self.mbit_s:
            return "no limit"
        return f"{self.mbit_s:g}/{self.delay_ms:g}ms" if self.delay_ms else f"{self.mbit_s:g}"

    @property
    def byte_s(self) -> float:
        """Seconds per byte of data, in each direction. It has a limit."""
        return 8 / (self.mbit_s * 1e6 * PAYLOAD)


@dataclass
class Hosts:
    """The namespaces of hosts that exist."""

    spaces: list[str]
    switch: str
    _delay: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Ends the program that delays."""

    def set_speed(self, speed: Speed) -> None:
        """Change the links of all hosts; no job may run meanwhile. Raises UserError if the kernel cannot."""
        self._delay.close()
        for number, space in enumerate(self.spaces):
            subprocess.run(["tc", "-n", space, "qdisc", "del", "dev", INTERFACE, "root"], capture_output=True)
            if speed.mbit_s:
                # The kernel cuts what is longer than the bucket into frames. At high rates, timers are too coarse for
                # so small a bucket: it holds what is sent in a millisecond.
                bucket = f"{max(5, speed.mbit_s / 8 if speed.mbit_s > 200 else 0):g}kb"
                limit = ("tbf", "rate", f"{speed.mbit_s}mbit", "burst", bucket, "limit", "1mb")
                do("tc", "-n", space, "qdisc", "add", "dev", INTERFACE, "root", *limit)
            do("ip", "-n", self.switch, "link", "set", port(number), *_switched(speed))
        if speed.delay_ms:
            self._delay.enter_context(_delaying(self.switch, speed.delay_ms, len(self.spaces)))

    def close(self) -> None:
        """Remove everything."""
        self._delay.close()
        for space in (*self.spaces, self.switch):
            remove(space)


def _switched(speed: Speed) -> tuple[str, ...]:
    """Frames go through the kernel's switch, or the program that delays is the switch."""
    return ("nomaster",) if speed.delay_ms else ("master", "br0")


@contextlib.contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """So many hosts, with links that have no limit yet.

    Raises UserError if this user or machine cannot have them. They are removed at the end, also after a signal if that
    raises an exception (SystemExit).
    """
    require()
    _remove_left()
    mark = f"{PREFIX}-{os.getpid()}"
    made = Hosts([f"{mark}-{number}" for number in range(count)], f"{mark}-switch")
    try:
        do("ip", "netns", "add", made.switch)
        do("ip", "-n", made.switch, "link", "add", "br0", "type", "bridge")
        do("ip", "-n", made.switch, "link", "set", "br0", "up")
        for number, space in enumerate(made.spaces):
            _add(number, space, made.switch)
        yield made
    finally:
        made.close()


def _add(number: int, space: str, switch: str) -> None:
    do("ip", "netns", "add", space)
    ends = ("type", "veth", "peer", "name", port(number), "netns", switch)
    do("ip", "link", "add", INTERFACE, "netns", space, *ends)
    do("ip", "-n", switch, "link", "set", port(number), "master", "br0", "up")
    do("ip", "-n", space, "addr", "add", f"{address(number)}/24", "dev", INTERFACE)
    # Horovod's process sets use the address of the host's name, whatever HOROVOD_GLOO_IFACE says; `ip netns exec` puts
    # this file in the place of /etc/hosts.
    names = ETC / space / "hosts"
    names.parent.mkdir(parents=True)
    names.write_text(f"127.0.0.1 localhost\n{address(number)} {os.uname().nodename}\n")
    for link in (INTERFACE, "lo"):
        do("ip", "-n", space, "link", "set", link, "up")
    # Congestion control that estimates the bandwidth (BBR) would measure itself, not the link.
    do(*inside(space), "sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno")


def require() -> None:
    """Raise UserError if this user or machine cannot have namespaces with slow links."""
    if os.geteuid() != 0:
        raise UserError(ROOT, "run this as root, for example in a virtual machine")
    missing = [name for name in NEEDED if not shutil.which(name)]
    if missing:
        raise UserError(f"{' and '.join(missing)}: not found, with which links are made", "apt-get install iproute2")


def _remove_left() -> None:
    """Remove what benchmarks left that were killed: namespaces whose names have a process that does not run."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split()
    for name in listed:
        match = re.fullmatch(rf"{PREFIX}-(\d+)-(\d+|switch)", name)
        if match and not Path("/proc", match[1]).exists():
            remove(name)


def remove(space: str) -> None:
    """Delete a namespace, if it exists."""
    subprocess.run(["ip", "netns", "del", space], capture_output=True)
    shutil.rmtree(ETC / space, ignore_errors=True)


def address(number: int) -> str:
    """Of the host with this number, counted from 0."""
    return f"{SUBNET}.{number + 1}"


def port(number: int) -> str:
    """The switch's end of a host's link."""
    return f"to-{number}"


def inside(space: str) -> list[str]:
    """The start of a command line that runs in a namespace."""
    return ["ip", "netns", "exec", space]


def do(*words: str) -> None:
    """Run a command of the network's. Raises UserError if it fails."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise UserError(
            f"{' '.join(words)}: {done.stderr.strip() or f'exit status {done.returncode}'}",
            "run this where namespaces and tc's queue tbf can be used, such as in a virtual machine",
        )


@contextlib.contextmanager
def _delaying(switch: str, delay_ms: float, ports: int) -> Iterator[None]:
    """The program that is the switch and delays. Raises UserError if it cannot run here."""
    delay = Path(__file__).with_name("delay.py")
    program = [sys.executable, str(delay), str(delay_ms), *map(port, range(ports))]
    process = subprocess.Popen(
        [*inside(switch), *program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    assert process.stdout
    assert process.stderr
    try:
        if not process.stdout.readline():
            reason = (process.stderr.read().strip().splitlines() or ["it ended"])[-1]
            raise UserError(f"frames cannot be delayed here ({reason})", "leave links with a delay out")
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
