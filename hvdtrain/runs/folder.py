"""A finished run, as programs and notebooks read it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.runs import metrics
from hvdtrain.system.files import read_json


@dataclass(frozen=True)
class RunFolder:
    """The folder of a finished run."""

    folder: Path

    @property
    def result(self) -> dict[str, Any]:
        """The content of `result.json`: test loss and metrics, steps, speed and more."""
        return read_json(self.folder / "result.json")

    def metrics(self) -> list[dict[str, Any]]:
        """The records of `metrics.jsonl`: loss, learning rate and speed of each logging step, and each evaluation."""
        return metrics.read(self.folder / "metrics.jsonl")
