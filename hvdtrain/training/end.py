"""How a run ended, for those who look at its folder: written when training ends, by itself or by an error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hvdtrain.errors import HvdtrainError, RankRemoved
from hvdtrain.system.run_end import RunEnd
from hvdtrain.training.run import Run


@contextlib.contextmanager
def recorded_end(run: Run) -> Iterator[None]:
    """Around training and its result: rank 0 records the end, and of an error the rank that has it first.

    Of an elastic job, only errors of hvdtrain are recorded: after others, Horovod decides whether training continues.
    """
    if run.is_rank_0:
        RunEnd.remove(run.folder)
    try:
        yield
    except RankRemoved:
        raise
    except Exception as error:
        end = RunEnd.of_exception(error).on_rank(run.group.rank, run.group.size)
        if end.status == "stopped":
            if run.is_rank_0:
                end.write(run.folder)
        elif isinstance(error, HvdtrainError) or not run.runtime.elastic:
            end.write(run.folder, replace=False)  # a rank that lost another one fails after it: the first one stays
        raise
    if run.is_rank_0:
        RunEnd("finished").write(run.folder)
