"""Signals that ask a process to stop, and how often: they may end it."""

import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import pathlib, sys, time
from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.training.ranks import StopRequest

with StopRequest(pathlib.Path(), SingleProcess()) as stop:
    if sys.argv[1:] == ["finishing"]:
        stop.finishing()
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
        if pathlib.Path("end").exists():
            sys.exit(f"reason {stop.reason()!r}")
"""


@pytest.fixture
def process(tmp_path, request):
    command, pipe = [sys.executable, "-c", PROGRAM, *getattr(request, "param", [])], subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, text=True, stdout=pipe, stderr=pipe) as started:
        assert started.stdout.readline()
        yield started
        started.kill()


def send(process, *numbers, apart_s):
    for number in numbers:
        process.send_signal(number)
        time.sleep(apart_s)


def test_signal_that_is_repeated_is_the_same_request(process, tmp_path):
    """As Slurm and a terminal repeat them; SIGUSR1 may also come again later."""
    send(process, signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR1, apart_s=0.05)
    (tmp_path / "end").touch()
    _, errors = process.communicate(timeout=30)
    assert "reason 'SIGTERM'" in errors


def test_second_ctrl_c_ends_at_once(process):
    send(process, signal.SIGINT, apart_s=0)
    first = process.stderr.readline()
    assert first == "hvdtrain: rank 0: stopping after this step; press Ctrl-C again to end at once\n"
    time.sleep(0.6)
    assert process.poll() is None
    send(process, signal.SIGINT, apart_s=0)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "hvdtrain: rank 0: interrupted\n")


@pytest.mark.parametrize("process", [["finishing"]], indirect=True)
def test_signal_at_the_end_does_not_lose_the_result(process, tmp_path):
    send(process, signal.SIGTERM, apart_s=0.2)
    (tmp_path / "end").touch()
    _, errors = process.communicate(timeout=30)
    assert errors.splitlines()[0] == "hvdtrain: rank 0: all steps are done, and the result is being written"
    assert "reason 'SIGTERM'" in errors
