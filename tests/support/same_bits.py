"""Whether runs have the same bits: their weights, and every number that they record except times and speeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hvdtrain.runs import metrics
from hvdtrain.runs.records import RunResult, read

MEASURED = {"time", "images_per_s", "outside_s", "data_wait_s", "compute_s", "communicate_s", "data_s", "evaluation_s"}
"""What a record has of times and speeds."""


def weights_hash(run_folder: Path) -> str:
    """That of a completed run's parameters and running statistics."""
    return read(run_folder / "result.json", RunResult).parameters


def numbers(run_folder: Path) -> list[dict[str, Any]]:
    """The records of a run without times and speeds, and what follows from them."""
    records = [
        {name: value for name, value in record.items() if name not in MEASURED}
        for record in metrics.read(run_folder / "metrics.jsonl")
    ]
    return [record for record in records if record["kind"] not in ("ranks", "shards")]


def assert_same_bits(run_folder: Path, other: Path) -> None:
    """Both runs trained without interruption, and have the same bits."""
    assert numbers(run_folder) == numbers(other)
    assert weights_hash(run_folder) == weights_hash(other)
