"""The per-job secret of ranks that no launcher of hvdtrain's started, made where all of them run on one host.

Each user has a key on each host, a file that nobody else can read. A job's secret is derived from it and from the
address of rank 0, so that the ranks agree on it without sending it, and other users of the host do not know it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.system import rank_info
from hvdtrain.system.proof import proof

FOLDER = "/tmp"
KEY_CHARACTERS = 64


def of_one_host(rank: rank_info.RankInfo, address: tuple[str, int], environment: Mapping[str, str] = os.environ) -> str:
    """The secret of a job whose ranks all run on this host; empty where they may run on several.

    address: where rank 0 listens. Raises UserError if the user's key cannot be stored, or another user can access it.
    """
    if not is_loopback(address[0]) and rank_info.local_size(environment) != rank.size:
        return ""
    return proof(_key(), f"{address[0]}:{address[1]}", "job")


def is_loopback(host: str) -> bool:
    try:
        return socket.gethostbyname(host).startswith("127.")
    except OSError:
        return False


def _key() -> str:
    """This user's key on this host; it is made by the first rank that needs it."""
    folder = Path(FOLDER, f"hvdtrain-{os.geteuid()}")
    path = folder / "key"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        _require_private(folder)
        if not path.exists():
            draft = folder / f".key.{secrets.token_hex(8)}"
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(KEY_CHARACTERS // 2))
            with contextlib.suppress(FileExistsError):  # another rank was first
                os.link(draft, path)  # complete from the first moment, unlike a file that is opened and then written
            draft.unlink()
        _require_private(path)
        key = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}, by which ranks recognize each other, cannot be used ({error})", _remedy()) from None
    if len(key) != KEY_CHARACTERS:
        raise UserError(f"{path}, by which ranks recognize each other, is damaged", f"remove it, or {_remedy()}")
    return key


def _require_private(path: Path) -> None:
    """Raise UserError if another user owns a file or folder, or can access it."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise UserError(f"{path}: users other than its owner can access it", f"remove it, or {_remedy()}")


def _remedy() -> str:
    return f"set {rank_info.TOKEN_FILE} to a file of mode 600 that holds a random text"
