"""The score of a run: the figure of its evaluations by which its checkpoints, and runs, are compared."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hvdtrain.errors import UserError
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
    def order(self) -> float:
        """Greater is better, and above 0 unless an accuracy is 0."""
        if not self.choice:
            return self.value if self.name == ACCURACY else 0.5 - math.atan(self.value) / math.pi
        value = -self.value if self.is_least_best else self.value
        return 1 + value if value >= 0 else 1 / (1 - value)


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


def score_of(loss: float | None, metrics: Mapping[str, float], choice: str = "", part: str = "test") -> Score | None:
    """The score of an evaluation: what --score chose, else the accuracy, else the loss; None if it is not finite.

    choice: the value of --score. Where nothing of that name was measured, it is as if it had not been given. part: of
    the data.
    """
    measured = {**metrics, **({} if loss is None else {LOSS: loss})}
    match = CHOICE.fullmatch(choice)
    if match and match[2] in measured:
        score = Score(match[2], measured[match[2]], match[1] == "min", choice, part)
    elif ACCURACY in measured:
        score = Score(ACCURACY, measured[ACCURACY], False, part=part)
    elif LOSS in measured:
        score = Score(LOSS, measured[LOSS], True, part=part)
    else:
        return None
    return score if math.isfinite(score.value) else None
