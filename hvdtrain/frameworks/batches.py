"""A batch in a process: the devices that share it, and what each gets of its rows; the same in all frameworks."""

from __future__ import annotations

import numpy as np

from hvdtrain.config.options import Config
from hvdtrain.errors import UserError
from hvdtrain.interfaces.reading import Batch
from hvdtrain.interfaces.strategy import Strategy
from hvdtrain.networks.description import ShapedNetwork
from hvdtrain.networks.random_numbers import draw_masks

CPU_DEVICES = 2
"""Parts of the CPU that a strategy with several devices uses if there is no GPU."""

Rows = tuple[np.ndarray, ...]
"""The weights of a batch's rows, and arrays of as many rows."""


def choose_device(strategy: Strategy, count: int) -> str:
    """`cpu` or `cuda:<local_rank>`; with --shards, whose result does not depend on it, `cuda:<local_rank % count>`.

    count: how many GPUs the framework sees. Raises UserError if there is no GPU, or none for this local rank.
    """
    requested, local_rank = strategy.runtime.device, strategy.group.local_rank
    if requested == "cpu" or (requested == "auto" and not count):
        return "cpu"
    if not count:
        raise UserError("--device gpu: the framework sees no GPU on this host", "use --device cpu, or check nvidia-smi")
    if strategy.config.shards:
        return f"cuda:{local_rank % count}"
    if local_rank >= count:
        raise UserError(
            f"local rank {local_rank} has no GPU: this host has {count}, and each rank needs one",
            "start fewer processes per host, or use --device cpu",
        )
    return f"cuda:{local_rank}"


def device_number(device: str) -> int:
    """The number of the GPU that `choose_device` has chosen."""
    return int(device.partition(":")[2])


def count_devices(requested: int, gpus: int) -> int:
    """Devices of a process whose strategy uses several: --devices, else all GPUs, else CPU_DEVICES.

    gpus: number of GPUs, 0 to use parts of the CPU. Raises UserError if there are fewer GPUs than requested.
    """
    if 0 < gpus < requested:
        raise UserError(
            f"--devices {requested}: this host has {gpus} GPU(s)", f"give at most {gpus}, or use --device cpu"
        )
    return requested or gpus or CPU_DEVICES


def pad_rows(multiple: int, weights: np.ndarray, *arrays: np.ndarray) -> Rows:
    """The rows of a batch, and as many of weight zero as make their number a multiple of `multiple`.

    Without weights, the first array of an evaluation's rows gets zeros.
    """
    missing = -len(weights) % multiple
    if missing == 0:
        return weights, *arrays
    padded = (np.concatenate([rows, np.repeat(rows[:1], missing, axis=0)]) for rows in arrays)
    return np.concatenate([weights, np.zeros((missing, *weights.shape[1:]), weights.dtype)]), *padded


def split_rows(count: int, weights: np.ndarray, *arrays: np.ndarray) -> list[Rows]:
    """The rows of a batch in `count` parts of equal size, padded with rows of weight zero."""
    padded = pad_rows(count, weights, *arrays)
    return list(zip(*(np.split(rows, count) for rows in padded), strict=True))


def parts_of(batch: Batch, count: int) -> list[Batch]:
    """A batch in so many parts, of which some have a row more than others; without padding, so at most one a row."""
    if count == 1:
        return [batch]
    parts = min(count, len(batch.rows))
    split = (np.array_split(array, parts) for array in (batch.weights, batch.rows, *batch.arrays))
    return [batch._replace(weights=w, rows=r, arrays=tuple(arrays)) for w, r, *arrays in zip(*split, strict=True)]


def needed_multiple(batch: Batch, devices: int, parts: int) -> int:
    """The number of rows must be a multiple of it, to take so many parts, at least a row each, on equal devices."""
    return devices if len(batch.rows) >= devices * parts else devices * parts


def network_rows(network: ShapedNetwork, seed: int, batch: Batch) -> tuple[np.ndarray, ...]:
    """Weights, labels, images, and the masks of dropout in the order of the layers; all have as many rows."""
    images, labels = batch.arrays
    return batch.weights, labels, images, *draw_masks(network, seed, batch.step, batch.rows)


def mask_names(network: ShapedNetwork) -> list[str]:
    """The layers that the masks of `network_rows` belong to."""
    return [layer.name for layer in network.dropouts]


def statistics_by_rank(network: ShapedNetwork, config: Config) -> frozenset[str]:
    """The running statistics of which each rank has its own; see `Learner.local_weights`."""
    return frozenset(name for name, _ in network.statistics() if config.batch_norm == "local")


def scale_of_rows(ranks: int) -> float:
    """The power of two by which a row weighs more on one of several ranks than in one process, rounded up.

    fp16's loss scale is divided by it, at the start and after a resume: several ranks would skip other steps than one
    process.
    """
    return float(1 << (ranks - 1).bit_length())
