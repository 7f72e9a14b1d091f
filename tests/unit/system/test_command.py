"""Standard output and error: whole lines, errors in one sentence; and how processes end, in words.

Processes: what is observed are a process's own streams and its exit status.
"""

from __future__ import annotations

import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.jobs import wait_for
from support.report import make_run
from support.stack import cases

from hvdtrain.doctor.subprocesses import Completed
from hvdtrain.system.command import OutputFile
from hvdtrain.system.processes import (
    ProcessIdentity,
    describe_status,
    handles,
    is_second_request,
    shell_status,
    signal_name,
)
from hvdtrain.training.interpreter_watch import is_stopped

WAITS = """
import sys, time
from hvdtrain.system.command import end_with_reader
end_with_reader()
print("waits", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["pipe", "socket", "a pipe that is read", "file"])
def test_a_command_that_waits_ends_with_what_reads_it(tmp_path, kind):
    """As ssh without a terminal, which sends no signal. Needs a process, with output of its own."""
    reader, writer = socket.socketpair() if kind == "socket" else map(os.fdopen, os.pipe(), ("rb", "wb"))
    output = (tmp_path / "output").open("wb") if kind == "file" else writer
    process = subprocess.Popen([sys.executable, "-c", WAITS], stdout=output)
    writer.close()
    try:
        if kind == "file":
            wait_for(lambda: (tmp_path / "output").read_bytes(), 20)
        else:
            assert os.read(reader.fileno(), 1) == b"w"
        if kind in ("pipe", "socket"):
            reader.close()
            assert process.wait(20) == 128 + signal.SIGPIPE
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
    finally:
        process.kill()
        process.wait()
        reader.close()


PRINTS = """
import logging, sys
from rich.console import Console
from hvdtrain.system.command import prepare_streams
prepare_streams()
print("one", file=sys.stderr)
print("two\\nthree", file=sys.stderr)
print("fo", end="", file=sys.stderr)
print("ur", file=sys.stderr)
logging.warning("five")
Console(stderr=True).print("six")
print("seven")
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_lines_are_written_in_one_piece(unbuffered):
    read, write = os.pipe2(os.O_DIRECT)  # each read returns what one call of write wrote
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    subprocess.run([sys.executable, "-c", PRINTS], env=environment, stdout=write, stderr=write, check=True)
    os.close(write)
    pieces = iter(lambda: os.read(read, 4096).decode(), "")
    assert list(pieces) == ["one\n", "two\n", "three\n", "four\n", "WARNING:root:five\n", "six\n", "seven\n"]
    os.close(read)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": "xterm", "OMPI_COMM_WORLD_RANK": "0"}, False),
        ({"TERM": "xterm", "OMPI_COMM_WORLD_RANK": "0", "HVDTRAIN_RANK": "0"}, True),
    ],
)
def test_terminals_that_show_colors(monkeypatch, environment, expected):
    for name in ("TERM", "OMPI_COMM_WORLD_RANK", "HVDTRAIN_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    master, terminal = pty.openpty()
    with OutputFile(terminal, "w") as file:
        assert file.isatty() == expected
    os.close(master)


OTHERS = ("train --help", "launch local -n 2 --dry-run -- python", "launch local --help", "bench --help",
          "doctor --only python", "train --framework torch --strategy help")  # fmt: skip


@pytest.mark.parametrize("command", cases(("--help", "report run", *OTHERS), short=("--help", "report run")))
def test_output_that_is_not_accepted(tmp_path: Path, command: str):
    """A full disk is one sentence; a reader that is gone, as of `| head`, is nothing to speak of."""
    make_run(tmp_path / "run")
    read, closed_pipe = os.pipe()
    os.close(read)
    with open("/dev/full", "w") as full_disk, open(closed_pipe, "w") as pipe:
        for output, text in (
            (full_disk, "standard output cannot be written (No space left on device); redirect it to another file\n"),
            (pipe, ""),
        ):
            started = [sys.executable, "-m", "hvdtrain", *command.split()]
            done = subprocess.run(started, cwd=tmp_path, stdout=output, stderr=subprocess.PIPE, text=True)
            assert done.returncode == (1 if text else 141)
            assert done.stderr.removeprefix("hvdtrain: ").removeprefix("rank 0: ") == text


def test_closed_streams(tmp_path: Path):
    command = f"{sys.executable} -m hvdtrain --help >&-; {sys.executable} -m hvdtrain nothing 2>&-"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


NUMBERS = range(1, 65)
RESERVED = {32, 33}
"""The C library keeps them for itself; they have no name."""


def test_each_end_by_a_signal_is_described_with_its_name_in_bash():
    listed = subprocess.run(["bash", "-c", "kill -l"], capture_output=True, text=True, check=True).stdout
    words = listed.replace(")", "").split()
    names = dict(zip(map(int, words[::2]), words[1::2], strict=True))
    assert set(names) == set(NUMBERS) - RESERVED
    for number, name in names.items():
        ours = signal_name(number)
        if number > signal.SIGRTMIN and name.startswith("SIGRTMAX-"):
            ours = f"SIGRTMAX-{signal.SIGRTMAX - signal.SIGRTMIN - int(ours.partition('+')[2])}"
        assert ours == name
    assert len({signal_name(number) for number in NUMBERS}) == 64
    for number in NUMBERS:
        assert signal_name(number) in describe_status(-number)
        assert signal_name(number) in Completed(-number, "", "", 1).reason() or number == signal.SIGALRM
        assert shell_status(-number) == 128 + number
        assert is_second_request(number, 60) == (number in (signal.SIGTERM, signal.SIGINT))


def test_a_program_whose_name_the_kernel_cuts_within_a_character(tmp_path):
    program = tmp_path / ("ü" * 8)
    program.symlink_to(str(shutil.which("sleep")))
    with subprocess.Popen([program, "60"]) as child:
        try:
            assert not handles(child.pid, signal.SIGUSR1) and not is_stopped(child.pid)
            other = replace(ProcessIdentity.current(), pid=child.pid)
            assert other.running() is False, "another one had this number"
        finally:
            child.kill()
