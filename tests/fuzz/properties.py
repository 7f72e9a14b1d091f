"""What every parser must do with damaged input: return a value, or raise one of hvdtrain's own errors."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from hypothesis import HealthCheck, settings

from hvdtrain.errors import HvdtrainError

LONG = "FUZZ_MINUTES" in os.environ
TIMEOUT_S = 60
"""An example that takes longer ends the process, with a traceback."""
MAX_BYTES = 1 << 30
"""More than any example needs, less than a decompression bomb takes."""
FUZZ = settings(
    max_examples=100 if LONG else 30,
    derandomize=not LONG,
    database=None,
    deadline=timedelta(seconds=10) if LONG else None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
"""Under pytest a few dozen examples, always the same; under `make fuzz` new ones each time."""


@contextlib.contextmanager
def rejects_cleanly() -> Iterator[None]:
    """The code inside may return or raise an HvdtrainError with a message, within bounds of time and memory."""
    before = _peak_bytes()
    faulthandler.dump_traceback_later(TIMEOUT_S, exit=True)
    try:
        yield
    except HvdtrainError as error:
        assert str(error)
    finally:
        faulthandler.cancel_dump_traceback_later()
    assert _peak_bytes() - before < MAX_BYTES, "the input is a decompression bomb"


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextlib.contextmanager
def folder_of(**files: bytes) -> Iterator[Path]:
    """A temporary folder with these files."""
    with tempfile.TemporaryDirectory() as name:
        for file, content in files.items():
            path = Path(name, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield Path(name)
