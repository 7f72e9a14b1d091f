"""How the process of a rank ends: with one line for an error, in its log and on one console, and an exit status."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from typing import NoReturn

from hvdtrain.collectives.shutdown import shut_down_horovod
from hvdtrain.system import agent_pipe
from hvdtrain.system.agent_pipe import RankError
from hvdtrain.system.checkpoint_folder import newest_whole
from hvdtrain.system.text import printable

log = logging.getLogger("hvdtrain")

# Under hvdtrain's launcher a rank hands over its error, and the launcher prints the first one. Another launcher ends
# the job when the first of its processes fails, so the rank that ends first is the one whose error is seen: rank 0 for
# an error of all ranks, then a rank that failed alone, last those that only lost another rank.
OTHER_RANKS_WAIT_S = 2.0
UNEXPECTED_ERROR_WAIT_S = 4.0
FOLDER_WAIT_S = 2.0
"""How long the end of the process may wait for a run's folder that does not respond."""
SHUTDOWN_LIMIT_S = 2.0


def end(rank: int, error: RankError | None, status: int, wait_s: float = 0.0, on_end: str = "") -> NoReturn:
    """Write the error to this rank's log, hand it to the launcher or print it, run a command, and end.

    It waits for no rank that no longer responds. wait_s: before the error is printed here. on_end: the command.
    """
    if error and error.reason:
        _report(rank, error, wait_s)
    notify(on_end, status, error.reason if error else "")
    with contextlib.suppress(OSError):  # a full disk or a closed pipe
        sys.stdout.flush()
    sys.stderr.flush()
    shut_down_horovod(SHUTDOWN_LIMIT_S)
    os._exit(status)


def notify(on_end: str, status: int, reason: str = "") -> None:
    """Run the command of --on-end, if there is one, on rank 0."""
    if on_end:
        from hvdtrain.runs import on_end as command

        command.notify(on_end, status, reason)


def _report(rank: int, error: RankError, wait_s: float) -> None:
    text = str(error)
    if log.handlers:  # the log is open, so this import cannot fail
        from hvdtrain.runs.console import log_to_file

        log_to_file(logging.ERROR, text)
    if agent_pipe.send(error):
        return
    time.sleep(wait_s)
    label = "" if text.startswith("rank ") else f"rank {rank}: "  # errors of all ranks name the one at fault
    advice = "" if rank or "--resume" in text else _how_to_resume()
    print(f"hvdtrain: {label}{printable(text)}{advice}", file=sys.stderr, flush=True)


def _how_to_resume() -> str:
    """The end of the message of a run that has a checkpoint."""
    if not log.handlers:
        return ""
    from hvdtrain.runs.console import open_folder

    folder, found = open_folder(), []
    if not folder:
        return ""

    def read() -> None:
        with contextlib.suppress(OSError):
            found.append(newest_whole(folder / "checkpoints"))

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(FOLDER_WAIT_S)
    return f"; resume from step {found[0].step} with --resume {folder}" if found and found[0] else ""
