"""Ranks that are slower than the others, named while they are."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hvdtrain.runs.console import log
from hvdtrain.runs.step_times import NO_TIME, WINDOW_S, SlowRank, StepTime, slow_ranks

PART_S = 1.0
"""A window's parts take this long: logging steps that are shorter count together, as within less chance decides."""
MIN_PARTS = 3
"""A window has so many parts, even if they take longer than WINDOW_S."""


class SlowRanks:
    """Compares the ranks at each logging step; warns of one that is slow, once until it has recovered.

    hosts: by rank.
    """

    def __init__(self, hosts: list[str]) -> None:
        self._hosts = hosts
        self._warm = False
        self._part: list[StepTime] = []
        """Of the logging steps that will be a part of the window, by rank."""
        self._window: deque[list[StepTime]] = deque()
        self._slow: dict[tuple[int, str], str] = {}
        """Ranks that are slow, what takes them so long, and by how much."""

    @property
    def figures(self) -> list[str]:
        """What the progress display shows."""
        return [f"rank {rank} is slow ({much})" for (rank, _), much in sorted(self._slow.items())]

    def add(self, times: Sequence[StepTime]) -> None:
        """How long the steps since the last logging step took each rank.

        The first ones, in which frameworks warm up, are left out.
        """
        if not self._warm:
            self._warm = True
            return
        part = self._part or [NO_TIME] * len(times)
        self._part = [time.plus(other) for time, other in zip(part, times, strict=True)]
        if _seconds(self._part) < PART_S:
            return
        self._window.append(self._part)
        self._part = []
        window = self._window
        while len(window) > MIN_PARTS and sum(map(_seconds, window)) - _seconds(window[0]) >= WINDOW_S:
            window.popleft()
        if len(window) >= MIN_PARTS and sum(map(_seconds, window)) >= WINDOW_S:
            self._compare()

    def _compare(self) -> None:
        slow = {(found.rank, found.part): found for found in slow_ranks(self._window, frozenset(self._slow))}
        for key, rank in sorted(slow.items()):
            if key not in self._slow:
                self._name(rank)
        for key in [key for key in self._slow if key not in slow]:
            del self._slow[key]
            log.warning("rank %d on %s is as fast as the other ranks again", key[0], self._hosts[key[0]])

    def _name(self, slow: SlowRank) -> None:
        """Log that the steps of the window took a rank longer."""
        key, host = (slow.rank, slow.part), self._hosts[slow.rank]
        if slow.part == "compute":
            self._slow[key] = f"{slow.ratio:.1f}x"
            log.warning(
                "rank %d on %s is slow: it computes %.1f times as long as the other ranks, which wait for it in each "
                "step: see what else runs on that host, and check it with python -m hvdtrain doctor",
                *(slow.rank, host, slow.ratio),
            )
        else:
            share = slow.more_s / sum(map(_seconds, self._window))
            self._slow[key] = f"data {share:.0%}"
            log.warning(
                "rank %d on %s is slow: it waits for data for %.0f%% more of the time than the other ranks, which wait "
                "for it in each step: raise --workers, or check the disk of that host",
                *(slow.rank, host, 100 * share),
            )


def _seconds(part: Sequence[StepTime]) -> float:
    """How long these steps took, on the rank that took longest."""
    return max(time.total for time in part)
