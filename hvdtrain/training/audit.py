"""Audits of shards (`--audit`): counted, and when two ranks computed different bits, a third execution says who.

All ranks compare the hashes, which come with a step's sums (`collectives.shard_sums`). Where they differ, no rank makes
the update. All ranks then compute the shard again, each for itself, and the wrong rank is named, or leaves the job.
"""

from __future__ import annotations

import time
from typing import NoReturn

from hvdtrain.collectives.audits import AuditVerdict, ShardHashes, ShardsDiffer, judge
from hvdtrain.errors import WrongBits
from hvdtrain.interfaces.learner import Position
from hvdtrain.interfaces.reading import Audit, Batch
from hvdtrain.runs.console import log
from hvdtrain.system import agent_pipe, rank_info
from hvdtrain.system.agent_pipe import Excluded
from hvdtrain.system.processes import TICK_S, RunningTime
from hvdtrain.training.batches import Batches
from hvdtrain.training.observer import Observer
from hvdtrain.training.ranks import LoggedInterval
from hvdtrain.training.reporting import Reporter
from hvdtrain.training.run import RunContext

REMEDY = "take the host out of the job and test its memory, if the model keeps nothing from batch to batch"
NO_FUNCTION = "look for a counter, a tensor that is kept from batch to batch, and operations that are not deterministic"
EXCLUSION_S = 60.0
"""How long the launcher may take to end a rank that computes wrong bits."""


class Auditor(Observer):
    """Counts audits, and ends or repairs the job when one finds wrong bits.

    reporter: writes the records.
    """

    def __init__(self, run: RunContext, batches: Batches, reporter: Reporter) -> None:
        self._run, self._batches, self._reporter = run, batches, reporter
        self._audits = self._unequal = 0

    def started(self, at: Position) -> None:
        if self._run.group.size == 1:
            log.warning("--audit: this is the only rank, so no other one can compute its shards as well")

    def step_done(self, at: Position) -> None:
        self._audits += self._batches.audit(at.step - 1) is not None

    def joined(self, at: Position, interval: LoggedInterval) -> None:
        self._reporter.record("audited", at, audits=self._audits, unequal=self._unequal)

    def again(self, at: Position, difference: ShardsDiffer) -> Batch:
        """The step in which every rank computes the shard again; it ends with ShardHashes."""
        self._unequal += 1
        owner, by = (self._run.group.ranks[position] for position in difference.hashes)
        what = f"shard {difference.shard} of step {difference.at}"
        log.warning("ranks %d and %d computed different bits for %s; each rank computes it again", owner, by, what)
        return self._batches.only(difference.at, at.epoch, Audit(difference.shard, difference.by))

    def decide(self, at: Position, difference: ShardsDiffer, hashes: ShardHashes) -> NoReturn:
        """Stop the job, or go on without the rank that was wrong, after all have computed the shard again."""
        verdict, group = judge(difference.hashes, hashes.by_rank), self._run.group
        names, ranks = group.gather(f"rank {group.place} on {rank_info.host_name()}"), group.ranks
        wrong = None if verdict.wrong is None else ranks[verdict.wrong]
        values = {"shard": difference.shard, "rank": ranks[difference.owner], "by": ranks[difference.by]}
        self._reporter.record("audit", at, **values, wrong=wrong)
        group.gather(None)  # no rank ends, or has another one ended, before rank 0 has written it
        if wrong is not None and self._run.runtime.on_wrong_bits == "exclude":
            self._exclude(wrong, what_was_wrong(difference, verdict))
        first = ranks[difference.owner] if wrong is None else wrong
        remedy = NO_FUNCTION if verdict.varies else REMEDY
        raise WrongBits(explain(difference, verdict, names), remedy, rank=first, step=difference.at)

    def _exclude(self, rank: int, reason: str) -> None:
        """Let the launcher end a rank, and wait until the others go on without it: RanksChanged is raised then.

        All ranks ask for it, as the wrong one may not.
        """
        agent_pipe.send(Excluded(rank, reason))
        clock = RunningTime()
        while clock.seconds < EXCLUSION_S:
            self._run.group.gather(None)
            time.sleep(TICK_S)
            clock.tick()


def what_was_wrong(difference: ShardsDiffer, verdict: AuditVerdict) -> str:
    """What the wrong rank did, as the end of a sentence that begins with it."""
    again = "and again at a second try" if verdict.was_wrong_again else "and the right ones at a second try"
    return f"computed wrong bits for shard {difference.shard} of step {difference.at}, {again}"


def explain(difference: ShardsDiffer, verdict: AuditVerdict, names: list[str]) -> str:
    """What was found, in a sentence. names: of the ranks, by position in the group."""
    if verdict.wrong is not None:
        return f"{names[verdict.wrong]} {what_was_wrong(difference, verdict)}"
    what = f"shard {difference.shard} of step {difference.at}"
    if verdict.varies:
        return f"the model is not a function of its rows: ranks computed {what} again, and it has other bits each time"
    one, two = (names[position] for position in difference.hashes)
    return f"{one} and {two} computed different bits for {what}, and it cannot be told which of them is wrong"
