"""Training, from a command line to an exit status: the same for `hvdtrain train` and the frameworks' entry points."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
import time
import traceback
from typing import Any, NoReturn

from hvdtrain.config.options import Framework
from hvdtrain.errors import HvdtrainError
from hvdtrain.system import agent_pipe, rank_info
from hvdtrain.system.agent_pipe import RankError

log = logging.getLogger("hvdtrain")

# Under hvdtrain's launcher a rank hands over its error, and the launcher prints the first one. Another launcher ends
# the job when the first of its processes fails, so the rank that ends first is the one whose error is seen: rank 0 for
# an error of all ranks, then a rank that failed alone, last those that only lost another rank.
OTHER_RANKS_WAIT_S = 2.0
UNEXPECTED_ERROR_WAIT_S = 4.0


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
        failure = RankError(error.reason, error.remedy, error.retry)
        _exit(rank, failure, error.exit_status, OTHER_RANKS_WAIT_S if rank else 0.0)
    except KeyboardInterrupt:
        _exit(rank, RankError("interrupted"), 130, 0.0)
    except Exception as error:
        log.error("%s", traceback.format_exc())
        if not log.handlers:
            traceback.print_exc()
        summary = (str(error).strip().splitlines() or [""])[-1]  # MXNet's messages begin with a traceback
        text = f"{type(error).__name__}: {summary} (the full traceback is in this rank's log)"
        _exit(rank, RankError(text), 1, UNEXPECTED_ERROR_WAIT_S)


def _train(framework: Framework | None, program: str, argv: list[str], rank: int) -> None:
    from hvdtrain.cli.training_options import options_for_defaults, parse
    from hvdtrain.training.train import train

    try:
        known = options_for_defaults(argv)
        if known.strategy == "help":
            from hvdtrain.cli import strategy_list

            strategy_list.show(framework or known.framework or "torch")
            _exit(rank, None, 0, 0.0)
        printed, hidden = io.StringIO(), io.TextIOWrapper(io.BytesIO(), "utf-8")
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(hidden if rank else sys.stdout):
            config, runtime = parse(argv, program, framework, console=True)
    except SystemExit as end:
        _end_without_options(rank, int(end.code or 0), printed.getvalue())
    train(config, runtime, examine_host)


def _end_without_options(rank: int, status: int, printed: str) -> NoReturn:
    """After --help, or an error in the command line, which all ranks have found. printed: what explains the error."""
    if not (status and agent_pipe.send(RankError(_without_box(printed), retry=False))):
        time.sleep(OTHER_RANKS_WAIT_S if rank else 0.0)
        sys.stderr.write(printed)
    _exit(rank, None, status, 0.0)


def _without_box(text: str) -> str:
    """A message that tyro draws with a title and rules in a box, on one line."""
    text = re.sub(r"^╭.*", "", text)
    text = re.sub(r"│\s*─+\s*│", ";", text)
    return " ".join(re.sub(r"[╭╮╰╯│─]", " ", text).split()).replace(" ;", ";")


def examine_host() -> list[dict[str, Any]]:
    """The doctor's findings on this host, for a run's record."""
    from hvdtrain.doctor.examination import quick

    return quick()


def _exit(rank: int, error: RankError | None, status: int, wait_s: float) -> NoReturn:
    """Write the error to this rank's log, hand it to the launcher or print it, and end at once.

    An orderly shutdown would wait for ranks that no longer respond. wait_s: before the error is printed here.
    """
    if error and log.handlers:  # the log is open, so this import cannot fail
        from hvdtrain.runs.console import log_to_file

        log_to_file(logging.ERROR, str(error))
    if error and not agent_pipe.send(error):
        time.sleep(wait_s)
        print(f"hvdtrain: rank {rank}: {error}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
