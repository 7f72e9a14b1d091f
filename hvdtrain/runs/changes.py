"""What happened to a run's ranks while it trained: which left and joined, which shards moved, what audits found.

A run's records say it, of which nothing is expected: what is odd in one is left out, or the record is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hvdtrain.runs.metrics import HAPPENED, MetricsReader
from hvdtrain.runs.records import Record, shown
from hvdtrain.system.text import count_of, format_ranks

MAX_RECORDS, MAX_CHANGES = 2000, 300
"""Of more records, the newest ones are read; and of more changes in them, the newest ones are kept."""
MAX_RANK, MAX_RANKS = 1 << 20, 1 << 14
"""No rank has a higher number, and no list names more."""
LOST, JOINED, SHARDS, AUDIT = "lost", "joined", "shards", "audit"
"""Kinds of changes."""


class RankEvent(NamedTuple):
    """Something that happened, in a line."""

    kind: str
    """One of the above."""
    step: int
    epoch: float | None
    time: float
    """When it was recorded, in seconds since 1970; 0 if that is not known."""
    rank: int | None
    """The rank that it happened to, where it is one."""
    text: str


class Members(NamedTuple):
    """Which ranks train together from a step on."""

    step: int
    epoch: float | None
    time: float
    number: int
    hosts: dict[int, str]
    """The host of each rank, in the order of their positions; empty if it is not known."""
    lost: dict[int, str]
    """Ranks that were lost at this step, and why: `was killed by SIGKILL`."""
    joined: tuple[int, ...]
    paused_s: float
    """How long training stood still."""
    repeated: int
    """Steps that were done again."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> Members | None:
        """From a record; None if it does not say which ranks there are."""
        record, ranks = Record(values), _ranks(values.get("ranks"))
        if record.count("step") is None or not ranks:
            return None
        named = record.tables("lost")[:MAX_RANKS]
        lost = {rank: one.text("why") for one in named if (rank := one.count("rank")) is not None}
        return cls(
            *_when(record),
            record.count("number") or 0,
            dict(zip(ranks, _texts(values.get("hosts"), len(ranks)), strict=True)),
            {rank: why for rank, why in lost.items() if rank < MAX_RANK},
            tuple(_ranks(values.get("joined"))),
            max(record.number("seconds") or 0.0, 0.0),
            record.count("repeated") or 0,
        )


def _when(record: Record) -> tuple[int, float | None, float]:
    """Step, epoch and time of a record."""
    return record.count("step") or 0, record.number("epoch"), record.number("time") or 0.0


def _ranks(value: Any) -> list[int]:
    """A list of different ranks; empty for anything else."""
    ranks = value if isinstance(value, list) else []
    if len(ranks) > MAX_RANKS or not all(type(rank) is int and 0 <= rank < MAX_RANK for rank in ranks):
        return []
    return ranks if len(set(ranks)) == len(ranks) else []


def _texts(value: Any, count: int) -> list[str]:
    """So many texts: those of a list, or empty ones where it is not one of so many."""
    texts = value if isinstance(value, list) and len(value) == count else [""] * count
    return [shown(text) if isinstance(text, str) else "" for text in texts]


@dataclass
class Changes:
    """All that happened to the ranks of a run."""

    changes: list[RankEvent] = field(default_factory=list)
    """In the order in which they began: a loss, and that the rank joined again, are one."""
    members: Members | None = None
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
        found = cls()
        history = _MembersHistory(found)
        drafts: deque[_Draft] = deque(maxlen=MAX_CHANGES)
        for values in reader.all(HAPPENED, MAX_RECORDS):
            if values["kind"] == "members":
                drafts.extend(history.add(values))
                found.shards = {}  # each change of the ranks distributes them anew
            elif change := _moved(values) if values["kind"] == "shards" else _audited(values):
                drafts.append(_Draft(change))
                found.shards = _counts(values) if change.kind == SHARDS else found.shards
                found.moves += len(_moves(values)) if change.kind == SHARDS else 0
        found.changes = [draft.change for draft in drafts]
        found.lost = {rank: draft.change for rank, draft in history.open.items()}
        if audited := Record(next(iter(reader.of_kind("audited")[::-1]), {})):
            found.audits, found.unequal = audited.count("audits") or 0, audited.count("unequal") or 0
        return found


@dataclass(slots=True)
class _Draft:
    """A change, and for a rank that was lost, when it joined again."""

    first: RankEvent
    host: str = ""
    pause_s: float = 0.0
    repeated: int = 0
    joined: Members | None = None
    """The members that it joined."""

    @property
    def change(self) -> RankEvent:
        pauses, again = [self.pause_s], ""
        if self.joined:
            host = self.joined.hosts.get(self.first.rank or 0, "")
            again = f", joined again at step {self.joined.step}{f' on {host}' if host != self.host else ''}"
            pauses.append(self.joined.paused_s)
        is_pause = self.first.kind in (LOST, JOINED)
        pause = f"; paused {' + '.join(map(_seconds, pauses))}"
        repeated = f", {count_of(self.repeated, 'step')} repeated" if self.repeated else ""
        return self.first._replace(text=self.first.text + again + (f"{pause}{repeated}" if is_pause else ""))


class _MembersHistory:
    """Follows the members from record to record. found: gets the newest ones, and how much happened to them."""

    def __init__(self, found: Changes) -> None:
        self._found = found
        self.open: dict[int, _Draft] = {}
        """Of ranks that have not joined again."""

    def add(self, values: dict[str, Any]) -> Iterator[_Draft]:
        """The next record; what has changed."""
        new, before = Members.of(values), self._found.members
        if not new:
            return
        if before and (new.number <= before.number or new.step < before.step):  # all processes were started again
            self.open.clear()
            before = None
        hosts, self._found.members = before.hosts if before else {}, new
        left = {rank: "" for rank in hosts if rank not in new.hosts}
        joined = {*new.joined, *(new.hosts.keys() - hosts.keys())} if before else {*new.joined}
        for rank, why in {**left, **new.lost}.items():
            yield self._lose(rank, hosts.get(rank, ""), why, new)
        if not before and joined >= new.hosts.keys():  # the first ones
            return
        for rank in sorted(joined & new.hosts.keys()):
            yield from self._join(rank, new)
        if not (left or new.lost or joined):
            text = f"connections between the ranks broke at step {new.step}"
            yield _Draft(RankEvent(LOST, *new[:3], None, text), "", new.paused_s, new.repeated)
        self._found.paused_s += new.paused_s
        self._found.repeated += new.repeated

    def _lose(self, rank: int, host: str, why: str, new: Members) -> _Draft:
        self._found.losses += 1
        text = f"{_who(rank, host)} lost at step {new.step}{f' ({why})' if why else ''}"
        while len(self.open) >= MAX_RANKS:
            del self.open[next(iter(self.open))]
        self.open[rank] = _Draft(RankEvent(LOST, *new[:3], rank, text), host, new.paused_s, new.repeated)
        return self.open[rank]

    def _join(self, rank: int, new: Members) -> Iterator[_Draft]:
        self._found.joins += 1
        host = new.hosts[rank]
        if lost := self.open.pop(rank, None):
            lost.joined = new
        else:
            text = f"{_who(rank, host)} joined at step {new.step}"
            yield _Draft(RankEvent(JOINED, *new[:3], rank, text), host, new.paused_s, new.repeated)


def _who(rank: int, host: str) -> str:
    return f"rank {rank} on {host}" if host else f"rank {rank}"


def _moves(values: dict[str, Any]) -> list[list[int]]:
    """Shard, the rank that had it, and the one that has it now, of each that moved."""
    moved = values.get("moved")
    triples = [_numbers(triple) for triple in moved] if isinstance(moved, list) else []
    return [triple for triple in triples if len(triple) == 3]


def _counts(values: dict[str, Any]) -> dict[int, int]:
    """The number of shards of each rank that is there."""
    counts = values.get("counts")
    by_rank = enumerate(counts if isinstance(counts, list) else [])
    return {rank: count for rank, count in by_rank if type(count) is int and 0 <= count < MAX_RANK}


def _numbers(value: Any) -> list[int]:
    """A list of small integers from 0 on; empty for anything else."""
    numbers = value if isinstance(value, list) and len(value) <= 3 else []
    return numbers if all(type(number) is int and 0 <= number < MAX_RANK for number in numbers) else []


def _moved(values: dict[str, Any]) -> RankEvent | None:
    record, moves = Record(values), _moves(values)
    step = record.count("step")
    if step is None or not moves:
        return None
    givers, takers = ({move[place] for move in moves} for place in (1, 2))
    text = f"{count_of(len(moves), 'shard')} moved from {_which(givers)} to {_which(takers)} at step {step}"
    why = record.text("why")
    giver = givers.pop() if len(givers) == 1 else None
    return RankEvent(SHARDS, *_when(record), giver, f"{text}: {why}" if why else text)


def _audited(values: dict[str, Any]) -> RankEvent | None:
    record = Record(values)
    shard, rank, by, wrong = (record.count(name) for name in ("shard", "rank", "by", "wrong"))
    if record.count("step") is None or shard is None or rank is None or by is None:
        return None
    found = "which one is wrong is not known" if wrong is None else f"rank {wrong} computed wrong bits"
    text = f"shard {shard} of step {record.count('step')} has other bits on rank {rank} than on rank {by}: {found}"
    return RankEvent(AUDIT, *_when(record), wrong, text)


def _which(ranks: Iterable[int]) -> str:
    ranks = list(ranks)
    return f"rank{'s' * (len(ranks) > 1)} {format_ranks(ranks)}"


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 9.95 else f"{min(value, 1e9):.0f} s"
