"""How processes end, in words, and what the kernel says about them. Processes: bash's names, and one to look at."""

from __future__ import annotations

import shutil
import signal
import subprocess

from hvdtrain.doctor.subprocesses import Completed
from hvdtrain.system.processes import (
    ProcessIdentity,
    describe_status,
    is_second_request,
    shell_status,
    signal_name,
    would_end,
)
from hvdtrain.training.interpreter_watch import is_stopped

NUMBERS = range(1, 65)
RESERVED = {32, 33}
"""The C library keeps them for itself; they have no name."""


def test_each_signal_has_a_name_as_in_bash():
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


def test_each_end_by_a_signal_is_described():
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
            assert would_end(child.pid, signal.SIGUSR1) and not is_stopped(child.pid)
            assert ProcessIdentity.current()._replace(pid=child.pid).running() is False, "another one had this number"
        finally:
            child.kill()
