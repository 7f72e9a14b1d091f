"""The schemas of a run's files, which come from anyone: one that does not decode is as if it were not there."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from hvdtrain.config.option import facts
from hvdtrain.config.options import AUTO_RESUME, Config
from hvdtrain.system.checkpoint_folder import SavedArithmetic
from hvdtrain.system.files import Damaged, read_record
from hvdtrain.system.text import printable

MAX_TEXT = 300
"""Characters of a text that are shown."""
MAX_COUNT = 1 << 53
Count = Annotated[int, msgspec.Meta(ge=0, lt=MAX_COUNT)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Content = TypeVar("Content")
CONFIG = re.compile(r"config(-\d{1,6})?\.json")
SAME_STEPS = {"max_steps", "score", *(name for name, about in facts(Config).items() if about.only_distributes)}
SAME_STEPS -= {"framework"}
"""Options that may differ in a run that trains the same steps."""


class FileRecord(msgspec.Struct):
    """Base of the records: their texts have no control characters, and are cut if they are long."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if isinstance(value := getattr(self, name), str):
                setattr(self, name, shown(value))


class RunConfig(FileRecord):
    """`config.json`, see `runs.record.write_options`."""

    id: str = ""
    parent: str = ""
    options: dict[str, Any] = msgspec.field(name="config", default_factory=dict)
    runtime: dict[str, Any] = {}
    network: dict[str, Any] | None = None
    data: str = ""
    steps: Count = 0
    ranks: Count = 0
    devices: Count = 0
    """Per rank."""
    device: str = ""
    controller: str = ""
    """What connected Horovod's processes, `Gloo` or `MPI`; empty in other strategies."""
    versions: dict[str, Any] | None = None
    host: dict[str, Any] | None = None
    """That of rank 0."""
    arithmetic: SavedArithmetic | None = None
    started: str = ""

    @property
    def began(self) -> float:
        """`started` in seconds since 1970; 0 if it is not known."""
        try:
            return datetime.strptime(self.started, "%Y-%m-%dT%H:%M:%S%z").timestamp()
        except (ValueError, OverflowError):
            return 0.0

    def text(self, name: str) -> str:
        """The text of an option; empty if it is none."""
        value = {**self.runtime, **self.options}.get(name)
        return shown(value) if isinstance(value, str) else ""

    def count(self, name: str) -> int:
        """The number of an option; 0 if it is none."""
        value = {**self.runtime, **self.options}.get(name)
        return value if type(value) is int and 0 <= value < MAX_COUNT else 0

    @property
    def is_user_code(self) -> bool:
        """Whether a task or a script of the user's was trained, which have data of their own."""
        return "task" in (self.network or {})


class EvaluationRecord(FileRecord):
    loss: float | None = None
    accuracy: float | None = None
    """In place of `metrics` in those of earlier versions."""
    metrics: dict[str, Any] | None = None
    rows: Count | None = None
    test_rows: Count | None = None


class BestEvaluations(FileRecord):
    validation: EvaluationRecord | None = None
    test: EvaluationRecord | None = None


class RunResult(EvaluationRecord):
    """`result.json`, see `training.result`."""

    steps: Count = 0
    global_batch: Count = 0
    """Rows of one step over all ranks."""
    parameters: str = ""
    """The hash of the weights."""
    best: BestEvaluations | None = None
    best_checkpoint: str | None = None
    validation: EvaluationRecord | None = None
    per_class_accuracy: dict[str, Any] | None = None
    images_per_s: float | None = None
    epoch_s: float | None = None
    step_s: float | None = None
    outside_share: float | None = None
    peak_rss_mb: float | None = None
    cores: float | None = None
    flops_per_image: float | None = None


class ClassResults(FileRecord):
    """The figures of classes in `result.json`, by name, and the confusion matrix: rows true, columns predicted."""

    per_class_accuracy: dict[str, float | None] = {}
    per_class_rows: dict[str, Count] = {}
    confusion: list[list[Count]] | None = None


class LoggedStep(FileRecord):
    """The newest logging step in `metrics.jsonl`."""

    step: Count = 0
    epoch: float | None = None
    loss: float | None = None
    lr: float | None = None
    logged: dict[str, Any] = {}
    """Figures of a script."""
    images_per_s: float | None = None


class AttemptRecord(FileRecord):
    """An attempt of a job in `attempts.json`; a step below 0 is none."""

    began: float | None = None
    seconds: float | None = None
    ranks: int | None = None
    checkpoint: int = -1
    step: int = -1
    status: int | None = None
    ended: str = ""


class FindingRecord(FileRecord):
    status: str = ""
    text: str = ""
    remedy: str = ""


class Findings(FileRecord):
    """`doctor.json`."""

    findings: list[FindingRecord] = []


def read(path: Path, kind: type[Content]) -> Content:
    """The record in a file; without any values if there is none, or it does not decode."""
    with contextlib.suppress(Damaged):
        return read_record(path, kind)
    return kind()


def shown(value: object, most: int = MAX_TEXT) -> str:
    """A value as text without control characters, cut if it is long."""
    text = str(value)[: most + 1]
    return printable(text[:most] + "…" if len(text) > most else text)


def as_text(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else printable(str(value))


def texts(values: Mapping[str, object] | None) -> dict[str, str]:
    """All values that are text or numbers, as text."""
    known = (values or {}).items()
    return {printable(name): as_text(value) for name, value in known if isinstance(value, str | int | float)}


def sessions(folder: Path) -> list[RunConfig]:
    """The config.json of each session of a run, in their order; without those that are damaged."""
    records = [read(path, RunConfig) for path in folder.glob("config*.json") if CONFIG.fullmatch(path.name)]
    return sorted((one for one in records if one.options and one.began), key=lambda record: record.began)


def deciding_options(record: RunConfig) -> dict[str, Any]:
    """The options that decide the bits, as JSON values."""
    return {name: value for name, value in record.options.items() if name not in SAME_STEPS}


def resumed_from(known: list[RunConfig]) -> str:
    """The run or checkpoint that the first session continued; empty if it began with initial weights."""
    path = known[0].text("resume")
    return "" if Path(path) == AUTO_RESUME else path
