"""What a run's metrics say of its whole training: curves, hashes of checkpoints, and the times of its ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, NamedTuple

import msgspec

from hvdtrain.runs.metrics import CURVES, MAX_METRICS, TRAIN_LOSS, MetricsReader, Records, Values, logged_of, metrics_of
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


class History(NamedTuple):
    """What a run's metrics say about its whole training. What it did not record is empty."""

    train_loss: Curve
    evaluated_loss: Curve
    metrics: dict[str, Curve]
    logged: dict[str, Curve]
    """Those that a script logged, see `HistoryReader.logged`."""
    part: str
    """Of the data that was evaluated: `validation` or `test`; empty for none."""
    ranks: dict[int, StepSeconds]
    """By rank, see `summed`."""


class HistoryReader(MetricsReader):
    def curve(self, name: str) -> Curve:
        """The finite values of one of CURVES, or of a metric."""
        kind, key = CURVES.get(name, (self.part, name))
        return self._curves(kind, lambda record: {key: finite_number(record.get(key))}).get(key, Curve([], [], []))

    def evaluated(self) -> dict[str, Curve]:
        """The finite values of evaluations: the metrics, and `loss`."""
        return self._curves(self.part, lambda record: {"loss": finite_number(record.get("loss")), **metrics_of(record)})

    def logged(self) -> dict[str, Curve]:
        """The finite values that a script logged, as `logged NAME`."""
        return self._curves("train", lambda record: {f"logged {name}": one for name, one in logged_of(record).items()})

    def _curves(self, kind: str, values_of: Callable[[Values], Mapping[str, float | None]]) -> dict[str, Curve]:
        """The finite values of records of a kind, by name, of at most about MAX_METRICS names."""
        curves: dict[str, Curve] = {}
        for record in self.of_kind(kind):
            epoch = finite_number(record.get("epoch"))
            for name, value in values_of(record).items() if epoch is not None else ():
                if epoch is not None and value is not None and (name in curves or len(curves) <= MAX_METRICS):
                    curves.setdefault(name, Curve([], [], [])).add(epoch, record["step"], value)
        return curves

    def hashes(self) -> dict[int, SavedHash]:
        """By step: the hashes of the weights at checkpoints, of which not all need to be there any more."""
        return {saved.step: saved for saved in self.of_kind("checkpoint").typed(SavedHash)}

    def history(self) -> History:
        ranks = summed(self.of_kind("train"))
        evaluated = self.evaluated()
        part = self.part if evaluated else ""
        loss = evaluated.pop("loss", Curve([], [], []))
        return History(self.curve(TRAIN_LOSS), loss, evaluated, self.logged(), part, ranks)


def _measured(records: Records) -> Iterator[dict[int, StepSeconds]]:
    """What each logging step took each of the ranks that were there, of those that measured it."""
    return filter(None, (times.by_rank for times in records.typed(RankTimes)))


def summed(records: Records) -> dict[int, StepSeconds]:
    """By rank, the times of the logging steps of the ranks that train now, without the run's first one if others were
    measured, too: ranks warm up in it.
    """
    ranks, intervals = next(_measured(records[::-1]), {}).keys(), _measured(records)
    sums, first = dict.fromkeys(ranks, NO_TIME), next(intervals, {})
    for times in itertools.chain([next(intervals, first)], intervals):
        if times.keys() == ranks:
            sums = {rank: time.plus(times[rank]) for rank, time in sums.items()}
    return sums
