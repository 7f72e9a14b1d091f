"""Divides a table of cases between the short suite (`make test`) and the whole matrix (`make test-all`)."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def cases(names: Iterable[str], short: Container[str]) -> list[Any]:
    """All names as parameters of a test; those that are not in `short` run in the whole matrix only."""
    return [pytest.param(name, marks=() if name in short else pytest.mark.matrix) for name in names]
