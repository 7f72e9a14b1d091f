"""Audits (`--audit`): two ranks compute the same shard of a step, and all ranks compare the hashes of its bits.

A shard has the same bits on every rank, so hashes that differ mean that one of the two computed something else: a
defect of its processor or its memory, or in its software. A third execution finds which of them it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hvdtrain.errors import WrongBits
from hvdtrain.interfaces.reading import Audit

STREAM = 6
"""Of the random numbers that choose what is audited; others belong to weights, rows and steps."""


def choose(seed: int, step: int, by_rank: Sequence[Sequence[int]], shards: Sequence[int]) -> Audit | None:
    """The shard that is audited in a step, each with the same probability, and the rank that computes it as well.

    by_rank: the shards of each rank. shards: those that have rows. None in a job of one rank.
    """
    if len(by_rank) < 2 or not shards:
        return None
    draw = np.random.Generator(np.random.PCG64([seed, STREAM, step]))
    shard = shards[draw.integers(len(shards))]
    others = [rank for rank, of_rank in enumerate(by_rank) if shard not in of_rank]
    return Audit(shard, others[draw.integers(len(others))])


def hash_shard(loss: float, arrays: Sequence[np.ndarray]) -> int:
    """64 bits, from those of the loss and of arrays: a shard's gradients, and what it changes in the statistics."""
    digest = hashlib.blake2b(np.float64(loss).tobytes(), digest_size=8)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return int.from_bytes(digest.digest(), "little")


class ShardHashes(Exception):
    """What a step gives that only computes a shard again: its hash on each rank.

    Raised instead of an update, on all ranks.
    """

    def __init__(self, by_rank: Sequence[int]) -> None:
        super().__init__(by_rank)
        self.by_rank = list(by_rank)


class ShardsDiffer(WrongBits):
    """Two ranks computed different bits for the same shard. All ranks raise it, and none has made the update.

    at: the step. owner, by: whose shard it is, and who checked it. hashes: of both, by rank.
    """

    def __init__(self, step: int, shard: int, hashes: dict[int, int]) -> None:
        owner, by = hashes
        super().__init__(f"ranks {owner} and {by} computed different bits for shard {shard} of step {step}", step=step)
        self.at, self.shard, self.owner, self.by, self.hashes = step, shard, owner, by, hashes


class AuditVerdict(NamedTuple):
    """Which of two ranks computed wrong bits."""

    wrong: int | None
    """None where it cannot be told."""
    was_wrong_again: bool = False
    """Whether its second result was wrong as well."""
    varies: bool = False
    """Whether not one rank alone explains the results, so that the shard has no bits of its own."""


def judge(first: dict[int, int], again: Sequence[int]) -> AuditVerdict:
    """Who was wrong. first: the hashes of the two ranks, which differ. again: those of all ranks, computed again.

    With more ranks, the others decide. If there are none, or they do not agree with one of the two: a rank whose two
    results differ was wrong once. Another rank then has the same bits twice, and those of the others.
    """
    one, two = first
    others = [value for rank, value in enumerate(again) if rank not in first]
    votes = others.count(first[one]) - others.count(first[two])
    changed = [rank for rank in first if again[rank] != first[rank]]
    if votes:
        right, wrong = (one, two) if votes > 0 else (two, one)
    elif len(changed) == 1:
        (wrong,) = changed
        right = two if wrong == one else one
    else:
        return AuditVerdict(None, varies=bool(changed))
    if right in changed or (others and first[right] not in others):
        return AuditVerdict(None, varies=True)
    return AuditVerdict(wrong, again[wrong] != first[right])
