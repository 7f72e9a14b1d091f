"""Training, from a command line to an exit status: the same for `hvdtrain train` and the frameworks' entry points."""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from typing import Any, NoReturn

from hvdtrain.collectives.shutdown import shut_down_horovod
from hvdtrain.config.options import Framework
from hvdtrain.errors import HvdtrainError
from hvdtrain.system import rank_info

log = logging.getLogger("hvdtrain")

# A launcher ends the job when the first of its processes fails, so the rank that ends first is the one whose error is
# seen: rank 0 for an error of all ranks, then a rank that failed alone, last those that only lost another rank.
OTHER_RANKS_WAIT_S = 2.0
UNEXPECTED_ERROR_WAIT_S = 4.0
SHUTDOWN_LIMIT_S = 2.0


def main(
    framework: Framework | None = None,
    program: str = "python -m hvdtrain train",
    argv: list[str] | None = None,
) -> None:
    """Train with the options in `argv`, by default the command line's; ends the process with an exit status.

    framework: the only one that this entry point accepts. program: what --help calls it.
    """
    rank = 0
    try:
        rank = rank_info.detect().rank
        _train(framework, program, sys.argv[1:] if argv is None else argv, rank)
    except HvdtrainError as error:
        _exit(rank, str(error), error.exit_status, OTHER_RANKS_WAIT_S if rank and error.exit_status else 0.0)
    except KeyboardInterrupt:
        _exit(rank, "interrupted", 130, 0.0)
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


def _exit(rank: int, text: str, status: int, wait_s: float) -> NoReturn:
    """Write the error to this rank's log and stderr, and end without waiting for ranks that no longer respond."""
    if text and log.handlers:  # the log is open, so this import cannot fail
        from hvdtrain.runs.console import log_to_file

        log_to_file(logging.ERROR, text)
    time.sleep(wait_s)
    if text:
        print(f"hvdtrain: rank {rank}: {text}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    shut_down_horovod(SHUTDOWN_LIMIT_S)
    os._exit(status)
