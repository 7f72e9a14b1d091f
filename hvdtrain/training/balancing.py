"""Shards move between the ranks of a run, at its logging steps (`--balance`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hvdtrain.collectives.surviving import by_rank, ranks_of
from hvdtrain.interfaces.learner import Position
from hvdtrain.training.balance import Balancer, Rebalancing
from hvdtrain.training.observer import Observer, Pause
from hvdtrain.training.ranks import LoggedInterval
from hvdtrain.training.reporting import Reporter
from hvdtrain.training.run import RunContext


class Balancing(Observer):
    """Moves shards from slow ranks to fast ones: the step after a logging step has them. Every rank decides the same.

    It comes after `reporter`, which looks at an interval with the shards that ranks had in it.
    """

    def __init__(self, run: RunContext, reporter: Reporter) -> None:
        self._run, self._reporter = run, reporter
        self._step = 0
        """The step of the last logging step."""
        self._balancer = Balancer(run.assignment)

    def started(self, at: Position) -> None:
        """The first interval begins here."""
        self._step = at.step

    def renewed(self, at: Position, pause: Pause) -> None:
        """All ranks begin anew, as those that join know no times."""
        self._run.assign(None)
        self._balancer = Balancer(self._run.assignment)

    def joined(self, at: Position, interval: LoggedInterval) -> None:
        """Move shards if the times of the last logging steps say so."""
        run, steps = self._run, at.step - self._step
        self._step = at.step
        if not run.config.shards > run.group.size > 1 or run.runtime.balance == "off" or steps <= 0:
            return
        if change := self._balancer.add(steps, interval.times):
            run.assign(change.assignment)
            self._report(at, change)

    def _report(self, at: Position, change: Rebalancing) -> None:
        group, why = self._run.group, explained(change, ranks_of(self._run.group))
        counts, ranks = by_rank(group, change.assignment.counts), ranks_of(group)
        moves = [[shard, ranks[giver], ranks[receiver]] for shard, giver, receiver in change.moves]
        givers, receivers = (_listed({move[place] for move in moves}) for place in (1, 2))
        self._reporter.show(
            f"{len(moves)} shard(s) move from rank {givers} to {receivers}: {why}; the ranks now have "
            f"{', '.join(map(str, change.assignment.counts))}"
        )
        self._reporter.record("shards", at, counts=counts, moved=moves, why=why)


def explained(change: Rebalancing, ranks: Sequence[int]) -> str:
    """Why shards move, for people: of the ranks that give and get most, what a shard takes each.

    ranks: those that train, by position.
    """
    giver, receiver = (Counter(move[place] for move in change.moves).most_common(1)[0][0] for place in (1, 2))
    return (
        f"a shard takes rank {ranks[giver]} {_ms(change.shard_s[giver])} and rank {ranks[receiver]} "
        f"{_ms(change.shard_s[receiver])}, "
        f"and the slowest rank {_ms(change.after_s)} for those of a step instead of {_ms(change.before_s)}"
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def _listed(ranks: set[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))
