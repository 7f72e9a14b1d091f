"""Writing the files of a report."""

from __future__ import annotations

from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.report.records import printable
from hvdtrain.system.files import write_all_atomically


def write_pages(folder: Path, pages: dict[str, str]) -> None:
    """Write all files, by name, or none. Raises UserError if the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in pages:
            if (folder / name).is_dir():
                raise IsADirectoryError(0, f"{name} is a folder there")
        write_all_atomically({folder / name: text for name, text in pages.items()})
    except OSError as error:
        reason = f"{printable(str(folder))}: the report cannot be written there ({error.strerror or error})"
        raise UserError(reason, "give another --output") from None
