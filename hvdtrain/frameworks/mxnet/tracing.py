"""What a timeline needs of MXNet: waiting for its engine, and MXNet's own profiler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mxnet as mx


def waiter(device: str) -> Callable[[], object] | None:
    """What waits for the engine, which computes in threads of its own on every device."""
    return mx.nd.waitall


class Profiler:
    """mx.profiler, whose file Perfetto and chrome://tracing open."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = folder / f"profiler-rank-{rank}.json"
        mx.profiler.set_config(
            profile_symbolic=True, profile_imperative=True, profile_api=False, filename=str(self.path)
        )

    def start(self) -> None:
        """Begin to record."""
        mx.profiler.set_state("run")

    def stop(self) -> None:
        """Write what was recorded."""
        mx.profiler.set_state("stop")
        mx.profiler.dump()
