"""A run as it is now: what it does, how far it is, or how it ended, for lists, for one run, and followed live."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hvdtrain.config.score import ACCURACY, LOSS, Score
from hvdtrain.errors import UserError
from hvdtrain.runs.changes import Changes
from hvdtrain.runs.metrics import HAPPENED, MAX_NAME, NAME, MetricsReader, metrics_of
from hvdtrain.runs.records import RunResult, shown
from hvdtrain.runs.run import RecordedRun
from hvdtrain.runs.search import find_runs
from hvdtrain.system.checkpoint_folder import RUNS, meant, run_of
from hvdtrain.system.files import changed_at_ns
from hvdtrain.system.text import finite_number, printable
from hvdtrain.views.run_state import RankView, RankWatch, RunState, find_state, read_beats, with_remarks

POLL_S = 0.5
SECOND_LOOK_S = 0.7
"""After this time a heartbeat of a living rank has changed."""
RECENT_S = 3600.0
"""A run whose newest heartbeat is older than this, by the clocks, is not looked at twice."""


@dataclass(frozen=True)
class RunView:
    """A run, as it was when it was looked at; what is not known is None."""

    run: RecordedRun
    """Without a result, unless it has finished."""
    state: RunState
    ranks: tuple[RankView, ...]
    step: int
    size: int
    """Number of ranks; 0 if it is not known."""
    global_batch: int
    """Rows of one step over all ranks; 0 if it is not known."""
    size_now: int | None = None
    """Number of ranks that train, where some were lost or joined; None where it is as it was at the start."""

    @property
    def folder(self) -> Path:
        return self.run.folder

    @property
    def name(self) -> str:
        return shown(self.folder.name or self.folder.resolve().name)

    @property
    def last_step(self) -> int | None:
        return self.run.config.steps or None

    @property
    def ranks_text(self) -> str:
        """The number of ranks: `4`, or where it is another one now, `3/4`."""
        if not self.size:
            return ""
        return str(self.size) if self.size_now is None else f"{self.size_now}/{self.size}"

    @property
    def loss(self) -> float | None:
        return self.run.train.loss

    @property
    def evaluated_loss(self) -> float | None:
        """Of the newest evaluation; of a finished run, of that by which it is compared."""
        return _first(self.run.chosen.loss, finite_number(self.run.evaluated.get("loss")))

    @property
    def loss_name(self) -> str:
        return f"{self.run.part} {LOSS}"

    @functools.cached_property
    def metrics(self) -> dict[str, float]:
        """Of the newest evaluation, as `evaluated_loss`, by name; that of the score first."""
        measured = self.run.tested or metrics_of(self.run.evaluated)
        score = self.run.score_of(None, measured)
        names = sorted(measured, key=lambda name: score is None or name != score.name)
        return {shown(name, MAX_NAME): measured[name] for name in names}

    @functools.cached_property
    def score(self) -> Score | None:
        return self.run.score_of(self.evaluated_loss, self.metrics)

    @property
    def images_per_s(self) -> float | None:
        """Over all ranks: the median of a finished run, else that of the newest logging step."""
        return _first(self.run.result.images_per_s, self.run.train.images_per_s)

    @property
    def left_s(self) -> float | None:
        """Seconds until its last step, at the speed of the newest logging step; evaluations not counted."""
        rate = self.images_per_s
        if self.state.name != "training" or not rate or not self.global_batch or self.last_step is None:
            return None
        return max(self.last_step - self.step, 0) * self.global_batch / rate

    @functools.cached_property
    def values(self) -> dict[str, Any]:
        """As `--json`, filters and the web page have it."""
        config, train, tested = self.run.config, self.run.train, self.run.last_records.get("test", {})
        return {
            "name": self.name, "folder": printable(str(self.folder)), "id": config.id, "parent": config.parent,
            "started": self.run.config.started.replace("T", " ")[:19],
            "state": self.state.name, "reason": self.state.reason, "rank": self.state.rank,
            "framework": config.text("framework"), "strategy": self.run.strategy, "model": config.text("model"),
            "data": self.run.data, "ranks": self.size, "ranks_now": self.size_now, "step": self.step,
            "last_step": self.last_step, "epoch": train.epoch, "loss": self.loss,
            "accuracy": self.metrics.get(ACCURACY), "metrics": self.metrics,
            "test_loss": _first(self.run.result.loss, finite_number(tested.get("loss"))),
            "validation_loss": self.evaluated_loss if self.run.part == "validation" else None,
            "evaluated": self.run.part,
            "score": self.score and self.score.value, "scored_by": self.score.name if self.score else "",
            "lr": train.lr, "images_per_s": self.images_per_s, "unit": self.run.unit,
            "left_s": self.left_s, "best_checkpoint": self.run.result.best_checkpoint or "",
            "options": self.run.chosen_options,
        }  # fmt: skip


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


class RunFollower:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._watch = RankWatch()
        self._happened = MetricsReader(folder / NAME, only=HAPPENED)

    def look(self) -> RunView:
        run = RecordedRun(self.folder)
        size, train = run.config.ranks, run.train
        beats = {} if run.end and run.end.status == "finished" else read_beats(self.folder)
        ranks = self._watch.look(beats) if beats else []
        changes = Changes.of(self._happened.read()) if ranks else Changes()
        if changes.members and changes.members.time < run.config.began:
            changes = Changes()  # they are of an earlier job
        ranks = with_remarks(ranks, changes, size)
        per_rank = size if run.config.text("batch_scope") == "per-rank" else 1
        batch, speed = run.config.count("batch_size") * per_rank, train.images_per_s
        state = find_state(run, ranks, max(size, 1), batch / speed if speed else 0.0, changes)
        if state.is_over:  # no rank is unlike the others
            ranks = [replace(view, remark="") for view in ranks]
        if state.name != "finished":
            run.result = RunResult()  # what is there is of a job before
        step = max([train.step, run.result.steps, *(view.beat.step for view in ranks)])
        now = len(changes.members.hosts) if changes.members else size
        return RunView(run, state, tuple(ranks), step, size, batch, now if now != size else None)


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
    is_final = view.state.name in ("finished", "stopped", "pruned", "restarting")
    return not is_final and bool(view.ranks) and min(rank.age_s for rank in view.ranks) < RECENT_S


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
    raise UserError(f"{name}: no such folder{meant(path)}", "give a run's folder, or one that contains runs")


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
    files = ("", "config.json", "metrics.jsonl", "heartbeats", "end.json")
    return max(runs, key=lambda folder: max(changed_at_ns(folder / name) for name in files))
