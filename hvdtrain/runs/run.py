"""A run as it is read from its folder, whatever state it and its files are in."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hvdtrain.config.option import ARGUMENT, key
from hvdtrain.config.options import Config
from hvdtrain.config.score import ACCURACY, Score, figure_of
from hvdtrain.config.sources import FACTS, to_record
from hvdtrain.errors import UserError
from hvdtrain.runs import metrics
from hvdtrain.runs.changes import Changes
from hvdtrain.runs.history import Curve, HistoryReader
from hvdtrain.runs.records import EvaluationRecord, LoggedStep, RunConfig, RunResult, as_text, read, shown, texts
from hvdtrain.runs.step_times import NO_TIME, StepSeconds
from hvdtrain.system.files import Damaged, converted, read_record
from hvdtrain.system.run_end import RunEnd
from hvdtrain.system.text import finite_number, printable

NOT_SETTINGS = ("framework", "strategy", "recipe", "seed")
"""Options that are columns, names for other options, or what repetitions may change."""
WITH_COLUMNS = ("framework", "strategy", "recipe", "model", "data", "score")
"""Options that are columns of every list of runs, or a name for others."""
MAX_ARGUMENTS = 100
"""Of more arguments of a task, views do not show the rest."""
LAYERS = "layers"
"""The setting that tells networks of one --model name apart: a checksum of their layers."""
REPLACE = "correct it, or move this run's folder away, or repeat the run"


class RecordedRun:
    """A run, from its folder. Each file is read when a value of it is first asked for; what is not known is None,
    empty or 0.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @functools.cached_property
    def config(self) -> RunConfig:
        return read(self.folder / "config.json", RunConfig)

    @functools.cached_property
    def result(self) -> RunResult:
        return read(self.folder / "result.json", RunResult)

    @functools.cached_property
    def end(self) -> RunEnd | None:
        return RunEnd.read(self.folder)

    @functools.cached_property
    def last_records(self) -> dict[str, metrics.Values]:
        """The newest logging step, `train`, and the newest evaluations by part of the data."""
        return metrics.last_records(self.folder / metrics.NAME)

    @functools.cached_property
    def train(self) -> LoggedStep:
        with contextlib.suppress(ValueError):
            return converted(self.last_records.get("train", {}), LoggedStep)
        return LoggedStep()

    @property
    def part(self) -> str:
        """The part of the data that its evaluations, and so its score, are of: `validation` or `test`."""
        return next((part for part in metrics.EVALUATIONS if part in self.last_records), "test")

    @property
    def evaluated(self) -> metrics.Values:
        return self.last_records.get(self.part, {})

    @property
    def curves(self) -> dict[str, Curve]:
        return self._written[0]

    @property
    def rank_times(self) -> dict[int, StepSeconds]:
        return self._written[1]

    @property
    def changes(self) -> Changes:
        return self._written[2]

    @functools.cached_property
    def _written(self) -> tuple[dict[str, Curve], dict[int, StepSeconds], Changes]:
        reader = HistoryReader(self.folder / metrics.NAME).read()
        return reader.curves(), reader.rank_times(), Changes.of(reader)

    def decoded(self) -> RecordedRun:
        """The run, if its files decode. Raises UserError for content that no run writes."""
        config, result = (self.folder / name for name in ("config.json", "result.json"))
        try:
            self.config, self.result = read_record(config, RunConfig), read_record(result, RunResult)
        except Damaged as error:
            raise UserError(str(error), REPLACE) from None
        return self

    def require(self) -> RecordedRun:
        """The run, if it has finished. Raises UserError for content that no run writes."""
        self.decoded()
        config, result = ("config.json", self.config), ("result.json", self.result)
        for (file, record), name in ((config, "ranks"), (config, "devices"), (result, "global_batch")):
            if not getattr(record, name):
                raise UserError(f"{printable(format(self.folder / file))}: has no {name}", REPLACE)
        given = self.config.options
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
        return {printable(name): _shown(value) for name, value in (to_record(Config()) | self.config.options).items()}

    @property
    def strategy(self) -> str:
        """The strategy, with what Horovod's ranks are connected by: runs over Gloo and MPI are not repetitions."""
        strategy, controller = self.config.text("strategy"), self.config.controller
        return f"{strategy} over {controller}" if strategy and controller else strategy

    @property
    def replicas(self) -> int:
        return self.config.ranks * self.config.devices

    @functools.cached_property
    def host(self) -> dict[str, str]:
        return texts(self.config.host)

    @functools.cached_property
    def versions(self) -> dict[str, str]:
        return texts(self.config.versions)

    @functools.cached_property
    def settings(self) -> dict[str, str]:
        """Options that are equal in all repetitions, with layers, device, OMP_NUM_THREADS and machine, as text."""
        settings = {name: as_text(value) for name, value in self._decided.items() if name not in NOT_SETTINGS}
        if network := self.config.network:
            settings[LAYERS] = hashlib.sha256(json.dumps(network, sort_keys=True).encode()).hexdigest()[:8]
        settings["device"] = (self.config.device or "unknown").split(":")[0]  # cuda:0 and cuda:1 are the same
        settings["threads"] = self.host.get("OMP_NUM_THREADS") or "unset"
        settings["machine"] = (
            f"{self.host.get('processor') or 'unknown processor'}, {self.host.get('cores', '?')} cores"
        )
        return settings

    @functools.cached_property
    def chosen_options(self) -> dict[str, int | float | str]:
        """Options by the names that users write, and arguments of a task as `arg.NAME`; without WITH_COLUMNS."""
        return {
            key(name): shown(as_text(value)) if finite_number(value) is None else value
            for name, value in self._decided.items()
            if name.startswith(ARGUMENT) or (name in FACTS and name not in WITH_COLUMNS)
        }

    @property
    def _decided(self) -> dict[str, Any]:
        """The options that neither a task nor a script decides instead, and the arguments of a task as `arg.NAME`."""
        known = {name: value for name, value in self.options.items() if not self._is_of_code(name)}
        given = (self.config.network or {}).get("options") if self.config.is_user_code else None
        if isinstance(given, dict) and given:
            known.pop("arg", None)
            known |= {ARGUMENT + shown(name, 80): value for name, value in list(given.items())[:MAX_ARGUMENTS]}
        return known

    def _is_of_code(self, option: str) -> bool:
        """Whether a task or a script decides it instead."""
        if not self.config.is_user_code or option not in FACTS:
            return False
        return option not in self.config.options or FACTS[option].decided_by == "task"

    @functools.cached_property
    def identity(self) -> tuple[Any, ...]:
        """Equal for runs that are repetitions of each other."""
        names = self.options["framework"], self.strategy or self.options["strategy"]
        return (*names, self.config.ranks, self.config.devices, *self.settings.items())

    @property
    def data(self) -> str:
        """The value of --data; empty for a task or a script."""
        return "" if self.config.is_user_code else self.config.text("data")

    @property
    def unit(self) -> str:
        return "rows" if self.config.is_user_code else "images"

    @functools.cached_property
    def chosen(self) -> EvaluationRecord:
        """The evaluation by which it is compared: of its best checkpoint on validation data, else that at its end."""
        best = self.result.best
        return (best and best.validation) or self.result.validation or self.result

    @functools.cached_property
    def tested(self) -> dict[str, float]:
        """The metrics of the evaluation by which it is compared."""
        metrics_of = metrics.metrics_of
        return metrics_of(self.chosen.metrics or {}) or metrics_of({ACCURACY: self.chosen.accuracy})

    @property
    def test_of_best(self) -> dict[str, float]:
        """The metrics of its best checkpoint on test data; empty where another evaluation chose none."""
        best = self.result.best
        return metrics.metrics_of((best and best.test and best.test.metrics) or {})

    @property
    def score(self) -> Score | None:
        return self.score_of(self.chosen.loss, self.tested)

    def score_of(self, loss: float | None, metrics: dict[str, float]) -> Score | None:
        return figure_of(loss, metrics, self.config.text("score"), self.part).finite

    @property
    def images_per_s(self) -> float | None:
        """The median of its logging intervals; None for a run that was shorter than one."""
        speed = self.result.images_per_s
        return speed if speed and speed > 0 else None

    @property
    def images_per_core_s(self) -> float | None:
        return _ratio(self.images_per_s, self.result.cores)

    @property
    def gflops_per_core(self) -> float | None:
        """Arithmetic of training on each core, in 10^9 operations per second."""
        gflops = _ratio(self.images_per_s, _ratio(1e9, self.result.flops_per_image))
        return _ratio(gflops, self.result.cores)

    @property
    def test_rows(self) -> int | None:
        return self.chosen.rows or self.chosen.test_rows or None

    @functools.cached_property
    def shares(self) -> StepSeconds | None:
        """Each part's share of the time of steps, of all ranks together; None if the run did not record it.

        Of several devices in a process, computing has their communication.
        """
        time = functools.reduce(StepSeconds.plus, self.rank_times.values(), NO_TIME)
        return (time if self.config.devices == 1 else StepSeconds(time.total - time.data, None, time.data)).shares


def unit_of(runs: Iterable[RecordedRun]) -> str:
    """What the rows of data of these runs are called: `images` if all are."""
    return "images" if all(run.unit == "images" for run in runs) else "rows"


def _shown(value: Any) -> Any:
    """A recorded value as reports have it; those of a list as one text."""
    if isinstance(value, list):
        return printable(" ".join(map(str, value)))
    return printable(value) if isinstance(value, str) else value


def _ratio(value: float | None, base: float | None) -> float | None:
    """None if either was not measured, or is not positive."""
    return value / base if value and base and value > 0 and base > 0 else None
