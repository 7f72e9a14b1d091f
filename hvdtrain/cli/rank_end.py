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
from hvdtrain.system.checkpoint_folder import newest_whole
from hvdtrain.system.run_end import Failure, RunEnd
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


def end(rank: int, failure: Failure | None, status: int, wait_s: float = 0.0, on_end: str = "") -> NoReturn:
    """Write the failure to this rank's log, hand it to the launcher or print it, run a command, and end.

    It waits for no rank that no longer responds. wait_s: before the failure is printed here. on_end: the command.
    """
    if failure and failure.reason:
        _report(rank, failure, wait_s)
    notify(on_end, RunEnd.of_process(status, failure))
    with contextlib.suppress(OSError):  # a full disk or a closed pipe
        sys.stdout.flush()
    sys.stderr.flush()
    shut_down_horovod(SHUTDOWN_LIMIT_S)
    os._exit(status)


def notify(on_end: str, end: RunEnd) -> None:
    """Run the command of --on-end, if there is one, on rank 0."""
    if on_end:
        from hvdtrain.runs import on_end as command

        command.notify(on_end, end)


def _report(rank: int, failure: Failure, wait_s: float) -> None:
    if log.handlers:  # the log is open, so this import cannot fail
        from hvdtrain.runs.console import log_to_file

        log_to_file(logging.ERROR, str(failure))
    if agent_pipe.send(failure):
        return
    time.sleep(wait_s)
    advice = _how_to_resume() if failure.resumable and not rank else ""
    print(f"hvdtrain: {printable(str(failure.of_rank(rank, '')))}{advice}", file=sys.stderr, flush=True)


def _how_to_resume() -> str:
    """The end of the message of a run that has a checkpoint."""
    if not log.handlers:
        return ""
    from hvdtrain.runs.console import open_folder

    folder, checkpoints = open_folder(), []
    if not folder:
        return ""

    def read() -> None:
        with contextlib.suppress(OSError):
            checkpoints.append(newest_whole(folder / "checkpoints"))

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(FOLDER_WAIT_S)
    return f"; resume from step {checkpoints[0].step} with --resume {folder}" if checkpoints and checkpoints[0] else ""
