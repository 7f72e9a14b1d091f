"""A rank's keeper: what a launcher starts on each host, and what starts the rank's program there.

    python -m hvdtrain.launch.agent [--gloo] [--interface NAME] [--start-timeout S] -- PROGRAM ...

It is the supervisor's hand: it sends on what the program prints and how it ends, gives it signals, and ends it when
the supervisor is gone, whatever the launcher in between does. So a job ends in the same way under horovodrun, mpirun
and srun. Without a supervisor (its address is in HVDTRAIN_SUPERVISOR) it only starts the program.

With --gloo it tells the program what Horovod's Gloo wants to know, so that no horovodrun is needed; rank 0's keeper is
the place where Gloo's ranks meet. NumPy and Horovod are not imported: it is up at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import Any

from hvdtrain.errors import HvdtrainError, UserError
from hvdtrain.launch import gloo, protocol
from hvdtrain.launch.protocol import Channel, Closed
from hvdtrain.system import network, rank_info, versions
from hvdtrain.system.processes import end_with_parent, free_port, shell_status, would_end

GRACE_S = 2.0
"""How long a program may take to end after SIGTERM, before SIGKILL, when its job has failed."""
DRAIN_S = 1.0
"""How long the output of an ended program is waited for: a process that it left behind may hold it open."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def main(argv: list[str]) -> int:
    """The exit status of the program, or 0 where a supervisor was told of it."""
    parser = argparse.ArgumentParser(prog="python -m hvdtrain.launch.agent", allow_abbrev=False)
    parser.add_argument("--gloo", action="store_true")
    parser.add_argument("--interface")
    parser.add_argument("--start-timeout", type=float, default=120)
    parser.add_argument("--on-terminal", action="store_true")
    parser.add_argument("--versions", action="store_true", help="print what this host has, and end")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    if options.versions:
        print(protocol.encode(versions.here()).decode(), end="")
        return 0
    words = options.program[1:] if options.program[:1] == ["--"] else options.program
    try:
        return Agent(words, options).run()
    except HvdtrainError as error:
        print(f"hvdtrain: rank {rank_info.detect().rank} on {rank_info.host_name()}: {error}", file=sys.stderr)
        return error.exit_status


class Agent:
    """Of one rank."""

    def __init__(self, words: list[str], options: argparse.Namespace) -> None:
        self._words, self._options = words, options
        self._place = rank_info.detect()
        self._token = ""
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._kill_at = float("inf")
        self._asked = False
        """Whether a SIGUSR1 waits for the program to listen."""

    def run(self) -> int:
        # Blocked from here on, and taken from a file: so none comes between two lines.
        self._wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write)
        for number in (*SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        if protocol.SUPERVISOR in os.environ:
            self._token = rank_info.token()  # now: a file that holds it is gone when all ranks have come
            self._channel = protocol.connect(self._token, self._options.start_timeout)
            environment = self._begin()
        else:
            environment = self._alone()
        if environment is None:
            return 0
        if not self._channel:
            return shell_status(self._keep(environment))
        try:
            last: protocol.Message = {"ended": self._keep(environment)}
        except UserError as error:
            last = {"failed": str(error)}
        with contextlib.suppress(Closed):
            self._channel.send(**last)
        self._channel.close()
        return 0  # the supervisor knows better: another status would only have the launcher end the job in its way

    def _begin(self) -> dict[str, str] | None:
        """Say who is here, wait for all others, and return the program's environment; None where nothing starts."""
        assert self._channel
        own = self._channel.own_address
        # Where the ranks are told to look for it: no other network sees this port.
        store = gloo.Store(own) if self._serves else None
        self._channel.send(
            **self._place._asdict(),
            host=rank_info.host_name(),
            pid=os.getpid(),
            address=own,
            port=free_port(own) if self._place.rank == 0 else 0,
            store=store.port if store else 0,
            # On one machine they cannot differ.
            versions={} if os.environ.get(rank_info.LAUNCHER) == "local" else versions.here(),
        )
        try:
            answer = self._channel.receive()
        except Closed:
            return None
        if "environment" not in answer:
            return None
        meeting = answer["environment"]
        # The token comes from here, and never over the network.
        environment = {**os.environ, **_own(self._place), **meeting, rank_info.TOKEN: self._token}
        if self._options.gloo:
            address, port = answer["store"]
            environment.update(gloo.environment(self._place, address, port, self._options.interface))
        return environment

    def _alone(self) -> dict[str, str]:
        """The program's environment where no supervisor tells: from the launcher's variables."""
        if self._serves:
            where = network.address_of(self._options.interface) if self._options.interface else ""
            gloo.Store(where, _store_port())
        if not self._options.gloo:
            return dict(os.environ)
        address, _ = rank_info.rendezvous()
        return {**os.environ, **gloo.environment(self._place, address, _store_port(), self._options.interface)}

    @property
    def _serves(self) -> bool:
        """Whether Gloo's ranks meet here."""
        return self._options.gloo and self._place.rank == 0

    def _keep(self, environment: dict[str, str]) -> int:
        """Run the program to its end; its status as Popen has it."""
        environment.pop(protocol.SUPERVISOR, None)
        piped = subprocess.PIPE if self._channel and not self._options.on_terminal else None
        try:
            self._process = subprocess.Popen(
                self._words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=piped,
                stderr=piped,
                preexec_fn=_in_own_group,
            )
        except OSError as error:
            raise UserError(f"{self._words[0]} cannot be started ({error.strerror}); is it on PATH?") from None
        with selectors.DefaultSelector() as selector:
            selector.register(self._wakeup_read, selectors.EVENT_READ, self._heard)
            if self._channel:
                selector.register(self._channel, selectors.EVENT_READ, self._told)
            for name in ("stdout", "stderr"):
                pipe = getattr(self._process, name)
                if pipe:
                    selector.register(pipe, selectors.EVENT_READ, name)
            return self._wait(selector)

    def _wait(self, selector: selectors.BaseSelector) -> int:
        assert self._process
        drain_until = float("inf")
        while True:
            soon = self._asked or min(self._kill_at, drain_until) < float("inf")
            for key, _ in selector.select(0.1 if soon else 1.0):
                if isinstance(key.data, str):
                    self._pass_on(selector, key.fileobj, key.data)
                else:
                    key.data(selector)
            status = self._process.poll()
            if status is None:
                if self._asked:
                    self._signal(signal.SIGUSR1)
                if time.monotonic() > self._kill_at:
                    self._signal_group(signal.SIGKILL)
                continue
            drain_until = min(drain_until, time.monotonic() + DRAIN_S)
            open_pipes = any(isinstance(key.data, str) for key in selector.get_map().values())
            if not open_pipes or time.monotonic() > drain_until:
                self._signal_group(signal.SIGKILL)  # what it left behind
                return status

    def _pass_on(self, selector: selectors.BaseSelector, pipe: Any, name: str) -> None:
        arrived = os.read(pipe.fileno(), 1 << 16)
        if not arrived:
            selector.unregister(pipe)
            return
        if self._channel:
            with contextlib.suppress(Closed):
                self._channel.send(**{name: protocol.text(arrived)})

    def _heard(self, _: selectors.BaseSelector) -> None:
        """A signal of the launcher's, or of the program's end."""
        for number in os.read(self._wakeup_read, 64):
            if number in SIGNALS:
                self._signal(number)

    def _told(self, selector: selectors.BaseSelector) -> None:
        """A word of the supervisor's."""
        assert self._channel
        try:
            for message in self._channel.arrived():
                if "signal" in message:
                    self._signal(message["signal"])
                if "end" in message:
                    self._end()
        except Closed:
            selector.unregister(self._channel)
            self._end()

    def _end(self) -> None:
        self._signal(signal.SIGTERM)
        self._kill_at = min(self._kill_at, time.monotonic() + GRACE_S)

    def _signal(self, number: int) -> None:
        """To the program alone: what it started would die of a signal that it itself answers by a checkpoint.

        SIGUSR1 asks for something, so it waits until the program listens: it would end one that still imports.
        """
        assert self._process
        if self._process.poll() is not None:
            return
        if number == signal.SIGUSR1:
            self._asked = would_end(self._process.pid, number)
            if self._asked:
                return
        self._process.send_signal(number)

    def _signal_group(self, number: int) -> None:
        assert self._process
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def _in_own_group() -> None:
    os.setpgid(0, 0)
    end_with_parent()


def _store_port() -> int:
    """Where no supervisor tells: above the ports on which rank 0 listens for other strategies."""
    return rank_info.rendezvous()[1] + 1


def _own(place: rank_info.RankInfo) -> dict[str, str]:
    names = rank_info.VARIABLES[rank_info.LAUNCH]
    return dict(zip(names, map(str, (place.rank, place.size, place.local_rank)), strict=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
