"""The parts of the data that a run makes itself, as --split gives them."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from hvdtrain.config.option import invalid

FORMS = (
    "give TRAIN/VALIDATION/TEST, such as 0.8/0.1/0.1, or for data with a test part TRAIN/VALIDATION, such as 0.9/0.1"
)

SHARE = re.compile(r"\d{1,3}(\.\d{0,12})?|\.\d{1,12}", re.ASCII)


class Split(NamedTuple):
    """Shares of rows; --split has TRAIN or TRAIN/VALIDATION/TEST of all rows, or TRAIN/VALIDATION of training rows."""

    untested: float
    """Share of all rows that are no test rows; 0 for data that has a test part."""
    validation: float
    """Share of these, or of the training rows, that is kept apart for validation; 0 for none."""

    @classmethod
    def parse(cls, text: str) -> Split:
        """The shares in the text, which is empty for data that is divided already. Raises UserError."""
        if not text:
            return cls(0.0, 0.0)
        if not all(map(SHARE.fullmatch, text.split("/"))):
            raise invalid("split", text[:80], "is not a list of shares", FORMS)
        shares = [Fraction(share) for share in text.split("/")]
        if len(shares) == 1:
            shares += [Fraction(0), 1 - shares[0]]
        if len(shares) > 3:
            raise invalid("split", text, "has too many shares", FORMS)
        if sum(shares) != 1:
            raise invalid("split", text, f"the sum of its shares is {float(sum(shares)):g}, and not 1", FORMS)
        train, validation, *test = shares
        if min(train, *(test or [validation])) <= 0 or validation < 0:
            raise invalid("split", text, "a part has no rows", FORMS)
        # Exact until here, so that 0.9/0.1 is a share of 0.1.
        untested = train + validation
        return cls(float(untested) if test else 0.0, float(validation / untested))
