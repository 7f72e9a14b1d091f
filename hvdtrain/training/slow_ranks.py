"""Ranks that are slower than the others, named while they are."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from hvdtrain.runs.console import log
from hvdtrain.training.step_times import RankTimes

WINDOW_S = 1.0
"""Ranks are compared by logging steps, or by several that take this long together: within less, chance decides."""
SLOW_SHARE, LEAST_SHARE = 0.6, 0.3
"""A rank is slow if steps take it longer than the median rank by this share of what that computes: by the first one in
all windows together, and by the second one in each of them. Below the second one it has recovered."""
LEAST_WINDOWS, LEAST_S = 3, 5.0
"""So many windows are looked at, and so much time: another program that starts may take a core for some seconds."""
KINDS = ("compute", "data")


class Window(NamedTuple):
    """Some steps, as they compare the ranks."""

    more_s: np.ndarray
    """How much longer than the median rank each rank took, by kind: (2, ranks)."""
    normal_s: np.ndarray
    """What computing took the median rank, seen by each rank: (ranks,)."""
    seconds: float


class SlowRanks:
    """Compares the ranks at each logging step; warns of one that is slow, once until it has recovered.

    In a step each rank waits for the slowest one, so only what a rank computes, and how long it waits for its rows, is
    its own. Where a strategy cannot tell how long it communicates, computing contains that wait, so nothing is said.
    hosts: by rank.
    """

    def __init__(self, hosts: list[str]) -> None:
        self._hosts = hosts
        self._warm = False
        self._seconds, self._steps_s = np.zeros((len(KINDS), len(hosts))), 0.0
        """Of the logging steps that will be a window: by kind and rank, and on the rank that took longest."""
        self._windows: deque[Window] = deque()
        self._slow: dict[tuple[int, str], str] = {}
        """Ranks that are slow, the kind of what takes them so long, and by how much."""

    @property
    def figures(self) -> list[str]:
        """What the progress display shows."""
        return [f"rank {rank} is slow ({much})" for (rank, _), much in sorted(self._slow.items())]

    def add(self, times: RankTimes) -> None:
        """How long the steps since the last logging step took.

        The first ones, in which frameworks warm up, are left out.
        """
        if not self._warm or times.communicate_s is None or len(self._hosts) == 1:
            self._warm = True
            return
        self._seconds += [times.compute_s, times.data_s]
        self._steps_s += float(np.sum([times.compute_s, times.communicate_s, times.data_s], axis=0).max())
        if self._steps_s < WINDOW_S:
            return
        normal = _of_others(self._seconds)
        self._windows.append(Window(self._seconds - normal, normal[KINDS.index("compute")], self._steps_s))
        self._seconds, self._steps_s = np.zeros_like(self._seconds), 0.0
        self._compare()

    def _compare(self) -> None:
        windows = self._windows
        while len(windows) > LEAST_WINDOWS and sum(one.seconds for one in windows) - windows[0].seconds >= LEAST_S:
            windows.popleft()
        if len(windows) < LEAST_WINDOWS or sum(one.seconds for one in windows) < LEAST_S:
            return
        more = np.sum([one.more_s for one in windows], axis=0)
        normal = np.sum([one.normal_s for one in windows], axis=0)
        always = np.all([one.more_s > LEAST_SHARE * one.normal_s for one in windows], axis=0)
        slow, recovered = always & (more > SLOW_SHARE * normal), more < LEAST_SHARE * normal
        for kind, rank in np.argwhere(slow):
            if (rank, KINDS[kind]) not in self._slow:
                self._name(int(rank), KINDS[kind], more[kind, rank], normal[rank])
        for rank, kind in list(self._slow):
            if recovered[KINDS.index(kind), rank]:
                del self._slow[rank, kind]
                log.warning("rank %d on %s is as fast as the other ranks again", rank, self._hosts[rank])

    def _name(self, rank: int, kind: str, more_s: float, normal_s: float) -> None:
        """Log that the steps of all windows took a rank longer by so many seconds."""
        if kind == "compute":
            times = 1 + more_s / max(normal_s, 1e-9)
            self._slow[rank, kind] = f"{times:.1f}x"
            log.warning(
                "rank %d on %s is slow: it computes %.1f times as long as the other ranks, which wait for it in each "
                "step: see what else runs on that host, and check it with python -m hvdtrain doctor",
                *(rank, self._hosts[rank], times),
            )
        else:
            share = more_s / sum(one.seconds for one in self._windows)
            self._slow[rank, kind] = f"data {share:.0%}"
            log.warning(
                "rank %d on %s is slow: it waits for data for %.0f%% more of the time than the other ranks, which wait "
                "for it in each step: raise --workers, or check the disk of that host",
                *(rank, self._hosts[rank], 100 * share),
            )


def _of_others(seconds: np.ndarray) -> np.ndarray:
    """What the median rank took, seen by each rank: (kinds, ranks); of two ranks, the other one."""
    if seconds.shape[1] == 2:
        return seconds[:, ::-1]
    return np.broadcast_to(np.median(seconds, axis=1, keepdims=True), seconds.shape)
