"""Short subprocesses that cannot hang: every one has a limit, and none keeps a pipe open."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any, NamedTuple

from hvdtrain.system.processes import end_with_parent

MARK = "@doctor "
"""Before the JSON of a probe, which may stand behind what a launcher puts before each line."""
GRACE_S = 4.0
"""How long a launcher may take to end its ranks."""


class Done(NamedTuple):
    """How a subprocess ended."""

    status: int | None
    """Exit status, less than 0 for a signal; None where the time was up; 127 where it could not be started."""
    out: str
    err: str
    limit_s: float

    def reason(self) -> str:
        """Why it failed, in a few words: its end, and the line that most likely says why."""
        if self.status is None:
            how = f"no end within {self.limit_s:.0f} s"
        elif self.status == -signal.SIGALRM:
            how = "it stood still until its time was up"
        elif self.status < 0:
            how = f"killed by {signal.Signals(-self.status).name}"
        else:
            how = f"exit status {self.status}"
        told = telling(self.err) or telling(self.out)
        return f"{how}: {told}" if told else how


def telling(text: str) -> str:
    """The line that says most: the last one that names an error, else the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" -\t") and MARK not in line]
    errors = [line for line in lines if any(word in line.lower() for word in ("error", "failed", "not enough", "root"))]
    return (errors or lines or [""])[-1][:200]


def run(words: list[str], limit_s: float, environment: dict[str, str]) -> Done:
    """Run a program to its end, or to the end of its time; raises nothing."""
    # Files in memory, not pipes: a grandchild that lives on would keep a pipe open, and /tmp may be full.
    out, err = os.memfd_create("out"), os.memfd_create("err")
    try:
        try:
            process = subprocess.Popen(
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        except (OSError, ValueError) as error:
            return Done(127, "", f"{words[0]} cannot be started: {error}", limit_s)
        status: int | None
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            end(process)
            status = None
        return Done(status, _content(out), _content(err), limit_s)
    finally:
        os.close(out)
        os.close(err)


def end(process: subprocess.Popen[Any]) -> None:
    """End a program and what it started: asked first, so that a launcher ends its ranks, then made to."""
    for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 1.0)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process in a dead file system cannot even be killed
            process.wait(wait_s)


def _content(file: int) -> str:
    return os.pread(file, 1 << 22, 0).decode(errors="replace")


def say(**values: Any) -> None:
    """Print what a probe found, as one line."""
    # Whole, as print does not write it where Python is unbuffered: other ranks print between its two writes.
    sys.stdout.write(f"{MARK}{json.dumps(values)}\n")
    sys.stdout.flush()


def said(text: str) -> list[dict[str, Any]]:
    """What probes said, from the output of any launcher, which may put several on one line."""
    told = []
    for part in text.split(MARK)[1:]:
        with contextlib.suppress(ValueError, RecursionError):
            told.append(json.JSONDecoder().raw_decode(part)[0])
    return [one for one in told if isinstance(one, dict)]
