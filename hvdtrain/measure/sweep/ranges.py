"""Ranges from which a search draws the values of an option, as distributions of Optuna: `log:1e-4:1e-1`, `int:8:64`."""

from __future__ import annotations

import math
import re
import warnings
from typing import TYPE_CHECKING, Any

from hvdtrain.errors import UserError, needed_by

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

RANGE = re.compile(r"(float|int|log|logint):(.+)", re.DOTALL)
DIGITS = 6
"""Significant digits of a drawn number: all that matter, in names of runs and tables that can be read."""
REMEDY = (
    "write log:1e-4:1e-1 (evenly by the logarithm), float:0:0.5 (evenly), int:8:64 or logint:8:512 (integers); "
    "float and int may have a step, as int:8:64:8"
)


def import_optuna() -> Any:
    """The package, which takes a second to import. Raises MissingPackage where it is missing."""
    with needed_by("a sweep", "sweep"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def parse(text: str, where: str) -> BaseDistribution | None:
    """The range that a text describes; None for a text that is a value. Raises UserError for an invalid one."""
    match = RANGE.fullmatch(text)
    if not match:
        return None
    distributions, is_of_integers = import_optuna().distributions, match[1].endswith("int")
    number, kind = (int, distributions.IntDistribution) if is_of_integers else (float, distributions.FloatDistribution)
    try:
        low, high, *steps = map(number, match[2].split(":"))
        if len(steps) > 1 or not all(map(math.isfinite, (low, high, *steps))):
            raise ValueError("give two finite numbers, and perhaps a step")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a step that does not lead to `high` ends before it
            found = kind(low, high, match[1].startswith("log"), *steps)
    except (ValueError, OverflowError) as error:
        raise UserError(f"{where}: {text:.80} is no range ({error})", REMEDY) from None
    if found.single():
        raise UserError(f"{where}: {text:.80} has only one value", REMEDY)
    return found


def text_of(value: Any, distribution: Any) -> str:
    """A choice or a drawn number as users write it."""
    if not isinstance(value, float) or not hasattr(distribution, "low"):
        return str(value)
    return str(min(max(float(f"{value:.{DIGITS}g}"), distribution.low), distribution.high))
