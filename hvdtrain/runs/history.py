"""What a run's metrics say of its whole training: curves, hashes of checkpoints, and the times of its ranks."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec

from hvdtrain.config.score import LOSS
from hvdtrain.runs.metrics import (
    CURVES,
    KINDS,
    MAX_METRICS,
    TRAIN_LOSS,
    MetricsReader,
    Records,
    Values,
    logged_of,
    metrics_of,
)
from hvdtrain.runs.records import Seconds
from hvdtrain.runs.step_times import NO_TIME, StepSeconds
from hvdtrain.system.text import finite_number


class Curve(NamedTuple):
    epochs: list[float]
    steps: list[int]
    values: list[float]

    def __bool__(self) -> bool:
        return bool(self.values)

    def add(self, epoch: float, step: int, value: float) -> None:
        self.epochs.append(epoch)
        self.steps.append(step)
        self.values.append(value)

    def thinned(self, most: int) -> Curve:
        """At most about `most` points, with the least and the greatest value of each group of neighbors kept."""
        size = len(self.values)
        if size <= most:
            return self
        groups = max(most // 2, 1)
        kept = {0, size - 1}
        for group in range(groups):
            first = group * size // groups
            values = self.values[first : (group + 1) * size // groups]
            kept |= {first + values.index(min(values)), first + values.index(max(values))}
        places = sorted(kept)
        epochs, values = ([column[place] for place in places] for column in (self.epochs, self.values))
        return Curve(epochs, [self.steps[place] for place in places], values)


class SavedHash(msgspec.Struct):
    step: Annotated[int, msgspec.Meta(ge=1)]
    parameters: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{16}\Z")]
    """As in `result.json`."""
    time: float = 0.0
    """When it was written, in seconds since 1970; 0 if it is not known."""


class RankTimes(msgspec.Struct):
    """What a logging step took each rank, in its record; null for a rank that was not there."""

    compute_s: list[Seconds | None]
    data_s: list[Seconds | None]
    communicate_s: list[Seconds | None] | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.compute_s), len(self.data_s), len(self.communicate_s or self.data_s)}
        if len(lengths) > 1:
            raise ValueError("it has other ranks in each part")

    @property
    def by_rank(self) -> dict[int, StepSeconds]:
        rows = zip(self.compute_s, self.communicate_s or [None] * len(self.data_s), self.data_s, strict=True)
        return {
            rank: StepSeconds(computing, waiting, reading)
            for rank, (computing, waiting, reading) in enumerate(rows)
            if computing is not None and reading is not None
        }


class HistoryReader(MetricsReader):
    def curves(self, names: Collection[str] = ()) -> dict[str, Curve]:
        """The finite values by name: of CURVES, metrics as `test accuracy`, and what a script logged as `logged NAME`.

        names: those of CURVES, empty if they have no value; by default the train loss, and the loss of `part`.
        """
        part = self.part
        names = names or (TRAIN_LOSS, f"{part} {LOSS}")
        named, metrics, logged = {name: Curve([], [], []) for name in names}, dict[str, Curve](), dict[str, Curve]()
        for kind in KINDS:
            keys = {name: CURVES[name][1] for name in names if CURVES[name][0] == kind}
            for record in self.of_kind(kind):
                _add(named, record, {name: record.get(key) for name, key in keys.items()})
                if figures := logged_of(record):
                    _add(logged, record, {f"logged {name}": value for name, value in figures.items()})
                if kind == part:
                    _add(metrics, record, {f"{part} {name}": value for name, value in metrics_of(record).items()})
        return {**named, **metrics, **logged}

    def hashes(self) -> dict[int, SavedHash]:
        """By step: the hashes of the weights at checkpoints, of which not all need to be there any more."""
        return {saved.step: saved for saved in self.of_kind("checkpoint").typed(SavedHash)}

    def rank_times(self) -> dict[int, StepSeconds]:
        """By rank, the times of the logging steps of the ranks that train now, without the run's first one if others
        were measured, too: ranks warm up in it.
        """
        records = self.of_kind("train")
        ranks, intervals = next(_measured(records[::-1]), {}).keys(), _measured(records)
        sums, first = dict.fromkeys(ranks, NO_TIME), next(intervals, {})
        for times in itertools.chain([next(intervals, first)], intervals):
            if times.keys() == ranks:
                sums = {rank: time.plus(times[rank]) for rank, time in sums.items()}
        return sums


def _add(curves: dict[str, Curve], record: Values, figures: Mapping[str, Any]) -> None:
    """Add the figures of a record that are finite. Of more than MAX_METRICS new names, the rest is left out."""
    if (epoch := finite_number(record.get("epoch"))) is None:
        return
    for name, value in figures.items():
        if (number := finite_number(value)) is not None and (name in curves or len(curves) < MAX_METRICS):
            curves.setdefault(name, Curve([], [], [])).add(epoch, record["step"], number)


def _measured(records: Records) -> Iterator[dict[int, StepSeconds]]:
    """What each logging step took each of the ranks that were there, of those that measured it."""
    return filter(None, (times.by_rank for times in records.typed(RankTimes)))
