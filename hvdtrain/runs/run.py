"""A run as it is read from its folder, whatever state it and its files are in."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from hvdtrain.config.options import Config
from hvdtrain.config.score import ACCURACY, Score, score_of
from hvdtrain.config.sources import FACTS, to_record
from hvdtrain.errors import UserError
from hvdtrain.runs import metrics
from hvdtrain.runs.changes import Changes
from hvdtrain.runs.history import History, HistoryReader
from hvdtrain.runs.records import MAX_COUNT, Count, Record, as_text
from hvdtrain.runs.step_times import NO_TIME, StepSeconds
from hvdtrain.system.files import read_json
from hvdtrain.system.run_end import RunEnd
from hvdtrain.system.text import printable

NOT_SETTINGS = ("framework", "strategy", "recipe", "seed")
"""Options that are columns, names for other options, or what repetitions may change."""
LAYERS = "layers"
"""The setting that tells networks of one --model name apart: a checksum of their layers."""
REPLACE = "correct it, or move this run's folder away, or repeat the run"
Result = TypeVar("Result")
Positive = Annotated[int, msgspec.Meta(ge=1, lt=MAX_COUNT)]


class ConfigFile(msgspec.Struct):
    """What the config.json of each run has."""

    config: dict[str, Any]
    ranks: Positive
    devices: Positive
    host: dict[str, Any] | None = None
    versions: dict[str, Any] | None = None
    network: dict[str, Any] | None = None


class ResultFile(msgspec.Struct):
    """What the result.json of each run has."""

    steps: Count
    global_batch: Positive
    per_class_accuracy: dict[str, Any] | None = None


def required(path: Path, kind: type[Result]) -> Result:
    """The record of a schema in a run's file. Raises UserError if it is none."""
    try:
        return msgspec.convert(read_json(path), kind)  # earlier versions wrote NaN, which msgspec does not decode
    except OSError as error:
        why = str(error.strerror)
    except (ValueError, RecursionError) as error:
        why = str(error)
    raise UserError(f"{printable(format(path))}: cannot be read ({printable(why)})", REPLACE)


class RecordedRun:
    """A run, from its folder. Each file is read when a value of it is first asked for; what is not known is None,
    empty or 0.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @functools.cached_property
    def config(self) -> Record:
        return Record.read(self.folder / "config.json")

    @functools.cached_property
    def result(self) -> Record:
        """Without the confusion matrix, which may be large, and which no view shows."""
        result = Record.read(self.folder / "result.json")
        result.values.pop("confusion", None)
        return result

    @functools.cached_property
    def end(self) -> RunEnd | None:
        return RunEnd.read(self.folder)

    @functools.cached_property
    def last_records(self) -> dict[str, Record]:
        """The newest logging step, `train`, and the newest evaluations by part of the data."""
        records = metrics.last_records(self.folder / metrics.NAME)
        return {kind: Record(records.get(kind)) for kind in metrics.KINDS}

    @property
    def part(self) -> str:
        """The part of the data that its evaluations, and so its score, are of: `validation` or `test`."""
        return next((part for part in metrics.EVALUATIONS if self.last_records[part]), "test")

    @property
    def evaluated(self) -> Record:
        """The newest evaluation while it trained."""
        return self.last_records[self.part]

    @property
    def history(self) -> History:
        """What it wrote while it trained."""
        return self._written[0]

    @property
    def changes(self) -> Changes:
        """What happened to its ranks while it trained."""
        return self._written[1]

    @functools.cached_property
    def _written(self) -> tuple[History, Changes]:
        reader = HistoryReader(self.folder / metrics.NAME).read()
        return reader.history(), Changes.of(reader)

    def require(self) -> RecordedRun:
        """The run, if it has finished. Raises UserError for content that no run writes."""
        given = required(self.folder / "config.json", ConfigFile).config
        required(self.folder / "result.json", ResultFile)
        for name, default in to_record(Config()).items():
            # Earlier versions recorded --split as a number.
            kinds = (int, float) if isinstance(default, float) or name == "split" else ()
            if not isinstance(given.get(name, default), (type(default), *kinds)):
                raise UserError(f'{self.folder / "config.json"}: "{name}" is {given[name]!r:.80}', REPLACE)
        return self

    @property
    def name(self) -> str:
        return printable(self.folder.resolve().name)

    @functools.cached_property
    def options(self) -> dict[str, Any]:
        """Those of `Config`; for what the record lacks, as a script with its own loop decides it, the defaults.

        Lists are one text.
        """
        return {printable(name): _shown(value) for name, value in (to_record(Config()) | self.recorded.values).items()}

    @functools.cached_property
    def recorded(self) -> Record:
        """The options of `Config` as they were recorded."""
        return self.config.table("config")

    @property
    def controller(self) -> str:
        """What connected Horovod's processes, `Gloo` or `MPI`; empty in other strategies."""
        return self.config.text("controller")

    @property
    def strategy(self) -> str:
        """The strategy, with what Horovod's ranks are connected by: runs over Gloo and MPI are not repetitions."""
        strategy = self.recorded.text("strategy")
        return f"{strategy} over {self.controller}" if strategy and self.controller else strategy

    @functools.cached_property
    def ranks(self) -> int:
        return self.config.count("ranks") or 0

    @functools.cached_property
    def devices(self) -> int:
        """Devices per rank."""
        return self.config.count("devices") or 0

    @property
    def replicas(self) -> int:
        return self.ranks * self.devices

    @functools.cached_property
    def global_batch(self) -> int:
        """Rows of one step over all ranks."""
        return self.result.count("global_batch") or 0

    @functools.cached_property
    def steps(self) -> int:
        """Steps that it has made when it finished."""
        return self.result.count("steps") or 0

    @property
    def parameters(self) -> str:
        """The hash of its weights when it finished."""
        return self.result.text("parameters")

    @property
    def started(self) -> str:
        return self.config.text("started")

    @functools.cached_property
    def host(self) -> dict[str, str]:
        """The host of rank 0."""
        return self.config.table("host").texts()

    @functools.cached_property
    def versions(self) -> dict[str, str]:
        return self.config.table("versions").texts()

    @functools.cached_property
    def settings(self) -> dict[str, str]:
        """Options that are equal in all repetitions, with layers, device, OMP_NUM_THREADS and machine, as text."""
        names = [name for name in self.options if name not in NOT_SETTINGS and not self._is_of_code(name)]
        settings = {name: as_text(self.options[name]) for name in names}
        if network := self.config.table("network").values:
            settings[LAYERS] = hashlib.sha256(json.dumps(network, sort_keys=True).encode()).hexdigest()[:8]
        settings["device"] = (self.config.text("device") or "unknown").split(":")[0]  # cuda:0 and cuda:1 are the same
        settings["threads"] = self.host.get("OMP_NUM_THREADS") or "unset"
        settings["machine"] = (
            f"{self.host.get('processor') or 'unknown processor'}, {self.host.get('cores', '?')} cores"
        )
        return settings

    def _is_of_code(self, option: str) -> bool:
        """Whether a task or a script decides it instead."""
        if not self.is_user_code or option not in FACTS:
            return False
        return option not in self.recorded.values or FACTS[option].decided_by == "task"

    @functools.cached_property
    def identity(self) -> tuple[Any, ...]:
        """Equal for runs that are repetitions of each other."""
        place = self.options["framework"], self.strategy or self.options["strategy"], self.ranks, self.devices
        return (*place, *self.settings.items())

    @functools.cached_property
    def is_user_code(self) -> bool:
        """Whether a task or a script of the user's was trained, which have data of their own."""
        return "task" in self.config.table("network").values

    @property
    def data(self) -> str:
        """The value of --data; empty for a task or a script."""
        return "" if self.is_user_code else self.recorded.text("data")

    @property
    def unit(self) -> str:
        """What a row is."""
        return "rows" if self.is_user_code else "images"

    @functools.cached_property
    def chosen(self) -> Record:
        """The evaluation by which it is compared: of its best checkpoint on validation data, else the test at its end.

        `loss`, `metrics` and `rows`, or `test_rows`.
        """
        best = self.result.table("best").table("validation")
        return best or self.result.table("validation") or self.result

    @functools.cached_property
    def tested(self) -> dict[str, float]:
        """The metrics of the evaluation by which it is compared."""
        metrics_of = metrics.metrics_of
        return metrics_of(self.chosen.table("metrics").values) or metrics_of(
            {ACCURACY: self.chosen.number(ACCURACY)}  # of earlier versions
        )

    @property
    def score(self) -> Score | None:
        """That by which it is compared."""
        return self.score_of(self.chosen.number("loss"), self.tested)

    def score_of(self, loss: float | None, metrics: dict[str, float]) -> Score | None:
        """That of an evaluation, by the run's --score."""
        return score_of(loss, metrics, self.config.table("runtime").text("score"), self.part)

    @property
    def images_per_s(self) -> float | None:
        """The median of its logging intervals; None for a run that was shorter than one."""
        speed = self.result.number("images_per_s")
        return speed if speed and speed > 0 else None

    @property
    def images_per_core_s(self) -> float | None:
        return _ratio(self.images_per_s, self.result.number("cores"))

    @property
    def gflops_per_core(self) -> float | None:
        """Arithmetic of training on each core, in 10^9 operations per second."""
        gflops = _ratio(self.images_per_s, _ratio(1e9, self.result.number("flops_per_image")))
        return _ratio(gflops, self.result.number("cores"))

    @property
    def test_rows(self) -> int | None:
        """Rows that the accuracy is a share of."""
        return self.chosen.count("rows") or self.chosen.count("test_rows") or None

    @functools.cached_property
    def shares(self) -> StepSeconds | None:
        """Each part's share of the time of steps, of all ranks together; None if the run did not record it.

        Of several devices in a process, computing has their communication.
        """
        time = functools.reduce(StepSeconds.plus, self.history.ranks.values(), NO_TIME)
        return (time if self.devices == 1 else StepSeconds(time.total - time.data, None, time.data)).shares


def _shown(value: Any) -> Any:
    """A recorded value as reports have it; those of a list as one text."""
    if isinstance(value, list):
        return printable(" ".join(map(str, value)))
    return printable(value) if isinstance(value, str) else value


def _ratio(value: float | None, base: float | None) -> float | None:
    """None if either was not measured, or is not positive."""
    return value / base if value and base and value > 0 and base > 0 else None
