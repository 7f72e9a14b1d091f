"""What a timeline needs of PyTorch: waiting for a GPU, and PyTorch's own profiler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch


def waiter(device: str) -> Callable[[], object] | None:
    """What waits for the device; a CPU computes at once."""
    return None if device == "cpu" else torch.cuda.synchronize


class Profiler:
    """torch.profiler, whose file Perfetto and chrome://tracing open."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = folder / f"profiler-rank-{rank}.json"
        self._profile = torch.profiler.profile(record_shapes=True)

    def start(self) -> None:
        """Begin to record."""
        self._profile.start()

    def stop(self) -> None:
        """Write what was recorded."""
        self._profile.stop()
        self._profile.export_chrome_trace(str(self.path))
