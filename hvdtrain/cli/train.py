"""Training, from a command line to an exit status: the same for `hvdtrain train` and the frameworks' entry points."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

from hvdtrain.config.options import Framework
from hvdtrain.errors import HvdtrainError
from hvdtrain.system import rank_info

log = logging.getLogger("hvdtrain")

# A launcher ends the job when the first of its processes fails, so the rank that ends first is the one whose error is
# seen: rank 0 for an error of all ranks, then a rank that failed alone, last those that only lost another rank.
OTHER_RANKS_WAIT_S = 2.0
UNEXPECTED_ERROR_WAIT_S = 4.0
FOLDER_WAIT_S = 2.0
"""How long the end of the process may wait for a run's folder that does not respond."""


def main(
    framework: Framework | None = None,
    program: str = "python -m hvdtrain train",
    argv: list[str] | None = None,
) -> None:
    """Train with the options in `argv`, by default the command line's; ends the process with an exit status.

    framework: the only one that this entry point accepts. program: what --help calls it.
    """
    rank = 0
    _end_at_once_by_interrupt()
    try:
        rank = rank_info.detect().rank
        _train(framework, program, sys.argv[1:] if argv is None else argv, rank)
    except HvdtrainError as error:
        _exit(rank, str(error), error.exit_status, OTHER_RANKS_WAIT_S if rank else 0.0)
    except Exception as error:
        log.error("%s", traceback.format_exc())
        if not log.handlers:
            traceback.print_exc()
        summary = (str(error).strip().splitlines() or [""])[-1]  # MXNet's messages begin with a traceback
        text = f"{type(error).__name__}: {summary} (the full traceback is in this rank's log)"
        _exit(rank, text, 1, UNEXPECTED_ERROR_WAIT_S)


def _train(framework: Framework | None, program: str, argv: list[str], rank: int) -> None:
    from hvdtrain.cli.training_options import options_for_defaults, parse
    from hvdtrain.training.train import train

    try:
        known = options_for_defaults(argv)
        if known.strategy == "help":
            from hvdtrain.cli import strategy_list

            strategy_list.show(framework or known.framework or "torch")
            _exit(rank, "", 0, 0.0)
        config, runtime = parse(argv, program, framework, console=rank == 0)
    except SystemExit as end:  # --help, or an unknown option
        _exit(rank, "", int(end.code or 0), 0.0)
    train(config, runtime, examine_host)


def examine_host() -> list[dict[str, Any]]:
    """The doctor's findings on this host, for a run's record."""
    from hvdtrain.doctor.examination import quick

    return quick()


def _how_to_resume() -> str:
    """The end of the message of a run that has a checkpoint."""
    from hvdtrain.launch.attempts import newest_checkpoint
    from hvdtrain.runs.console import open_folder

    folder, steps = open_folder(), []
    reading = threading.Thread(target=lambda: steps.append(newest_checkpoint(folder)), daemon=True)
    reading.start()
    reading.join(FOLDER_WAIT_S)
    return f"; resume from step {steps[0]} with --resume {folder}" if steps and steps[0] is not None else ""


def _end_at_once_by_interrupt() -> None:
    """Until training handles Ctrl-C itself, it ends the process at once: also in a framework's import or start.

    Python's own handler waits until a library returns, and then prints a traceback. A process that ignores Ctrl-C, as
    in the background of a shell, still does.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _exit(rank: int, text: str, status: int, wait_s: float) -> NoReturn:
    """Write the error to this rank's log and stderr, and end at once.

    An orderly shutdown would wait for ranks that no longer respond.
    """
    if text and log.handlers:  # the log is open, so this import cannot fail
        from hvdtrain.runs.console import log_to_file

        text += _how_to_resume() if rank == 0 and "--resume" not in text else ""
        log_to_file(logging.ERROR, text)
    time.sleep(wait_s)
    if text:
        print(f"hvdtrain: rank {rank}: {text}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
