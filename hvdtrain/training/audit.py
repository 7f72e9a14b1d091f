"""Audits of shards (`--audit`): they are counted, and when two ranks computed other bits, a third execution says who.

The hashes are compared in a step's first sum, by all ranks (`collectives.shard_sums`). Where they differ, no rank makes
the update. All ranks then compute the shard again, each for itself, and the wrong rank is named, or leaves the job.
"""

from __future__ import annotations

from typing import NoReturn

from hvdtrain.collectives.audits import ShardHashes, ShardsDiffer, Verdict, judge
from hvdtrain.errors import TrainingError, WrongBits
from hvdtrain.interfaces import Audit, Batch, Position
from hvdtrain.runs.console import log
from hvdtrain.system import rank_info
from hvdtrain.training.batches import Batches
from hvdtrain.training.observer import Observer
from hvdtrain.training.ranks import Interval
from hvdtrain.training.reporting import Reporter
from hvdtrain.training.run import Run

REMEDY = "take the host out of the job and test its memory and processor; then resume from the last checkpoint"
EXCLUSION_S = 60.0
"""How long the launcher may take to end a rank that computes wrong bits."""


class Auditor(Observer):
    """Counts audits, and ends or repairs the job when one finds wrong bits.

    reporter: writes the records. Raises UserError for --on-wrong-bits exclude in a job that does not survive that.
    """

    def __init__(self, run: Run, batches: Batches, reporter: Reporter) -> None:
        self._run, self._batches, self._reporter = run, batches, reporter
        self._audits = self._unequal = 0

    def started(self, at: Position) -> None:
        """Warn if there is nothing to compare."""
        if self._run.runtime.audit and self._run.group.size == 1:
            log.warning("--audit: this is the only rank, so no other one can compute its shards as well")

    def step_done(self, at: Position) -> None:
        """Count the audit of the step."""
        self._audits += self._batches.audit(at.step - 1) is not None

    def joined(self, at: Position, interval: Interval) -> None:
        """Record the audits so far."""
        if self._run.runtime.audit:
            self._reporter.record("audited", at, audits=self._audits, unequal=self._unequal)

    def again(self, at: Position, difference: ShardsDiffer) -> Batch:
        """The step in which every rank computes the shard again; it ends with ShardHashes."""
        self._unequal += 1
        log.warning("%s; each rank computes it again", difference.reason)
        return self._batches.only(difference.at, at.epoch, Audit(difference.shard, difference.by))

    def settle(self, at: Position, difference: ShardsDiffer) -> NoReturn:
        """Find out who was wrong, and stop, or go on without that rank; call it on every rank.

        Raises WrongBits, or RanksChanged when the job goes on without it.
        """
        try:
            self._run.learner.train_step(self.again(at, difference))
        except ShardHashes as hashes:
            self.decide(at, difference, hashes)
        raise TrainingError("a step that only computes a shard again was an update")  # never: no learner does that

    def decide(self, at: Position, difference: ShardsDiffer, hashes: ShardHashes) -> NoReturn:
        """Stop the job, or exclude the rank that was wrong, after all have computed the shard again."""
        verdict = judge(difference.hashes, hashes.by_rank)
        group = self._run.group
        hosts = group.gather(rank_info.host_name())
        values = {"shard": difference.shard, "rank": difference.owner, "by": difference.by, "wrong": verdict.wrong}
        self._reporter.record("audit", at, **values)
        reason = explain(difference, verdict, hosts)
        named = difference.owner if verdict.wrong is None else verdict.wrong
        raise WrongBits(reason, REMEDY, rank=named, step=difference.at)


def explain(difference: ShardsDiffer, verdict: Verdict, hosts: list[str]) -> str:
    """What was found, in a sentence. hosts: by rank."""
    what = f"shard {difference.shard} of step {difference.at}"
    one, two = (f"rank {rank} on {hosts[rank]}" for rank in difference.hashes)
    if verdict.wrong is None:
        return f"{one} and {two} computed other bits for {what}, and it cannot be told which of them is wrong"
    again = "and again at a second try" if verdict.was_wrong_again else "and the right ones at a second try"
    return f"rank {verdict.wrong} on {hosts[verdict.wrong]} computed wrong bits for {what}, {again}"
