"""Credentials: which variables and texts hold some, and the secret by which the ranks of a job know each other.

hvdtrain's launcher makes the secret of a job. Where another launcher has started all ranks on one host, they derive it
from the address of rank 0 and from a key of the user's on that host, a file that nobody else can read: so they agree on
the secret without sending it, and other users of the host do not know it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

from hvdtrain.errors import UserError
from hvdtrain.system import rank_info

NAME = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|COOKIE|JWT|API_?KEY|ACCESS_KEY|PRIVATE", re.IGNORECASE
)
"""Parts of the names of variables that hold credentials."""
VALUE = re.compile(
    r"//[^/\s]+@"  # a URL with a user: a password, or a token in its place
    r"|\b(bearer|basic)[ :=]+[\w.~+/-]{8}"
    r"|(token|secret|password|passwd|pwd|api[-_]?key|access[-_]?key|signature|\bsig)=[^&\s]"  # of a query
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\."  # a JSON web token
    r"|\b(gh[pousr]|github_pat|glpat|hf|sk|pk|xox[abeoprs])[-_][A-Za-z0-9_-]{16}|\b(AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY",
    re.IGNORECASE,
)
"""What passwords and tokens look like in the values of variables."""


def holds(name: str, value: str) -> bool:
    """Whether a variable holds credentials."""
    return bool(NAME.search(name) or VALUE.search(value))


def removed(text: str) -> str:
    """A text without the users, passwords and queries of its URLs."""
    return re.sub(r"(/\S*?)\?[^\s'\")]+", r"\1?...", re.sub(r"//\S*@", "//", text))


def proof(token: str, challenge: str, role: str) -> str:
    """The response to a challenge, HMAC-SHA256 in hex digits (RFC 2104).

    role: which side responds, so that a response cannot be reflected to the side that made it.
    """
    return hmac.new(token.encode(), f"{role} {challenge}".encode(), hashlib.sha256).hexdigest()


KEY_FOLDER = "/tmp"
KEY_CHARACTERS = 64
KEY_REMEDY = f"remove it, or set {rank_info.TOKEN_FILE} to a file of mode 600 that holds a random text"


def token_of_one_host(
    rank: rank_info.RankInfo, address: tuple[str, int], environment: Mapping[str, str] = os.environ
) -> str:
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
    folder = Path(KEY_FOLDER, f"hvdtrain-{os.geteuid()}")
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
        if len(key) != KEY_CHARACTERS:
            raise ValueError("it is damaged")
    except (OSError, ValueError) as error:
        raise UserError(f"{path}, by which ranks recognize each other, cannot be used ({error})", KEY_REMEDY) from None
    return key


def _require_private(path: Path) -> None:
    """Raise ValueError if another user owns a file or folder, or can access it."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ValueError(f"users other than its owner can access {path.name}")
