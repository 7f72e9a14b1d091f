"""Figures that a script logs (`run.log`), and their means over the steps and ranks of a logging interval."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from hvdtrain.errors import UserError
from hvdtrain.interfaces.strategy import Group
from hvdtrain.runs.metrics import MAX_METRICS, MAX_NAME


class Logged:
    """What a script logs on this rank.

    Values of the present step are kept apart until it is done: a step that is done again, because ranks have changed,
    logs again. Tensors are read at the logging step only, so that no step waits for the one before it.
    """

    def __init__(self) -> None:
        self._present: list[tuple[str, Any]] = []
        """Those of the step that is not done yet."""
        self._done: dict[str, list[Any]] = {}
        self._is_joined = False
        """Whether all ranks have joined these: they stay until the next step, as ranks that change join them again."""

    def add(self, values: Mapping[str, Any]) -> None:
        """Add figures by name. Raises UserError if a value is not a number, or a name is invalid."""
        self._present += [(name, _held(name, value)) for name, value in values.items()]

    def end_step(self) -> None:
        """The present step is done."""
        if self._is_joined:
            self._done, self._is_joined = {}, False
        for name, value in self._present:
            self._done.setdefault(name, []).append(value)
        if len(self._done) > MAX_METRICS:
            problem = f"log(): {len(self._done)} names of figures in one logging interval"
            raise UserError(problem, f"log at most {MAX_METRICS}, under names that do not change from step to step")
        self._present = []

    def discard_step(self) -> None:
        """The present step is done again."""
        self._present = []

    def __len__(self) -> int:
        """Number of names since the last logging step."""
        return len(self._done)

    def means(self, group: Group) -> dict[str, float]:
        """The mean of each name over all that was logged on any rank; call it on every rank.

        Each rank gives its own names, so that others may differ. The sum of all is rounded once: it has the same bits
        for any number of ranks if these log the same values.
        """
        self._is_joined = True
        local = {name: [float(value) for value in values] for name, values in self._done.items()}
        joined: dict[str, list[float]] = {}
        for of_rank in group.gather(local):
            for name, values in of_rank.items():
                joined.setdefault(name, []).extend(values)
        return {name: total(values) / len(values) for name, values in sorted(joined.items())}


def total(values: Sequence[float]) -> float:
    """The sum, rounded once, so that neither the order nor the ranks have an influence; it may be NaN or infinite."""
    return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)


def _held(name: str, value: Any) -> Any:
    """The value as it is now, which the script may change later: a number, or a tensor that is read later."""
    is_name = 0 < len(name) <= MAX_NAME and name.isprintable()
    if is_name and isinstance(value, numbers.Real):
        return float(value)
    size = value.numel() if hasattr(value, "numel") else getattr(value, "size", None)
    if not is_name or size != 1 or "complex" in str(getattr(value, "dtype", "")):
        given = f"a tensor of shape {tuple(value.shape)}" if hasattr(value, "shape") else type(value).__name__
        problem = f"{name} is {given}" if is_name else f"{name[:MAX_NAME]!r} is not a name of a figure"
        remedy = (
            f"give numbers, or tensors with one real value, such as a mean, by 1 to {MAX_NAME} printable characters"
        )
        raise UserError(f"log(): {problem}", remedy)
    value = value.detach() if hasattr(value, "detach") else value
    return value.clone() if hasattr(value, "clone") else value.copy()
