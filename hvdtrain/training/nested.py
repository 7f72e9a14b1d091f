"""Two nested loops, over epochs and their batches, made of one stream of batches."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterator
from typing import Any, Final

from hvdtrain.errors import UserError


class EpochEnd:
    """Stands in the stream after the last batch of an epoch."""


EPOCH_END: Final = EpochEnd()
Arrays = tuple[Any, ...]


def by_epoch(stream: Iterator[Arrays | EpochEnd]) -> Iterator[Iterator[Arrays]]:
    """The batches of each epoch.

    The stream goes on from the end of an epoch when the next epoch is asked for, so what the script does in between
    comes before that. Raises UserError if the script leaves the batches of an epoch and goes on.
    """
    for first in stream:
        batches = _until_end(first, stream)
        yield batches
        if inspect.getgeneratorstate(batches) != inspect.GEN_CLOSED:
            raise UserError(
                "the script left the batches of an epoch before its end, and asks for the next epoch",
                "take all batches of each epoch, or leave both loops",
            )


def _until_end(first: Arrays | EpochEnd, stream: Iterator[Arrays | EpochEnd]) -> Generator[Arrays, None, None]:
    if isinstance(first, EpochEnd):  # all of its steps were done before ranks changed
        return
    yield first
    for batch in stream:
        if isinstance(batch, EpochEnd):
            return
        yield batch
