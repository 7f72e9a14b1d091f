"""A run as it is shown: one reader of its folder, for lists, for one run, and for what is followed live."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hvdtrain.errors import UserError
from hvdtrain.runs.search import find_runs
from hvdtrain.system.run_end import RunEnd
from hvdtrain.system.text import printable
from hvdtrain.views.monitor.content import count, number, read_object, shown, table, text
from hvdtrain.views.monitor.last_records import last_records
from hvdtrain.views.monitor.ranks import RankView, RankWatch, read_beats
from hvdtrain.views.monitor.state import RunState, find_state

SECOND_LOOK_S = 0.7
"""After this time a heartbeat of a living rank has changed."""
RECENT_S = 3600.0
"""A run whose newest heartbeat is older than this, by the clocks, is not looked at twice."""


@dataclass(frozen=True)
class RunView:
    """A run; what is not known, is None or empty."""

    folder: Path
    state: RunState
    id: str
    started: str
    """Date and time, `2026-05-01 14:03:11`."""
    framework: str
    strategy: str
    model: str
    data: str
    size: int
    """Number of ranks."""
    step: int
    last_step: int | None
    """Number of steps of the whole run."""
    epoch: float | None
    loss: float | None
    """Training loss of the newest logging step."""
    accuracy: float | None
    """Of the newest evaluation."""
    test_loss: float | None
    lr: float | None
    images_per_s: float | None
    """Over all ranks: the median of a finished run, else that of the newest logging step."""
    ranks: tuple[RankView, ...] = ()
    global_batch: int = 0
    """Rows of one step over all ranks; 0 if it is not known."""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return shown(self.folder.name or self.folder.resolve().name)

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

    def to_json(self) -> dict[str, Any]:
        """As `--json` and the web page have it."""
        return {
            "name": self.name, "folder": printable(str(self.folder)), "id": self.id, "started": self.started,
            "state": self.state.name, "reason": self.state.reason, "rank": self.state.rank,
            "framework": self.framework, "strategy": self.strategy, "model": self.model, "data": self.data,
            "ranks": self.size, "step": self.step, "last_step": self.last_step, "epoch": self.epoch,
            "loss": self.loss, "accuracy": self.accuracy, "test_loss": self.test_loss, "lr": self.lr,
            "images_per_s": self.images_per_s, "left_s": self.left_s,
        }  # fmt: skip


class RunFollower:
    """Reads one run again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._watch = RankWatch(folder)

    def look(self) -> RunView:
        """The run now."""
        return _read(self.folder, self._watch)


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
    left_word = view.state.name in ("finished", "stopped", "restarting")
    return not left_word and bool(view.ranks) and min(rank.age_s for rank in view.ranks) < RECENT_S


def _read(folder: Path, watch: RankWatch) -> RunView:
    config, result = read_object(folder / "config.json"), read_object(folder / "result.json")
    end = RunEnd.read(folder)
    size = count(config, "ranks")
    beats = {} if end and end.status == "finished" else read_beats(folder)
    beats = {rank: beat for rank, beat in beats.items() if rank < size or not size}  # not of an attempt with more ranks
    ranks = watch.look(beats) if beats else []
    options, records = table(config, "config"), last_records(folder / "metrics.jsonl")
    train, test = records.get("train", {}), records.get("test", {})
    batch, speed = _global_batch(options, size), number(train, "images_per_s")
    state = find_state(folder, end, ranks, max(size, 1), bool(result), batch / speed if speed else 0.0)
    if state.is_over:  # no rank is unlike the others
        ranks = [replace(view, remark="") for view in ranks]
    finished = result if state.name == "finished" else {}
    step = max([count(train, "step"), count(finished, "steps"), *(view.beat.step for view in ranks)])
    return RunView(
        folder=folder,
        state=state,
        id=text(config, "id"),
        started=text(config, "started").replace("T", " ")[:19],
        framework=text(options, "framework"),
        strategy=_strategy(options, text(config, "controller")),
        model=text(options, "model"),
        data=text(options, "data"),
        size=size,
        step=step,
        last_step=_last_step(config, options, train),
        epoch=number(train, "epoch"),
        loss=number(train, "loss"),
        accuracy=_first(number(finished, "accuracy"), number(test, "accuracy")),
        test_loss=_first(number(finished, "loss"), number(test, "loss")),
        lr=number(train, "lr"),
        images_per_s=_first(number(finished, "images_per_s"), speed),
        ranks=tuple(ranks),
        global_batch=batch,
    )


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _strategy(options: dict[str, Any], controller: str) -> str:
    """The strategy, with what Horovod's ranks are connected by."""
    strategy = text(options, "strategy")
    return f"{strategy} over {controller}" if strategy and controller else strategy


def _global_batch(options: dict[str, Any], size: int) -> int:
    return count(options, "batch_size") * (size if options.get("batch_scope") == "per-rank" else 1)


def _last_step(config: dict[str, Any], options: dict[str, Any], train: dict[str, Any]) -> int | None:
    """The number of steps of the run: recorded, or, of a run of an older version, from a record and its epoch."""
    if recorded := count(config, "steps"):
        return recorded
    epoch, step = number(train, "epoch"), count(train, "step")
    if not epoch or not step:
        return None
    steps = count(options, "epochs") * step / epoch
    return min(round(steps), count(options, "max_steps") or math.ceil(steps)) if math.isfinite(steps) else None


def newest_run(path: Path) -> Path:
    """The run at `path`, or of those below it the one that wrote something last. Raises UserError if there is none."""
    runs = find_runs(path)
    if not runs:
        raise UserError(f"{printable(str(path))}: no run there", "give a run's folder, or one that contains runs")
    return max(runs, key=_last_change)


def _last_change(folder: Path) -> float:
    return max(_times(folder), default=0.0)


def _times(folder: Path) -> Iterator[float]:
    for name in ("", "config.json", "metrics.jsonl", "heartbeats", "end.json"):
        try:
            yield os.stat(folder / name).st_mtime
        except OSError:
            continue
