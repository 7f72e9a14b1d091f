"""The id of a run, which stays the same when the run is restarted or requeued; it is in the run's config.json."""

from __future__ import annotations

import contextlib
import re
import secrets
from pathlib import Path

from hvdtrain.system.files import read_json

FORM = re.compile(r"[0-9a-f]{16}")


def new() -> str:
    """An id that no other run has."""
    return secrets.token_hex(8)


def of(folder: Path) -> str:
    """The id of the run in a folder; empty where there is none yet, or none that can be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        found = read_json(folder / "config.json")["id"]
        return found if isinstance(found, str) and FORM.fullmatch(found) else ""
    return ""
