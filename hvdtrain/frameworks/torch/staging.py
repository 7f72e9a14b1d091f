"""Copies from the host to memory of a device that stays the same, without waiting for the device."""

from __future__ import annotations

import numpy as np
import torch

SLOTS = 4
"""Buffers on the host: the host may be this number of steps ahead of the device."""
ALIGNMENT = 256
"""Bytes; what vectorized kernels need at most."""


class StaticCopies:
    """Arrays of fixed shapes and types on a device, all written by one copy from page-locked memory.

    arrays: examples of them.
    """

    def __init__(self, arrays: tuple[np.ndarray, ...], device: str) -> None:
        self._is_cuda = torch.device(device).type == "cuda"
        ends = np.cumsum([-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays]).tolist()
        places = list(zip(arrays, [0, *ends[:-1]], strict=True))
        self._device_bytes = torch.zeros(ends[-1], dtype=torch.uint8, device=device)
        self.tensors = [_view(self._device_bytes, array, first) for array, first in places]
        """The arrays on the device."""
        self._slots = [torch.zeros(ends[-1], dtype=torch.uint8, pin_memory=self._is_cuda) for _ in range(SLOTS)]
        self._parts = [[_view(slot, array, first).numpy() for array, first in places] for slot in self._slots]
        self._copied = [torch.cuda.Event() for _ in range(SLOTS)] if self._is_cuda else []
        self._next = 0

    def copy(self, arrays: tuple[np.ndarray, ...]) -> None:
        """Copy these arrays to the device, after all that its current stream has to do so far."""
        slot, self._next = self._next, (self._next + 1) % SLOTS
        if self._is_cuda:
            self._copied[slot].synchronize()  # the copy from this slot, SLOTS steps ago
        for part, array in zip(self._parts[slot], arrays, strict=True):
            part[...] = array
        self._device_bytes.copy_(self._slots[slot], non_blocking=True)
        if self._is_cuda:
            self._copied[slot].record(torch.cuda.current_stream(self._device_bytes.device))


def _view(buffer: torch.Tensor, array: np.ndarray, first: int) -> torch.Tensor:
    """A tensor like the array in this memory, from byte `first` on."""
    dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    return buffer[first : first + array.nbytes].view(dtype).view(array.shape)
