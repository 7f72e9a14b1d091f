"""How long a rank communicates, where this program itself calls what combines the gradients."""

from __future__ import annotations

import time


class Stopwatch:
    """Seconds spent inside its `with` blocks, of one thread at a time; another thread may read them."""

    def __init__(self) -> None:
        self._state: tuple[float, float | None] = 0.0, None
        """Seconds of complete blocks, and when the present one was entered: one value, so that a reader sees both."""

    def __enter__(self) -> None:
        self._state = self._state[0], time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._state = self.seconds, None

    def add(self, seconds: float) -> None:
        """Add what was measured in another way, outside of a block."""
        self._state = self._state[0] + seconds, None

    @property
    def seconds(self) -> float:
        """With the block that is entered now."""
        done, began = self._state
        return done if began is None else done + time.perf_counter() - began


class CommunicationTime:
    """Base of groups: enter `communicating` around each sum over ranks, when this rank has computed what it gives."""

    size: int

    def __init__(self) -> None:
        self.communicating = Stopwatch()
        self._is_known = True

    @property
    def communicate_s(self) -> float | None:
        """See `Group.communicate_s`."""
        return self.communicating.seconds if self._is_known else None

    def combines_gradients_unseen(self) -> None:
        """The framework combines the gradients of several processes by itself, and does not tell how long it takes."""
        self._is_known = self.size == 1
