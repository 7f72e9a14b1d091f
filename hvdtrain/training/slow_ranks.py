"""Warns of ranks that are slower than the others, while they are."""

from __future__ import annotations

from hvdtrain.interfaces import Position
from hvdtrain.runs.console import log
from hvdtrain.runs.step_times import SlowRank, SlowRanks
from hvdtrain.system import rank_info
from hvdtrain.training.observer import Observer
from hvdtrain.training.ranks import Interval
from hvdtrain.training.run import Run


class SlowRankLog(Observer):
    """Compares the ranks at each logging step; logs one that is slow, once until it has recovered."""

    def __init__(self, run: Run) -> None:
        self._run, self._ranks = run, SlowRanks()
        self._hosts: list[str] = []
        self._is_warm = False
        self._named: set[tuple[int, str]] = set()

    def started(self, at: Position) -> None:
        """Learn the hosts of the ranks."""
        self._hosts = self._run.group.gather(rank_info.host_name())

    def joined(self, at: Position, interval: Interval) -> None:
        """Compare the ranks; in the first interval, frameworks warm up."""
        if self._is_warm:
            self._ranks.add(interval.times.by_rank())
        self._is_warm = True
        slow = {(slow.rank, slow.kind): slow for slow in self._ranks.slow}
        for rank_and_kind in slow.keys() - self._named:
            self._name(slow[rank_and_kind])
        for rank, _ in self._named - slow.keys():
            log.warning("rank %d on %s is as fast as the other ranks again", rank, self._hosts[rank])
        self._named = set(slow)

    @property
    def figures(self) -> list[str]:
        """What the progress display shows."""
        much = {"compute": "{0.factor:.1f}x", "data": "data {0.share:.0%}"}
        ranks = sorted(self._ranks.slow, key=lambda slow: slow.rank)
        return [f"rank {slow.rank} is slow ({much[slow.kind].format(slow)})" for slow in ranks]

    def _name(self, slow: SlowRank) -> None:
        if slow.kind == "compute":
            log.warning(
                "rank %d on %s is slow: it computes %.1f times as long as the other ranks, which wait for it in each "
                "step: see what else runs on that host, and check it with python -m hvdtrain doctor",
                *(slow.rank, self._hosts[slow.rank], slow.factor),
            )
        else:
            log.warning(
                "rank %d on %s is slow: it waits for data for %.0f%% more of the time than the other ranks, which wait "
                "for it in each step: raise --workers, or check the disk of that host",
                *(slow.rank, self._hosts[slow.rank], 100 * slow.share),
            )
