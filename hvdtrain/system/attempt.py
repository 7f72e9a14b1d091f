"""A trial of something that may crash or hang, or change this process for good: in a copy of the process."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from hvdtrain.system.processes import end_with_parent

LIMIT_S = 60
"""After which a trial ends. Threads of this process are not in the copy, so a library may wait for them forever."""
NODE = re.compile(r"\{\{.*?\}\} *")
"""Where TensorFlow says in its errors what it computed."""
KIND = re.compile(r"^(?:\w+\.)*(\w+: )\1*")
"""The class of an error, of which MXNet's are named twice."""


class AttemptEnd(NamedTuple):
    """What came of a trial. status: 0, 1 after an exception, or minus the signal that ended it."""

    status: int
    output: str

    @property
    def problem(self) -> str:
        """Why it failed, in one line; empty if it worked, or if that is not known, because it did not end."""
        if self.status in (0, -signal.SIGALRM):
            return ""
        if self.status < 0:
            return f"it was killed by {signal.Signals(-self.status).name}"
        reason = (self.output.strip().splitlines() or ["no reason given"])[-1]
        return KIND.sub(r"\1", NODE.sub("", reason))[:200]


def attempt(function: Callable[[], object]) -> AttemptEnd:
    """Call a function in a copy of this process, which ends with it; what it and its libraries print is the output."""
    output = os.memfd_create("attempt")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a process with threads, from Python 3.12 on
            pid = os.fork()
        if not pid:
            _call(function, output)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return AttemptEnd(status, os.pread(output, os.fstat(output).st_size, 0).decode(errors="replace"))
    finally:
        os.close(output)


def _call(function: Callable[[], object], output: int) -> NoReturn:
    """In the copy: call the function, without a trace of it in the log or the folder of this process."""
    status = 1
    try:
        end_with_parent()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(LIMIT_S)
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for stream in (1, 2):
            os.dup2(output, stream)
        # A notebook has streams of its own.
        sys.stdout = sys.stderr = os.fdopen(output, "w", buffering=1, closefd=False)
        function()
        status = 0
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(2, traceback.format_exception_only(type(error), error)[-1].encode(errors="replace"))
    finally:
        os._exit(status)
