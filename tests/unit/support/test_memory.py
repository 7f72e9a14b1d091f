"""A command in a control group has as much memory as the group, and no more."""

import os
import signal
import subprocess
import sys

import pytest
from support.memory import limited_group

from hvdtrain.errors import UserError

LIMIT = 64 << 20


def test_command_cannot_use_more_than_the_limit():
    try:
        with limited_group(LIMIT) as group:
            fits, too_much = (
                subprocess.run([*group.command, sys.executable, "-c", f"bytearray(b'1') * {size}"]).returncode
                for size in (LIMIT // 2, LIMIT * 2)
            )
            peak = group.peak
    except UserError as error:
        pytest.skip(str(error))
    assert (fits, too_much) == (0, -signal.SIGKILL)
    assert peak in (0, LIMIT)
    assert not os.path.exists(group.peak_file), "the group is removed"
