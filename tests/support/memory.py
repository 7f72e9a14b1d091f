"""A limit of a command's memory, in a control group (cgroup)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from hvdtrain.errors import UserError
from hvdtrain.measure.bench import limited_memory as groups


@contextlib.contextmanager
def limited_memory(limit: int) -> Iterator[list[str]]:
    """The words before a command that run it with at most `limit` bytes; skips the test where that is not possible."""
    with contextlib.ExitStack() as stack:
        try:
            group = stack.enter_context(groups.limited_memory(limit))
        except UserError as error:
            pytest.skip(str(error))
        yield group.command
