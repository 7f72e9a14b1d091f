"""A group of one process."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvdtrain.errors import UserError
from hvdtrain.system import rank_info


class SingleProcess:
    """One process: every collective is the identity."""

    rank, size, local_rank, controller = 0, 1, 0, ""
    communicate_s: float | None = 0.0

    def sum(self, values: np.ndarray) -> np.ndarray:
        return values

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value

    def broadcast_bytes(self, values: np.ndarray, root: int) -> None:
        pass

    def close(self) -> None:
        pass


def single_process(strategy: str) -> SingleProcess:
    """A group of one, for a strategy that trains in one process.

    Raises UserError if a launcher started several processes: each of them would train alone.
    """
    launched = rank_info.detect()
    if launched.size > 1:
        raise UserError(
            f"{launched.launcher} started {launched.size} processes, but with --strategy {strategy} each would "
            "train alone",
            "choose a strategy for several processes (--strategy help), or start one process",
        )
    return SingleProcess()
