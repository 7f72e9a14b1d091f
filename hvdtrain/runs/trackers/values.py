"""The numbers of a record, by names that all trackers use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

DESCRIBING = {"kind", "step", "time", "repeated"}
"""What describes a record, and is not one of its values."""


def numbers(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Each number of a record with its name, such as `loss`."""
    for name, value in record.items():
        if name not in DESCRIBING and is_number(value):
            yield name, float(value)


def numbers_of_ranks(record: dict[str, Any]) -> Iterator[tuple[str, list[float]]]:
    """Each list of a record that has a number for each rank, with its name, such as `compute_s`."""
    for name, value in record.items():
        if isinstance(value, list | tuple) and value and all(map(is_number, value)):
            yield name, [float(one) for one in value]


def is_number(value: Any) -> bool:
    """Whether a value is a number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def scalars(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a record as `train/loss`; of those of ranks mean and maximum, as `train/compute_s_max`."""
    kind = record["kind"]
    found = {f"{kind}/{name}": value for name, value in numbers(record)}
    for name, values in numbers_of_ranks(record):
        found |= {f"{kind}/{name}_mean": sum(values) / len(values), f"{kind}/{name}_max": max(values)}
    return found
