"""Finished runs, read from their folders."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvdtrain.config.options import Config
from hvdtrain.errors import UserError
from hvdtrain.frameworks.registry import STYLES
from hvdtrain.runs.search import RECORDS, find_runs
from hvdtrain.runs.step_times import NO_TIME, StepTime
from hvdtrain.system.text import printable
from hvdtrain.views.report.history import History, read_history
from hvdtrain.views.report.records import JsonRecord, as_text

NOT_SETTINGS = ("framework", "strategy", "api", "kvstore", "recipe", "seed")
"""Options that are columns, names for other options, or what repetitions may change."""
LAYERS = "layers"
"""The setting that tells networks of one --model name apart: a checksum of their layers."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, from its folder. What it did not measure is None."""

    folder: Path
    options: dict[str, Any]
    """Those of `Config`, with defaults for those that an old run lacks."""
    controller: str
    """What connected Horovod's processes, `Gloo` or `MPI`; empty in other strategies and old runs."""
    ranks: int
    devices: int
    """Devices per rank."""
    global_batch: int
    steps: int
    settings: dict[str, str]
    """Options that are equal in all repetitions, with layers, device, OMP_NUM_THREADS and machine, as text."""
    host: dict[str, str]
    versions: dict[str, str]
    started: str
    images_per_s: float | None
    epoch_s: float | None
    step_s: float | None
    cores: float | None
    """CPU cores that the job computes with."""
    gflops: float | None
    """Arithmetic of training, in 10^9 operations per second."""
    peak_rss_mb: float | None
    accuracy: float | None
    test_rows: int | None
    """Rows that the accuracy is a share of."""
    per_class: dict[str, float] = field(default_factory=dict)
    """Accuracy of each class that has test images, by its name."""

    @property
    def name(self) -> str:
        return printable(self.folder.resolve().name)

    @property
    def replicas(self) -> int:
        return self.ranks * self.devices

    @property
    def images_per_core_s(self) -> float | None:
        return _ratio(self.images_per_s, self.cores)

    @property
    def gflops_per_core(self) -> float | None:
        return _ratio(self.gflops, self.cores)

    @functools.cached_property
    def shares(self) -> StepTime | None:
        """Each part's share of the time of steps, of all ranks together; None if the run did not record it.

        Of several devices in a process, computing has their communication.
        """
        time = functools.reduce(StepTime.plus, self.history.ranks, NO_TIME)
        return (time if self.devices == 1 else StepTime(time.total - time.data, None, time.data)).shares

    @functools.cached_property
    def history(self) -> History:
        """What the run wrote while it trained."""
        return read_history(self.folder)

    @property
    def strategy(self) -> str:
        """The strategy, with key-value store and programming style unless they are the default.

        Horovod's has what it ran over, as runs over Gloo and over MPI are not repetitions of each other.
        """
        options = self.options
        over = f" over {self.controller}" if self.controller else ""
        kvstore = f" {options['kvstore']}" if options["kvstore"] != Config.kvstore else ""
        return f"{options['strategy']}{over}{kvstore}" + (f" ({options['api']})" if options["api"] != "auto" else "")

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for runs that are repetitions of each other."""
        own = (self.options["framework"], self.strategy, self.ranks, self.devices)
        return (*own, *self.settings.items())


def collect(paths: Iterable[Path]) -> tuple[list[FinishedRun], list[str]]:
    """The runs in these folders or their direct children, and the names of unfinished ones, with the reason.

    Raises UserError if there are none, or one cannot be read.
    """
    folders: dict[Path, Path] = {}
    unfinished: dict[Path, str] = {}
    for path in paths:
        for folder in find_runs(path):
            missing = [name for name in RECORDS if not (folder / name).is_file()]
            if not missing:
                folders.setdefault(folder.resolve(), folder)
            else:
                unfinished[folder.resolve()] = f"{printable(str(folder))}: no {' and no '.join(missing)}"
    if not folders:
        also = f" ({len(unfinished)} did not finish: {'; '.join(unfinished.values())})" if unfinished else ""
        given = ", ".join(printable(str(path)) for path in paths)
        remedy = f"give run folders, which contain {' and '.join(RECORDS)}"
        raise UserError(f"{given}: no finished run there{also}", remedy)
    return [read_run(folder) for folder in folders.values()], list(unfinished.values())


def read_run(folder: Path) -> FinishedRun:
    """The finished run in `folder`. Raises UserError, naming the file, for content that no run writes."""
    config, result = (JsonRecord.read(folder / name) for name in RECORDS)
    options = config.record("config").options()
    if options["api"] == _default_api(options["framework"]):
        options["api"] = "auto"  # a run that names the default is a repetition of one that does not
    ranks, devices = config.count("ranks"), config.count("devices", 1)
    batch = options["batch_size"] * (ranks if options["batch_scope"] == "per-rank" else 1)
    host = config.record("host", {}).texts()
    speed = result.number("images_per_s")
    return FinishedRun(
        folder=folder,
        options=options,
        controller=config.texts().get("controller", ""),
        ranks=ranks,
        devices=devices,
        global_batch=result.count("global_batch", batch),
        steps=result.count("steps"),
        settings=_settings(options, config, host),
        host=host,
        versions=config.record("versions", {}).texts(),
        started=config.texts().get("started", ""),
        images_per_s=speed if speed and speed > 0 else None,  # 0 if the run was shorter than an interval
        epoch_s=result.number("epoch_s"),
        step_s=result.number("step_s"),
        cores=result.number("cores"),
        gflops=_ratio(speed, _ratio(1e9, result.number("flops_per_image"))),
        peak_rss_mb=result.number("peak_rss_mb"),
        accuracy=result.number("accuracy"),
        test_rows=count_test_rows(result),
        per_class=result.record("per_class_accuracy", {}).numbers(),
    )


def _default_api(framework: str) -> str:
    """The programming style that --api auto means; empty for an unknown framework."""
    return next((styles[0] for name, styles in STYLES.items() if name == framework), "")


def _settings(options: dict[str, Any], config: JsonRecord, host: dict[str, str]) -> dict[str, str]:
    settings = {name: as_text(value) for name, value in options.items() if name not in NOT_SETTINGS}
    if layers := config.record("network", {}).as_json():  # old runs lack it
        settings[LAYERS] = hashlib.sha256(layers.encode()).hexdigest()[:8]
    settings["device"] = config.texts().get("device", "unknown").split(":")[0]  # cuda:0 and cuda:1 are the same
    settings["threads"] = host.get("OMP_NUM_THREADS") or "unset"
    settings["machine"] = f"{host.get('processor') or 'unknown processor'}, {host.get('cores', '?')} cores"
    return settings


def count_test_rows(result: JsonRecord) -> int | None:
    """The rows that an accuracy is a share of; in older runs the sum of the confusion matrix, which tasks lack."""
    rows = result.number("test_rows") or result.sum("confusion")
    return round(rows) if rows and rows >= 1 else None


def _ratio(one: float | None, other: float | None) -> float | None:
    """None if either was not measured, or is not positive."""
    return one / other if one and other and one > 0 and other > 0 else None
