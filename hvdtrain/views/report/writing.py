"""Writing the files of a report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.system.files import require_writable, write_all_atomically

FILES = ("report.md", "report.csv", "report.html")


def check_pages(folder: Path) -> None:
    """Create the folder. Raises UserError if the files of a report cannot be written there."""
    require_writable(folder, "--output")
    for name in FILES:
        if (folder / name).is_dir():
            raise UserError(f"{folder / name} is a folder, not a file", "give another --output")


def write_pages(folder: Path, pages: Mapping[str, str | bytes]) -> None:
    """Write all files, by name, or none. Raises UserError if the folder cannot be written."""
    try:
        write_all_atomically({folder / name: text for name, text in pages.items()})
    except OSError as error:
        raise UserError(
            f"{folder}: the report cannot be written there ({error.strerror})", "give another --output"
        ) from None
