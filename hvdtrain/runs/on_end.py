"""--on-end of training: rank 0 runs a command when training ends."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from hvdtrain.errors import RankRemoved
from hvdtrain.runs import console
from hvdtrain.system import on_end, rank_info
from hvdtrain.system.run_end import RunEnd

log = logging.getLogger("hvdtrain")

LIMIT_S = 20.0
"""How long the command may take; other ranks may wait for this one meanwhile, and the least --hang-timeout is 30 s."""


def notify(command: str, end: RunEnd) -> None:
    """On rank 0, run the command, if there is one. What fails is logged, and changes nothing."""
    opened = console.open_rank()
    if not command or (rank_info.detect().rank if opened is None else opened) != 0:
        return
    problem = on_end.run(command, end, console.open_folder(), LIMIT_S)
    if problem:
        log.warning("%s", problem)


@contextlib.contextmanager
def notifying(command: str) -> Iterator[None]:
    """Run the command when what is inside ends, in a program that calls training and continues afterwards."""
    try:
        yield
    except RankRemoved:  # the job continues
        raise
    except (Exception, KeyboardInterrupt) as error:
        notify(command, RunEnd.of_exception(error))
        raise
    notify(command, RunEnd("finished"))
