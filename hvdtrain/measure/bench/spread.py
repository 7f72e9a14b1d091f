"""How repeated measurements are shown."""

from __future__ import annotations

from collections.abc import Collection
from statistics import median


def spread(values: Collection[float], form: str) -> str:
    """The median, and in parentheses minimum and maximum; form: a format such as `.2f`. values: at least one."""
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"
