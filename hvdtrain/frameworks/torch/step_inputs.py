"""The tensors of a step: copied from the host, or gathered from rows that live on the device."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from hvdtrain.frameworks.devices import pad_rows
from hvdtrain.frameworks.torch.objective import Objective, to_tensor
from hvdtrain.interfaces import Batch

LARGEST_SHARE = 0.25
"""Of a device's free memory, that the rows which it keeps may take: the rest is for the step."""


class _Column(NamedTuple):
    """Stands for an array of the source in a batch whose rows are on the device."""

    number: int


class StepInputs:
    """The weights, inputs and targets of an objective's steps.

    parts: equal ones in which a step takes its rows (--accumulate), so their number is padded to a multiple of it.
    """

    def __init__(self, objective: Objective, parts: int, device: str) -> None:
        self._objective, self._parts, self._device = objective, parts, device
        self._kept: list[torch.Tensor] = []
        """The arrays of all training rows on the device, if it keeps them."""
        self._columns: tuple[int, ...] = ()
        """Where the objective wants them, by their number; -1 for an array that comes from the host."""

    def keep(self, arrays: tuple[np.ndarray, ...]) -> bool:
        """Keep these arrays of all training rows on the device, if there is a device and they fit."""
        if not _fits(sum(array.nbytes for array in arrays), self._device):
            return False
        self._kept = [torch.from_numpy(np.ascontiguousarray(array)).to(self._device) for array in arrays]
        return True

    def host_arrays(self, batch: Batch) -> tuple[np.ndarray, ...]:
        """What a step copies to the device: the rows' weights, and all their arrays or the rows' numbers."""
        if not self._kept or batch.arrays:
            self._columns = ()
            return pad_rows(self._parts, *self._objective.rows(batch))
        markers: Any = tuple(map(_Column, range(len(self._kept))))
        weights, *found = self._objective.rows(batch._replace(arrays=markers))
        self._columns = tuple(one.number if isinstance(one, _Column) else -1 for one in found)
        own = (one for one in found if not isinstance(one, _Column))
        return pad_rows(self._parts, weights, batch.rows, *own)

    def on_device(self, copied: list[torch.Tensor]) -> list[torch.Tensor]:
        """Weights, inputs and targets, from the arrays of the latest `host_arrays` on the device."""
        if not self._columns:
            return copied
        weights, rows, *own = copied
        others = iter(own)
        gathered = (
            self._kept[number].index_select(0, rows) if number >= 0 else next(others) for number in self._columns
        )
        return [weights, *gathered]

    def tensors(self, batch: Batch) -> list[torch.Tensor]:
        """Weights, inputs and targets of a batch."""
        return self.on_device([to_tensor(array, self._device) for array in self.host_arrays(batch)])

    def parts(self, tensors: list[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
        """The tensors of each part of a step."""
        if self._parts == 1:
            return [tuple(tensors)]
        size = len(tensors[0]) // self._parts
        return list(zip(*(tensor.split(size) for tensor in tensors), strict=True))


def _fits(size: int, device: str) -> bool:
    """Whether rows of `size` bytes are to be kept on a device; on the CPU they are in memory already."""
    if not device.startswith("cuda"):
        return False
    free, _ = torch.cuda.mem_get_info(torch.device(device))
    return size <= LARGEST_SHARE * free
