"""Arrays of any size from one rank to the others, in messages that every library can send.

Libraries count the bytes or the elements of a message in 32 bits, and pickling an array takes several times its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from hvdtrain.interfaces.learner import Learner
from hvdtrain.interfaces.strategy import Group
from hvdtrain.networks.description import Weights

MESSAGE_BYTES = 1 << 26
"""Bytes of the largest message."""


def broadcast_arrays(group: Group, arrays: Weights | None, root: int = 0) -> Weights:
    """The arrays of rank `root`, on every rank; the other ranks may give None. A collective."""
    local_arrays, receives = arrays or {}, group.rank != root
    described = group.broadcast(_described(local_arrays), root)
    if receives:
        local_arrays = _empty(described)
    _send(group, local_arrays.values(), root, receives)
    return local_arrays


def share_arrays(learner: Learner, names: frozenset[str]) -> None:
    """Give all ranks rank 0's values of these weights. Call it on every rank."""
    if names and learner.group.size > 1:
        weights = learner.weights()
        shared = {name: weights[name] for name in names & weights.keys()}  # some may have no values yet
        learner.load(weights | broadcast_arrays(learner.group, shared))


def gather_arrays(group: Group, arrays: Weights) -> list[Weights]:
    """The arrays of all ranks, ordered by rank, on rank 0; nothing on the others. A collective."""
    gathered = [arrays]
    for root, described in enumerate(group.gather(_described(arrays))[1:], 1):
        sent = arrays if group.rank == root else _empty(described)
        _send(group, sent.values(), root, receives=group.rank == 0)
        if group.rank == 0:
            gathered.append(sent)
    return gathered if group.rank == 0 else []


def _described(arrays: Weights) -> dict[str, Any]:
    """Type and shape of each array."""
    return {name: (array.dtype.str, array.shape) for name, array in arrays.items()}


def _empty(described: dict[str, Any]) -> Weights:
    """Arrays as `_described`, without values."""
    return {name: np.empty(shape, np.dtype(dtype)) for name, (dtype, shape) in described.items()}


def _send(group: Group, arrays: Iterable[np.ndarray], root: int, receives: bool) -> None:
    """Send the arrays of rank `root`; with `receives`, into `arrays`, which are contiguous and have the same shapes."""
    for parts in _messages(arrays):
        message = np.concatenate(parts)
        group.broadcast_bytes(message, root)
        if receives:
            start = 0
            for part in parts:
                part[:] = message[start : start + len(part)]
                start += len(part)


def _messages(arrays: Iterable[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """The bytes of arrays, cut into messages of at most MESSAGE_BYTES: views of contiguous arrays, uint8 (n,)."""
    parts: list[np.ndarray] = []
    free = MESSAGE_BYTES
    for array in arrays:
        rest = np.asarray(array).reshape(-1).view(np.uint8)
        while len(rest):
            parts.append(rest[:free])
            free, rest = free - len(parts[-1]), rest[free:]
            if not free:
                yield parts
                parts, free = [], MESSAGE_BYTES
    if parts:
        yield parts
