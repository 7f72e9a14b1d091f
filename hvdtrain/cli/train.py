"""From a command line to an exit status: the same for every way to start training."""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from typing import NoReturn

from hvdtrain.config.options import Framework
from hvdtrain.errors import HvdtrainError
from hvdtrain.system import rank_info

log = logging.getLogger("hvdtrain")

# The launcher ends a job when its first process ends badly. So who ends first is who is heard: rank 0 for what all
# ranks met, then the one rank that met something of its own, and last those that only lost their neighbour.
OTHER_RANKS_WAIT_S = 2.0
UNEXPLAINED_WAIT_S = 4.0


def main(
    framework: Framework | None = None,
    program: str = "python -m hvdtrain train",
    argv: list[str] | None = None,
) -> None:
    """Train by the options in `argv` (the command line's by default); ends the process with a status where it fails."""
    rank = 0
    try:
        rank = rank_info.detect().rank
        from hvdtrain.cli.training_options import early, parse
        from hvdtrain.training.loop import train

        argv = sys.argv[1:] if argv is None else argv
        try:
            known = early(argv)
            if known.strategy == "help":
                from hvdtrain.cli import strategy_list

                strategy_list.show(framework or known.framework or "torch")
                _end(rank, "", 0, 0.0)
            config, places = parse(argv, program, framework, speaks=rank == 0)
        except SystemExit as end:  # --help, or an option that does not exist
            _end(rank, "", int(end.code or 0), 0.0)
        train(config, places)
    except HvdtrainError as error:
        _end(rank, str(error), error.exit_status, OTHER_RANKS_WAIT_S if rank else 0.0)
    except KeyboardInterrupt:
        _end(rank, "interrupted", 130, 0.0)
    except Exception as error:
        log.error("%s", traceback.format_exc())
        if not log.handlers:
            traceback.print_exc()
        summary = (str(error).strip().splitlines() or [""])[-1]  # MXNet's begin with a traceback
        _end(
            rank,
            f"{type(error).__name__}: {summary} (the whole story is in this rank's log)",
            1,
            UNEXPLAINED_WAIT_S,
        )


def _end(rank: int, text: str, status: int, wait_s: float) -> NoReturn:
    """Say it and leave at once: an orderly shutdown would wait for ranks that no longer answer."""
    for handler in log.handlers:
        if text and isinstance(handler, logging.FileHandler):
            handler.handle(log.makeRecord(log.name, logging.ERROR, "", 0, text, (), None))
    time.sleep(wait_s)
    if text:
        print(f"hvdtrain: rank {rank}: {text}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
