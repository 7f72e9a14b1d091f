"""The score of a run: the figure of its evaluations by which its checkpoints, and runs, are compared."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hvdtrain.errors import UserError
from hvdtrain.system.checkpoint_folder import Order
from hvdtrain.system.text import did_you_mean, printable

AUTO = "auto"
ACCURACY, LOSS = "accuracy", "loss"
CHOICE = re.compile(r"(min|max):(.+)", re.DOTALL)
WORST = (f"max:{LOSS}", f"min:{ACCURACY}")


class Score(NamedTuple):
    """A measured score."""

    name: str
    """Of a metric, or LOSS."""
    value: float
    is_least_best: bool
    choice: str = ""
    """The value of --score by which it is the score; empty where nobody chose one."""
    part: str = "test"
    """Of the data: `validation` or `test`."""

    @property
    def title(self) -> str:
        return f"{self.part} {self.name}"

    @property
    def finite(self) -> Score | None:
        """Itself; None if the value is not finite."""
        return self if math.isfinite(self.value) else None

    @property
    def signed(self) -> float:
        """The value, or its negative: greater is better."""
        return -self.value if self.is_least_best else self.value

    @property
    def order(self) -> Order:
        """What it is compared by: a number of 0 or above, which is all that earlier versions have saved, and `signed`.

        The first has no digits for values such as 1e-17 and 1e19: for these the second decides.
        """
        if not self.choice:
            rough = self.value if self.name == ACCURACY else 0.5 - math.atan(self.value) / math.pi
        else:
            rough = 1 + self.signed if self.signed >= 0 else 1 / (1 - self.signed)
        return rough, self.signed


def check_choice(text: str) -> None:
    """Raise ValueError if the text is not a valid --score."""
    if text != AUTO and not CHOICE.fullmatch(text):
        raise ValueError("does not say whether the greatest or the least value is the best")
    if text in WORST:
        raise ValueError("would keep the worst weights as the best")


def check_measured(choice: str, metrics: Iterable[str]) -> None:
    """Raise UserError for a --score of something else than the loss and these metrics."""
    match, known = CHOICE.fullmatch(choice), (*metrics, LOSS)
    if match and match[2] not in known:
        hint, names = did_you_mean(match[2], known), ", ".join(known)
        raise UserError(
            printable(f"--score {choice}: no such metric{hint}"),
            printable(f"give max: or min: with one of {names}"),
            option="score",
        )


def figure_of(loss: float | None, metrics: Mapping[str, float], choice: str = "", part: str = "test") -> Score:
    """The figure of an evaluation that --score chose, else the accuracy, else the loss; NaN if it was not measured.

    choice: the value of --score. part: of the data.
    """
    match = CHOICE.fullmatch(choice)
    name = match[2] if match else ACCURACY if ACCURACY in metrics else LOSS
    value = {**metrics, LOSS: math.nan if loss is None else loss}.get(name, math.nan)
    is_least_best = match[1] == "min" if match else name == LOSS
    return Score(name, value, is_least_best, choice if match else "", part)
