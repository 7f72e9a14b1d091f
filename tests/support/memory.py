"""A limit of a command's memory, in a control group (cgroup)."""

from __future__ import annotations

import contextlib
import runpy
from collections.abc import Iterator

import pytest

from hvdtrain.errors import UserError
from support.jobs import ROOT

limited_group = runpy.run_path(str(ROOT / "benchmarks" / "limited_memory.py"))["limited_memory"]
"""A control group of so many bytes."""


@contextlib.contextmanager
def limited_memory(limit: int) -> Iterator[list[str]]:
    """The words before a command that run it with at most `limit` bytes; skips the test where that is not possible."""
    with contextlib.ExitStack() as stack:
        try:
            group = stack.enter_context(limited_group(limit))
        except UserError as error:
            pytest.skip(str(error))
        yield group.command
