"""A control group (cgroup) that limits the memory of a command, with the page cache of the files that it reads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from hvdtrain.system.cgroups import ROOT


@contextlib.contextmanager
def limited_memory(limit: int) -> Iterator[list[str]]:
    """The words before a command that run it with at most `limit` bytes; skips the test where that is not possible."""
    version_1 = (ROOT / "memory").is_dir()
    root = ROOT / "memory" if version_1 else ROOT
    group = root / f"hvdtrain-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here ({error.strerror}): run the test as root on a host")
    try:
        limit_file = group / ("memory.limit_in_bytes" if version_1 else "memory.max")
        if not limit_file.exists():
            pytest.skip(f"{root} has no control of memory")
        limit_file.write_text(str(limit))
        yield ["sh", "-c", f'echo $$ > {group / "cgroup.procs"} && exec "$@"', "sh"]
    finally:
        group.rmdir()
