"""Short subprocesses that cannot hang the doctor: each has a time limit, and none holds a pipe open."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, NamedTuple

from hvdtrain.system.processes import end_with_parent, signal_name

MESSAGE_PREFIX = "@doctor "
"""Before the JSON of a probe's message; a launcher may put a label before the line."""
GRACE_S = 4.0
"""How long a launcher gets to end its ranks."""
NO_PROGRAM = 127
"""Exit status of a program that could not be started, as in a shell."""
OUTPUT_BYTES = 64 << 20
"""How much a program may print: Horovod and NCCL may log a lot."""
ERROR_WORDS = ("error", "failed", "not enough", "root")
STARTED = "HVDTRAIN_DOCTOR"
"""Environment variable of all that the doctor has started."""


RANK_LIMIT_S = 30
"""How long ranks may take to find each other, and then to make an allreduce."""


class Completed(NamedTuple):
    """How a subprocess ended."""

    status: int | None
    """Exit status, negative for a signal; None after a timeout; `NO_PROGRAM` if it could not be started."""
    out: str
    err: str
    limit_s: float
    seconds: float = 0.0

    @property
    def text(self) -> str:
        return self.err + self.out

    @property
    def timed_out(self) -> bool:
        """Whether it was ended, or a probe ended itself, because its time limit was reached."""
        return self.status is None or self.status == -signal.SIGALRM

    @property
    def failed_late(self) -> bool:
        """Whether its time limit, or one of a launcher, of Horovod or of Gloo, may have ended it."""
        return self.timed_out or (self.status != 0 and self.seconds >= RANK_LIMIT_S)

    def reason(self) -> str:
        """Why it failed: how it ended, and the line of its output that most likely says why."""
        if self.status is None:
            how = f"no end within {self.limit_s:.0f} s"
        elif self.status == -signal.SIGALRM:
            how = "it hung until its time limit"
        elif self.status < 0:
            how = f"killed by {signal_name(-self.status)}"
        else:
            how = f"exit status {self.status}"
        line = error_line(self.err) or error_line(self.out)
        return f"{how}: {line}" if line else how


def error_line(text: str) -> str:
    """The last line that reports an error, or else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" -\t") and MESSAGE_PREFIX not in line]
    errors = [line for line in lines if any(word in line.lower() for word in ERROR_WORDS)]
    return (errors or lines or [""])[-1][:200]


def first_line(text: str, limit: int = 200) -> str:
    """The first line of `text` that is not blank, cut to `limit` characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def probe_command(part: str, *arguments: str, limit_s: float) -> list[str]:
    """The command line of a part of the probe, which ends itself after `limit_s`."""
    return [sys.executable, "-m", "hvdtrain.doctor.probe", f"{limit_s:.0f}", part, *arguments]


def run(command: list[str], limit_s: float, environment: dict[str, str]) -> Completed:
    """Run a program to its end, or end it after `limit_s`; raises nothing."""
    # Files in memory, not pipes: a grandchild that survives would hold a pipe open, and /tmp may be full.
    with os.fdopen(output_file(), "rb") as out, os.fdopen(output_file(), "rb") as err:
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        except (OSError, ValueError) as error:
            return Completed(NO_PROGRAM, "", f"{command[0]} cannot be started: {error}", limit_s)
        status: int | None = None
        began = time.monotonic()
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            end(process)
        seconds = time.monotonic() - began
        return Completed(status, content(out.fileno()), content(err.fileno()), limit_s, seconds)


def output_file() -> int:
    """A file in memory for a program's output: to write more than OUTPUT_BYTES to it is an error for the program."""
    file = os.memfd_create("output", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, OUTPUT_BYTES)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    return file


def content(file: int) -> str:
    """What a program has written to its `output_file` so far; both have one position in it."""
    return os.pread(file, os.lseek(file, 0, os.SEEK_CUR), 0).decode(errors="replace")


def end(process: subprocess.Popen[Any]) -> None:
    """End a program's process group: first with SIGTERM, so that a launcher ends its ranks, then with SIGKILL."""
    for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 1.0)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process blocked in a dead file system survives SIGKILL
            process.wait(wait_s)


def send(**values: Any) -> None:
    # One write: print() makes two where Python is unbuffered, and other ranks may write in between.
    sys.stdout.write(f"{MESSAGE_PREFIX}{json.dumps(values)}\n")
    sys.stdout.flush()


def merged_messages(text: str) -> dict[str, Any]:
    """The values of all messages of one probe, by name."""
    return {name: value for message in read_messages(text) for name, value in message.items()}


def read_messages(text: str) -> list[dict[str, Any]]:
    """The messages of probes in the output of any launcher, which may put several on one line."""
    messages = []
    for part in text.split(MESSAGE_PREFIX)[1:]:
        with contextlib.suppress(ValueError, RecursionError):
            messages.append(json.JSONDecoder().raw_decode(part)[0])
    return [message for message in messages if isinstance(message, dict)]
