"""JSON for any reader, in which NaN and infinities become null, and numbers from anyone's JSON."""

from __future__ import annotations

import json
import math
from typing import Any


def to_json(value: Any, indent: int | None = None) -> str:
    """The text of a value of dicts, lists, tuples, texts, numbers, True, False and None; one line without `indent`."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def finite_number(value: Any) -> float | None:
    """A value from JSON as a number; None for what is none, or is not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer larger than any float
        return None
