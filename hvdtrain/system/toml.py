"""TOML files that users write."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hvdtrain.errors import UserError
from hvdtrain.system.files import read_limited

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST = 1 << 20
"""Bytes of a file, at most."""


def read_toml(path: Path, option: str) -> dict[str, Any]:
    """The content of a TOML file. option: names it in messages. Raises UserError if it cannot be read."""
    try:
        return tomllib.loads(read_limited(path, LARGEST).decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{option}: cannot be read ({error.strerror})", "give a TOML file") from None
    except (ValueError, RecursionError) as error:  # of UTF-8 or TOML
        raise UserError(f"{option}: is no valid TOML ({' '.join(str(error).split())})", "correct the file") from None
