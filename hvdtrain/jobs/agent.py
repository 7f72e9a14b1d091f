"""The per-rank agent: what a launcher starts on each host, and what runs the rank's program there.

    python -m hvdtrain.jobs.agent [--gloo] -- PROGRAM ...

It forwards the program's output and exit status to the supervisor, forwards the supervisor's signals to the program,
and ends the program when the supervisor has ended. So a job ends in the same way with horovodrun, mpirun and srun.
Without a supervisor, whose address is in HVDTRAIN_SUPERVISOR, it only runs the program.

With --gloo it sets the variables that Horovod needs for Gloo, so that no horovodrun is needed; the agent of rank 0 runs
the rendezvous server. NumPy and Horovod are not imported, so that it starts at once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, replace

from hvdtrain.errors import HvdtrainError, UserError
from hvdtrain.jobs import gloo, hosts, protocol
from hvdtrain.jobs.program_pipes import ProgramOutput
from hvdtrain.jobs.protocol import Channel, Closed
from hvdtrain.system import agent_pipe, arithmetic, membership, rank_info, resources, stacks
from hvdtrain.system.network import PortReservation
from hvdtrain.system.processes import (
    ProcessIdentity,
    adopt_orphans,
    descendants,
    end_descendants,
    end_with_parent,
    handles,
    handling,
    reap_orphans,
    shell_status,
    start_remedy,
)
from hvdtrain.system.run_end import Failure

GRACE_S = 2.0
"""When a job has failed: the time between SIGTERM and SIGKILL."""
DRAIN_S, DRAIN_STEP_S = 1.0, 0.2
"""How long to read the output of a program that has ended: a process that it left behind may hold the pipe open. A part
of it that takes a longer step to be sent waits for a supervisor that does not read: such steps do not count."""
OUT_OF_MEMORY = "was killed by SIGKILL, as the memory of its control group was used up"
MORE_MEMORY = "give the job more memory (Slurm: --mem), or use a smaller --batch-size or fewer ranks per host"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def main(argv: list[str]) -> int:
    """The program's exit status; 0 with a supervisor, which receives the status as a message."""
    options = parse(argv)
    if options.versions:
        print(json.dumps(stacks.versions_here()))
        return 0
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    try:
        return Agent(program, options).run()
    except HvdtrainError as error:
        print(f"hvdtrain: rank {rank_info.detect().rank} on {rank_info.host_name()}: {error}", file=sys.stderr)
        return error.exit_status


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m hvdtrain.jobs.agent", allow_abbrev=False)
    parser.add_argument("--gloo", action="store_true", help="set Horovod's variables for Gloo")
    parser.add_argument("--survive", action="store_true", help="the job goes on without lost ranks")
    parser.add_argument("--on-terminal", action="store_true", help="leave the terminal to the program")
    parser.add_argument("--versions", action="store_true", help="print the versions installed on this host and exit")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    return parser.parse_args(argv)


class Agent:
    def __init__(self, program: list[str], options: argparse.Namespace) -> None:
        self._program, self._options = program, options
        self._rank = rank_info.detect()
        self._token, self._key = "", secrets.token_hex(16)
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._said: agent_pipe.AgentPipe | None = None
        self._kill_at = float("inf")
        self._output: ProgramOutput | None = None
        self._training: ProcessIdentity | None = None
        """The process of the program that has begun to train last."""
        self._request, self._waits = 0, False
        """The newest signal for the program, and whether it waits until the program handles it."""

    def run(self) -> int:
        # From here on signals are read from a pipe, so that none interrupts the code between two lines.
        self._wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write)
        for number in (*SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        adopt_orphans()
        arithmetic.share_cores()  # the program may be any: on this host, and once in a job whose ranks come and go
        if agent_pipe.SUPERVISOR not in os.environ:
            alone = gloo.standalone_variables(self._rank) if self._options.gloo else {}
            return shell_status(self._run_program({**os.environ, **alone}))
        hosts.receive_variables()  # now: their file is removed when all ranks have registered
        self._token = rank_info.token()
        # Before the connection: on a slow disk it takes a while. On one host versions cannot differ.
        local_versions = {} if os.environ.get(rank_info.LAUNCHER) == "local" else stacks.versions_here()
        channel = self._channel = protocol.connect(self._token, rank_info.start_timeout_s())
        protocol.keep_alive(channel.connection, self._options.survive)
        if environment := self._register(channel, local_versions):
            try:
                self._run_program(environment)
            except UserError as error:
                failure = replace(Failure.of_exception(error), at_start=True)
                self._send(protocol.Said({Failure.__name__: asdict(failure)}))
                self._send(protocol.Ended(error.exit_status))
            channel.close()
        return 0  # another status would only make the launcher end the job in its own way

    def _register(self, channel: Channel, local_versions: dict[str, str]) -> dict[str, str] | None:
        """Register this rank and wait for the others; the program's environment, or None if the job does not start."""
        # The address that connects to the supervisor: no other network can reach this port.
        address = str(channel.connection.getsockname()[0])
        # In a job that survives, the rendezvous server must not end with a rank.
        runs_store = self._options.gloo and self._rank.rank == 0 and not self._options.survive
        store = gloo.Store(address, ranks=self._rank.size) if runs_store else None
        # Of the ranks' rendezvous: no other program gets it before they listen there.
        self._ports = PortReservation(address) if self._rank.rank == 0 or self._options.survive else None
        hello = protocol.Hello(
            self._rank.rank,
            self._rank.size,
            self._rank.local_rank,
            rank_info.host_name(),
            ProcessIdentity.current().place,
            address,
            port=self._ports.port if self._ports else 0,
            store=store.port if store else 0,
            versions=local_versions,
            key=self._key,
        )
        try:
            channel.send(hello)
            answer = channel.receive()
        except Closed:
            return None
        if not isinstance(answer, protocol.StartProgram):
            return None
        # The token stays the one that this process has: it never crosses the network.
        environment = {**self._rank_variables(), **answer.environment, rank_info.TOKEN: self._token}
        if self._options.gloo:
            local_size = answer.local_size
            layout = gloo.Layout(local_size, 0, 1) if local_size else gloo.layout(self._rank, os.environ)
            environment.update(gloo.environment(self._rank, layout, *answer.store))
        return environment

    def _rank_variables(self) -> dict[str, str]:
        values = (self._rank.rank, self._rank.size, self._rank.local_rank)
        identity = dict(zip(rank_info.VARIABLES[rank_info.LAUNCH], map(str, values), strict=True))
        gloo_timeout = str(math.ceil(rank_info.start_timeout_s()))
        return {rank_info.GLOO_TIMEOUT: gloo_timeout, **os.environ, **identity}

    def _send(self, message: protocol.Message) -> None:
        """To the supervisor, if there is one and it has not ended."""
        if self._channel:
            with contextlib.suppress(Closed):
                self._channel.send(message)

    def _run_program(self, environment: dict[str, str]) -> int:
        """Run the program to its end; its status as Popen has it."""
        environment.pop(agent_pipe.SUPERVISOR, None)
        if not self._channel:
            self._start(environment)
            return self._run_until_end()
        self._said = agent_pipe.AgentPipe()
        environment[agent_pipe.VARIABLE] = self._said.variable
        if self._options.survive:
            environment[membership.VARIABLE] = "1"
        with self._said.rank_end as inherited:
            self._start(environment, inherited.fileno())
        status = self._run_until_end()
        self._said.close()
        return status

    def _start(self, environment: dict[str, str], *descriptors: int) -> None:
        """Start the program, which inherits these file descriptors. Raises UserError if that fails."""
        forwarded = self._channel and not self._options.on_terminal
        connection = self._output_connection() if forwarded else None
        output = subprocess.PIPE if forwarded else None
        try:
            self._process = subprocess.Popen(
                self._program,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=_in_own_group,
                pass_fds=descriptors,
            )
        except OSError as error:
            raise UserError(f"cannot start {self._program[0]} ({error.strerror})", start_remedy(error)) from None
        if connection and self._process.stdout and self._process.stderr:
            self._output = ProgramOutput({"stdout": self._process.stdout, "stderr": self._process.stderr}, connection)
            self._output.start()

    def _output_connection(self) -> socket.socket:
        first = self._channel.supervisor_address if self._channel else ""
        channel = protocol.connect(self._token, rank_info.start_timeout_s(), first)
        with contextlib.suppress(Closed):
            channel.send(protocol.OutputOf(self._key))
            channel.receive()
        return channel.connection

    def _run_until_end(self) -> int:
        assert self._process
        kills = resources.out_of_memory_kills()
        with selectors.DefaultSelector() as selector:
            selector.register(self._wakeup_read, selectors.EVENT_READ, self._on_signal)
            if self._channel:
                selector.register(self._channel, selectors.EVENT_READ, self._on_message)
            if self._said:
                selector.register(self._said, selectors.EVENT_READ, self._on_said)
            while (status := self._process.poll()) is None or self._training_stops:
                soon = (self._waits and self._training) or self._kill_at < float("inf")
                self._serve(selector, 0.1 if soon else 1.0)
                if self._said:
                    self._said.send_rest()
                if self._waits:
                    self._signal(self._request)
                if time.monotonic() > self._kill_at:
                    _signal_each(descendants(), signal.SIGKILL)
            self._forward_said()  # why it ended, before that it has
            is_killed = shell_status(status) == 128 + signal.SIGKILL and self._kill_at == float("inf")  # by others
            if is_killed and resources.out_of_memory_kills() > kills:
                self._send(protocol.Said({Failure.__name__: asdict(Failure(OUT_OF_MEMORY, MORE_MEMORY))}))
            self._send(protocol.Ended(status))
            self._drain(selector)
        end_descendants()  # processes that it left behind
        return status

    @property
    def _training_stops(self) -> bool:
        """Whether training has to write its last checkpoint: the shell around it may have ended by the same signal."""
        asked = self._request and time.monotonic() < self._kill_at
        return bool(asked and self._training and self._training.running())

    @staticmethod
    def _serve(selector: selectors.BaseSelector, wait_s: float) -> None:
        for key, _ in selector.select(wait_s):
            key.data(selector)

    def _drain(self, selector: selectors.BaseSelector) -> None:
        """Wait until what the program has printed is sent; a supervisor that does not read takes none of the time."""
        drained_s = 0.0
        while self._output and self._output.is_alive() and drained_s < DRAIN_S:
            frame = self._output.frame
            self._output.join(DRAIN_STEP_S)
            self._serve(selector, 0.0)
            waits = frame and self._output.frame is frame
            drained_s += 0.0 if waits else DRAIN_STEP_S  # not by a clock: this process may have been suspended
        if self._output:
            self._output.close()

    def _on_signal(self, _: selectors.BaseSelector) -> None:
        assert self._process
        for number in os.read(self._wakeup_read, 64):
            if number in SIGNALS:
                self._send(protocol.Signal(number))
                self._signal(number)
        reap_orphans(self._process.pid)

    def _on_said(self, selector: selectors.BaseSelector) -> None:
        self._forward_said()
        if self._said and self._said.ended:
            selector.unregister(self._said)

    def _forward_said(self) -> None:
        for said in self._said.receive() if self._said else ():
            training = protocol.parse(said)
            if not isinstance(training, ProcessIdentity):
                self._send(protocol.Said(said))
            elif training != self._training:  # a script may train several times: what asked one asks the next
                self._training, self._waits = training, bool(self._request)

    def _on_message(self, selector: selectors.BaseSelector) -> None:
        assert self._channel
        try:
            for message in self._channel.receive_available():
                self._obey(message)
        except Closed:
            selector.unregister(self._channel)
            if self._output:
                self._output.close()
            self._end()

    def _obey(self, message: protocol.Message) -> None:
        match message:
            case protocol.Signal():
                self._signal(message.number)
            case protocol.NewMembership() if self._said and self._channel:
                address, port = message.membership.store
                store = address or self._channel.supervisor_address, port  # the launcher's host runs the server
                self._said.send(protocol.encode(message.membership._replace(store=store)))
            case protocol.End():
                if message.at_once:
                    _signal_each(descendants(), signal.SIGKILL)
                self._end()

    def _end(self) -> None:
        self._signal(signal.SIGTERM)
        self._kill_at = min(self._kill_at, time.monotonic() + GRACE_S)

    def _signal(self, number: int) -> None:
        """Send a signal to the process that trains, or of another program to the first that handles it.

        Its child processes, and the shell around it, would die of a signal that it handles itself. If none handles it,
        it ends all; but SIGUSR1 asks for a checkpoint, and waits, as the program may still import its packages.
        """
        self._request = number
        if self._training and self._training.running():
            handlers = [self._training.pid] if handles(self._training.pid, number) else []
        else:
            handlers = handling(number)
        self._waits = not handlers and number == signal.SIGUSR1
        _signal_each(handlers or ([] if self._waits else descendants()), number)


def _signal_each(processes: list[int], number: int) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _in_own_group() -> None:
    os.setpgid(0, 0)
    end_with_parent()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
