"""What happened to a run's ranks while it trained: which left and joined, which shards moved, what audits found.

A run's records say it; those that no run writes are left out.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec

from hvdtrain.runs.metrics import HAPPENED, MetricsReader
from hvdtrain.runs.records import Count, Seconds, shown
from hvdtrain.system.text import count_of, format_ranks

MAX_RECORDS, MAX_CHANGES = 2000, 300
"""Of more records, the newest ones are read; and of more changes in them, the newest ones are kept."""
LOST, JOINED, SHARDS, AUDIT = "lost", "joined", "shards", "audit"
"""Kinds of changes."""
Rank = Annotated[int, msgspec.Meta(ge=0, lt=1 << 14)]


class RankEvent(NamedTuple):
    kind: str
    step: int
    epoch: float | None
    time: float
    """When it was recorded, in seconds since 1970; 0 if that is not known."""
    rank: int | None
    """The rank that it happened to, where it is one."""
    text: str


class LostRank(msgspec.Struct):
    """A rank that was lost, and why: `was killed by SIGKILL`."""

    rank: Rank
    why: str = ""


class Happened(msgspec.Struct, tag_field="kind"):
    """What a record of HAPPENED says first."""

    step: Count
    epoch: float | None = None
    time: float = 0.0

    def event(self, kind: str, rank: int | None, text: str) -> RankEvent:
        return RankEvent(kind, self.step, self.epoch, self.time, rank, text)


class MembersRecord(Happened, tag="members", dict=True):
    """Which ranks train together from a step on."""

    ranks: list[Rank] = []
    """In the order of their positions."""
    names: list[str] = msgspec.field(name="hosts", default_factory=list)
    """The host of each; empty if it is not known."""
    leaving: list[LostRank] = msgspec.field(name="lost", default_factory=list)
    joined: list[Rank] = []
    number: Count = 0
    seconds: Seconds = 0.0
    """How long training stood still."""
    repeated: Count = 0
    """Steps that were done again."""

    def __post_init__(self) -> None:
        if not self.ranks or len(set(self.ranks)) < len(self.ranks) or len(self.names) not in (0, len(self.ranks)):
            raise ValueError("its ranks are none of a job")

    @functools.cached_property
    def hosts(self) -> dict[int, str]:
        return dict(zip(self.ranks, map(shown, self.names or [""] * len(self.ranks)), strict=True))

    def of_rank(self, kind: str, rank: int, host: str, why: str = "") -> RankEvent:
        who = f"rank {rank} on {host}" if host else f"rank {rank}"
        return self.pause(kind, rank, f"{who} {kind} at step {self.step}{f' ({shown(why)})' if why else ''}")

    def pause(self, kind: str, rank: int | None, what: str) -> RankEvent:
        repeated = f", {count_of(self.repeated, 'step')} repeated" if self.repeated else ""
        return self.event(kind, rank, f"{what}; paused {_seconds(self.seconds)}{repeated}")


class ShardsRecord(Happened, tag="shards"):
    """Shards that have moved."""

    moved: list[tuple[Count, Rank, Rank]] = []
    """Of each: its number, the rank that had it, and the one that has it now."""
    counts: list[Rank | None] = []
    """How many each rank has now; None for one that is not there."""
    why: str = ""

    @property
    def change(self) -> RankEvent:
        givers, takers = ({move[place] for move in self.moved} for place in (1, 2))
        text = (
            f"{count_of(len(self.moved), 'shard')} moved from {_which(givers)} to {_which(takers)} at step {self.step}"
        )
        giver = givers.pop() if len(givers) == 1 else None
        return self.event(SHARDS, giver, f"{text}: {shown(self.why)}" if self.why else text)


class AuditRecord(Happened, tag="audit", kw_only=True):
    """A shard of which two ranks have computed different bits."""

    shard: Count
    rank: Rank
    by: Rank
    """The rank that computed it again."""
    wrong: Rank | None = None

    @property
    def change(self) -> RankEvent:
        found = "which one is wrong is not known" if self.wrong is None else f"rank {self.wrong} computed wrong bits"
        text = f"shard {self.shard} of step {self.step} has other bits on rank {self.rank} than on rank {self.by}"
        return self.event(AUDIT, self.wrong, f"{text}: {found}")


class Audited(msgspec.Struct):
    """How many shards were computed a second time so far, and how many of them had other bits."""

    audits: Count = 0
    unequal: Count = 0


@dataclass
class Changes:
    changes: list[RankEvent] = field(default_factory=list)
    """In their order."""
    members: MembersRecord | None = None
    """The newest ones; None for a run whose ranks cannot change."""
    lost: dict[int, RankEvent] = field(default_factory=dict)
    """Ranks that are not there now."""
    losses: int = 0
    """Ranks that were lost, each as often as it was."""
    joins: int = 0
    shards: dict[int, int] = field(default_factory=dict)
    """How many shards of a batch each rank computes since they moved last."""
    moves: int = 0
    """Shards that moved from one rank to another."""
    paused_s: float = 0.0
    repeated: int = 0
    """Steps that were done again."""
    audits: int | None = None
    """Shards that were computed a second time to compare them; None for a run without --audit."""
    unequal: int = 0

    def __bool__(self) -> bool:
        return bool(self.changes) or self.audits is not None

    @property
    def summary(self) -> str:
        """How much happened, in a line; empty if nothing did."""
        lost_or_joined = self.losses or self.joins
        return ", ".join(
            text
            for count, text in [
                (self.losses, f"{count_of(self.losses, 'rank')} lost"),
                (self.joins, f"{count_of(self.joins, 'rank')} joined"),
                (lost_or_joined, f"paused {_seconds(self.paused_s)} in all"),
                (self.repeated, f"{count_of(self.repeated, 'step')} repeated"),
                (self.moves, f"{count_of(self.moves, 'shard')} moved"),
                (self.audits, f"{count_of(self.audits or 0, 'shard')} audited, {self.unequal} unequal"),
            ]
            if count is not None and (count or text.endswith("unequal"))
        )

    @classmethod
    def of(cls, reader: MetricsReader) -> Changes:
        """From a run's records, as they have been read last."""
        found, changes = cls(), deque[RankEvent](maxlen=MAX_CHANGES)
        for record in reader.all(HAPPENED, MAX_RECORDS).typed(MembersRecord | ShardsRecord | AuditRecord):  # type: ignore[arg-type]
            if isinstance(record, MembersRecord):
                changes.extend(found._follow(record))
            elif isinstance(record, AuditRecord):
                changes.append(record.change)
            elif record.moved:
                changes.append(record.change)
                found.shards = {rank: count for rank, count in enumerate(record.counts) if count is not None}
                found.moves += len(record.moved)
        found.changes = [*changes]
        for audited in reader.of_kind("audited")[-1:].typed(Audited):
            found.audits, found.unequal = audited.audits, audited.unequal
        return found

    def _follow(self, new: MembersRecord) -> Iterator[RankEvent]:
        """Take the next members; what has changed."""
        before, self.members = self.members, new
        self.shards = {}  # each change of the ranks distributes them anew
        if not before or new.number <= before.number or new.step < before.step:  # all processes were started
            self.lost = {}
            return
        missing = dict.fromkeys(before.hosts.keys() - new.hosts.keys(), "")
        lost = {**missing, **{rank.rank: rank.why for rank in new.leaving}}
        joined = ({*new.joined} | (new.hosts.keys() - before.hosts.keys())) & new.hosts.keys()
        for rank, why in sorted(lost.items()):
            self.lost[rank] = new.of_rank(LOST, rank, before.hosts.get(rank, ""), why)
            yield self.lost[rank]
        for rank in sorted(joined):
            self.lost.pop(rank, None)
            yield new.of_rank(JOINED, rank, new.hosts[rank])
        if not (lost or joined):
            yield new.pause(LOST, None, f"connections between the ranks broke at step {new.step}")
        self.losses += len(lost)
        self.joins += len(joined)
        self.paused_s += new.seconds
        self.repeated += new.repeated


def _which(ranks: Iterable[int]) -> str:
    ranks = list(ranks)
    return f"rank{'s' * (len(ranks) > 1)} {format_ranks(ranks)}"


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 9.95 else f"{min(value, 1e9):.0f} s"
