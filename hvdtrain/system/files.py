"""Atomic writes: a reader sees the old content of a file or the new one, never a part."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hvdtrain.errors import UserError


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file under another name in the same folder, then rename it.

    Raises OSError if the disk does not accept the content; the file at `path` is unchanged then.
    """
    write_all_atomically({path: content})


def write_all_atomically(contents: Mapping[Path, str | bytes]) -> None:
    """Write several files, each under another name first, and rename them only when all are written.

    Raises OSError if the disk does not accept them; no file is changed then.
    """
    drafts = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in contents}
    try:
        for path, content in contents.items():
            drafts[path].write_bytes(content.encode() if isinstance(content, str) else content)
        for path, draft in drafts.items():
            draft.replace(path)
    except OSError:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
        raise


def require_writable(folder: Path, option: str) -> None:
    """Create a folder that is written to after much work. Raises UserError if a file cannot be created in it.

    option: the one that names the folder.
    """
    draft = folder / f".writable.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.touch()
        draft.unlink()
    except OSError as error:
        raise UserError(
            f"{option} {folder}: nothing can be written there ({error.strerror})", f"give another {option}"
        ) from None
