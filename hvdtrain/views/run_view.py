"""A run as it is now: what it does, how far it is, or how it ended, for lists, for one run, and followed live."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.config.score import ACCURACY, Score
from hvdtrain.errors import UserError
from hvdtrain.runs.metrics import MAX_NAME, metrics_of
from hvdtrain.runs.records import Record, shown
from hvdtrain.runs.run import TRACES, Run, find_runs
from hvdtrain.system.checkpoint_folder import run_of
from hvdtrain.system.text import did_you_mean, printable
from hvdtrain.training.heartbeats import Observation, explain
from hvdtrain.views.rank_view import RankView, RankWatch, read_beats

RUNS = Path("runs")
"""The default folder of runs."""
POLL_S = 0.5
SECOND_LOOK_S = 0.7
"""After this time a heartbeat of a living rank has changed."""
RECENT_S = 3600.0
"""A run whose newest heartbeat is older than this, by the clocks, is not looked at twice."""
WAITING_S = 1.5
"""From so long without a step on all ranks, a run is shown as waiting."""
GOES_ON_S = 6.0
"""A run whose ranks write heartbeats for so long after its recorded end has gone on; others end a little later."""
STEPS = 3.0
"""A run with long steps, from this multiple of a step's time."""
LOST_S = 15.0
"""A run whose ranks are all silent for this long, and that recorded no end, was killed."""
STARTING_S = 10.0
"""A run without heartbeats is starting if rank 0 touched its lock in this time, which it does every 3 s."""
RESTARTING_S = 600.0
"""The ranks of the next attempt, or at least their lock, are there within this time, unless the launcher was killed."""
STATES = ("starting", "training", "waiting", "restarting", "finished", "stopped", "failed", "hung")


class RunState(NamedTuple):
    """What a run is doing."""

    name: str
    """One of STATES."""
    reason: str = ""
    """Why it waits, or how it ended."""
    rank: int | None = None
    """The rank that failed, or that the others wait for."""

    @property
    def is_over(self) -> bool:
        """Whether it makes no further step by itself."""
        return self.name in ("finished", "stopped", "failed", "hung")


@dataclass(frozen=True)
class RunView:
    """A run, as it was when it was looked at; what is not known is None."""

    run: Run
    state: RunState
    ranks: tuple[RankView, ...]
    step: int
    size: int
    """Number of ranks; 0 if it is not known."""
    global_batch: int
    """Rows of one step over all ranks; 0 if it is not known."""

    @property
    def folder(self) -> Path:
        return self.run.folder

    @property
    def name(self) -> str:
        """The name of its folder."""
        return shown(self.folder.name or self.folder.resolve().name)

    @property
    def started(self) -> str:
        """Date and time, `2026-05-01 14:03:11`."""
        return self.run.started.replace("T", " ")[:19]

    @property
    def last_step(self) -> int | None:
        """Number of steps of the whole run."""
        return self.run.config.count("steps") or None

    @property
    def train(self) -> Record:
        """The newest logging step."""
        return self.run.last_records["train"]

    @property
    def loss(self) -> float | None:
        """Training loss of the newest logging step."""
        return self.train.number("loss")

    @property
    def test_loss(self) -> float | None:
        """Of the newest evaluation."""
        return _first(self._result.number("loss"), self.run.last_records["test"].number("loss"))

    @functools.cached_property
    def metrics(self) -> dict[str, float]:
        """Of the newest evaluation, by name; that of the score first."""
        measured = (self.run.tested if self._result else {}) or metrics_of(self.run.last_records["test"].values)
        score = self.run.score_of(None, measured)
        names = sorted(measured, key=lambda name: score is None or name != score.name)
        return {shown(name, MAX_NAME): measured[name] for name in names}

    @functools.cached_property
    def score(self) -> Score | None:
        """Of the newest evaluation."""
        return self.run.score_of(self.test_loss, self.metrics)

    @property
    def _result(self) -> Record:
        return self.run.result if self.state.name == "finished" else Record()

    @property
    def images_per_s(self) -> float | None:
        """Over all ranks: the median of a finished run, else that of the newest logging step."""
        return _first(self._result.number("images_per_s"), self.train.number("images_per_s"))

    @property
    def left_s(self) -> float | None:
        """Seconds until its last step, at the speed of the newest logging step; evaluations not counted."""
        rate = self.steps_per_s
        if self.state.name != "training" or not rate or self.last_step is None:
            return None
        return max(self.last_step - self.step, 0) / rate

    @property
    def steps_per_s(self) -> float | None:
        """Steps per second at present."""
        if not self.images_per_s or not self.global_batch:
            return None
        return self.images_per_s / self.global_batch

    @functools.cached_property
    def values(self) -> dict[str, Any]:
        """As `--json`, filters and the web page have it."""
        options = self.run.recorded
        return {
            "name": self.name, "folder": printable(str(self.folder)), "id": self.run.config.text("id"),
            "started": self.started, "state": self.state.name, "reason": self.state.reason, "rank": self.state.rank,
            "framework": options.text("framework"), "strategy": self.run.strategy, "model": options.text("model"),
            "data": self.run.data, "ranks": self.size, "step": self.step, "last_step": self.last_step,
            "epoch": self.train.number("epoch"), "loss": self.loss, "accuracy": self.metrics.get(ACCURACY),
            "test_loss": self.test_loss, "metrics": self.metrics, "score": self.score and self.score.value,
            "scored_by": self.score.name if self.score else "", "lr": self.train.number("lr"),
            "images_per_s": self.images_per_s, "unit": self.run.unit, "left_s": self.left_s,
            "best_checkpoint": self._result.text("best_checkpoint"),
        }  # fmt: skip


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


class RunFollower:
    """Reads one run again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._watch = RankWatch()

    def look(self) -> RunView:
        """The run now."""
        run = Run(self.folder)
        size, train = run.config.count("ranks") or 0, run.last_records["train"]
        beats = {} if run.end and run.end.status == "finished" else read_beats(self.folder)
        beats = {rank: beat for rank, beat in beats.items() if rank < size or not size}  # not of a larger attempt
        ranks = self._watch.look(beats) if beats else []
        per_rank = size if run.recorded.values.get("batch_scope") == "per-rank" else 1
        batch, speed = (run.recorded.count("batch_size") or 0) * per_rank, train.number("images_per_s")
        state = find_state(run, ranks, max(size, 1), batch / speed if speed else 0.0)
        if state.is_over:  # no rank is unlike the others
            ranks = [replace(view, remark="") for view in ranks]
        steps = run.result.count("steps") if state.name == "finished" else None
        step = max([train.count("step") or 0, steps or 0, *(view.beat.step for view in ranks)])
        return RunView(run, state, tuple(ranks), step, size, batch)


def read_runs(folders: Iterable[Path]) -> list[RunView]:
    """The runs in these folders. A run whose ranks seem to be silent is looked at twice, as clocks of hosts differ."""
    followers = [RunFollower(folder) for folder in folders]
    views, again = [], []
    for index, follower in enumerate(followers):
        views.append(follower.look())
        if _needs_second_look(views[-1]):
            again.append((index, time.monotonic() + SECOND_LOOK_S))
    for index, at in again:  # the first one was looked at long ago if there are many
        time.sleep(max(at - time.monotonic(), 0))
        views[index] = followers[index].look()
    return views


def _needs_second_look(view: RunView) -> bool:
    """Whether it may be that ranks run whose heartbeats look old, or that their speed is not known yet."""
    is_final = view.state.name in ("finished", "stopped", "restarting")
    return not is_final and bool(view.ranks) and min(rank.age_s for rank in view.ranks) < RECENT_S


def find_state(run: Run, ranks: list[RankView], size: int, step_s: float = 0.0) -> RunState:
    """The state of a run, from its end record, its heartbeats and its lock.

    size: its number of ranks; step_s: seconds that a step takes.
    """
    end, living = run.end, [view for view in ranks if not view.is_silent]
    if end and not (living and _newest(ranks) > end.time + GOES_ON_S):  # else it went on after that
        is_old = end.status == "restarting" and time.time() - end.time > RESTARTING_S
        status = "failed" if is_old and _lock_age(run.folder) > STARTING_S else end.status
        return RunState(status, shown(end.reason), end.rank)
    if living:
        return _state_of_living(ranks, size, max(WAITING_S, STEPS * step_s))
    if run.result and not end:
        return RunState("finished")  # its end could not be recorded
    if ranks:
        quiet_s = min(view.age_s for view in ranks)
        if quiet_s < LOST_S:
            return RunState("waiting", f"no heartbeat of any rank for {quiet_s:.0f} s", ranks[0].rank)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(_newest(ranks)))
        return RunState("failed", f"no heartbeat of any rank since {since}: they were killed, or their hosts are down")
    if _lock_age(run.folder) < STARTING_S:
        return RunState("starting")
    if problem := _unreadable(run.folder):
        return RunState("waiting", f"its folder cannot be read ({problem})")
    return RunState("failed", "it ended before its first step")


def _unreadable(folder: Path) -> str:
    """Why the files of a run cannot be read; empty where they can."""
    try:
        hidden = [name for name in TRACES if name in os.listdir(folder) and not os.access(folder / name, os.R_OK)]
    except OSError as error:
        return str(error.strerror)
    return f"{hidden[0]}: {os.strerror(errno.EACCES)}" if hidden else ""


def _newest(ranks: list[RankView]) -> float:
    """When the newest heartbeat was written, in seconds since the epoch."""
    return max(view.beat.time for view in ranks)


def _state_of_living(ranks: list[RankView], size: int, waiting_s: float) -> RunState:
    """The state of a run of which at least one rank runs. waiting_s: how long it may be without a step."""
    idle_s = min(view.beat.idle_s for view in ranks if not view.is_silent)
    silent = [view for view in ranks if view.is_silent]
    if not silent and idle_s < waiting_s:
        slow = next((view for view in ranks if view.remark), None)
        return RunState("training", f"rank {slow.rank} is {slow.remark}" if slow else "", slow.rank if slow else None)
    seen = Observation({view.rank: view.beat for view in ranks}, frozenset(view.rank for view in silent))
    waited_s = max([idle_s, *(view.age_s for view in silent)])
    is_first = not silent and all(view.beat.step == 0 for view in ranks)  # frameworks compile before the first step
    name = "starting" if is_first else "waiting"
    return RunState(name, shown(explain(seen, range(size), waited_s)), seen.culprit[0])


def _lock_age(folder: Path) -> float:
    """Seconds since rank 0 touched the lock of a run's folder; very long where there is none."""
    try:
        touched = [entry.stat().st_mtime for entry in os.scandir(folder) if entry.name.startswith("lock-")]
    except OSError:
        return float("inf")
    return time.time() - max(touched, default=float("-inf"))


def chosen_run(path: Path) -> Path:
    """The folder of a run that a command line names: `path`, the newest run below it, or the one of that name in RUNS.

    A checkpoint, also as `RUN/best`, stands for its run. Raises UserError if there is none.
    """
    for place in (path, RUNS / path):
        if run := run_of(place):
            return run
        if os.path.isdir(place):
            return newest_run(place)
    name = printable(str(path))
    raise UserError(f"{name}: no such folder{_meant(path)}", "give a run's folder, or one that contains runs")


def _meant(path: Path) -> str:
    """The run whose name is close to that of the path."""
    for folder in (path.parent, RUNS):
        with contextlib.suppress(OSError):  # a folder that is missing, or may not be listed
            hint = did_you_mean(path.name, [child.name for child in folder.iterdir() if os.path.isdir(child)])
            if hint:
                return printable(hint)
    return ""


def awaited_run(path: Path, say: Callable[[str], None]) -> Path:
    """The same; waits until there is one. say: prints what is waited for, once."""
    has_said = False
    while True:
        try:
            return chosen_run(path)
        except UserError as error:
            if not has_said:
                say(f"waiting for a run: {error.reason} yet (Ctrl-C leaves)")
            has_said = True
            time.sleep(POLL_S)


def newest_run(path: Path) -> Path:
    """The run at `path`, or of those below it the one that wrote something last. Raises UserError if there is none."""
    runs = find_runs(path)
    if not runs:
        raise UserError(f"{printable(str(path))}: no run there", "give a run's folder, or one that contains runs")
    return max(runs, key=lambda folder: max(_times(folder), default=0.0))


def _times(folder: Path) -> Iterator[float]:
    for name in ("", "config.json", "metrics.jsonl", "heartbeats", "end.json"):
        try:
            yield os.stat(folder / name).st_mtime
        except OSError:
            continue
