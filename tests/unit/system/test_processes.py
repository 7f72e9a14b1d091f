"""How processes end, in words."""

from __future__ import annotations

import signal
import subprocess

import pytest

from hvdtrain.doctor.subprocesses import Completed
from hvdtrain.system.processes import describe_status, is_second_request, shell_status, signal_name

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


@pytest.mark.parametrize("number", NUMBERS)
def test_each_end_by_a_signal_is_described(number):
    assert signal_name(number) in describe_status(-number)
    assert signal_name(number) in Completed(-number, "", "", 1).reason() or number == signal.SIGALRM
    assert shell_status(-number) == 128 + number
    assert is_second_request(number, 60) == (number in (signal.SIGTERM, signal.SIGINT))
