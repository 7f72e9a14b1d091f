"""How long a rank communicates, where this program itself calls what combines the gradients."""

from __future__ import annotations

from hvdtrain.system.stopwatch import Stopwatch


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
