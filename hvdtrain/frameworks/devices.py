"""Which devices a process trains on."""

from __future__ import annotations

import numpy as np

from hvdtrain.errors import UserError
from hvdtrain.interfaces import Group

CPU_DEVICES = 2
"""Parts of the CPU that a strategy with several devices uses if there is no GPU."""


def choose_device(requested: str, available: bool, count: int, group: Group) -> str:
    """`cpu` or `cuda:<local_rank>`.

    requested: --device. available, count: whether the framework sees GPUs, and how many. Raises UserError if there is
    no GPU, or none for this local rank.
    """
    if requested == "cpu" or (requested == "auto" and not available):
        return "cpu"
    if not available:
        raise UserError("--device gpu: the framework sees no GPU on this host", "use --device cpu, or check nvidia-smi")
    if group.local_rank >= count:
        raise UserError(
            f"local rank {group.local_rank} has no GPU: this host has {count}, and each rank needs one",
            "start fewer processes per host, or use --device cpu",
        )
    return f"cuda:{group.local_rank}"


def count_devices(requested: int, gpus: int) -> int:
    """Devices of a process whose strategy uses several: --devices, else all GPUs, else CPU_DEVICES."""
    return requested or gpus or CPU_DEVICES


def split_rows(count: int, *arrays: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """Split each array into `count` equal parts: [part][array]. Raises UserError if the rows cannot be divided."""
    rows = len(arrays[0])
    if rows % count:
        raise UserError(f"a batch of {rows} rows does not divide evenly among {count} devices", "change --batch-size")
    return list(zip(*(np.split(array, count) for array in arrays), strict=True))
