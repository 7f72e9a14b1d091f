"""Files of runs: atomic writes, of which a reader sees the old content or the new one; and reads of bounded size."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from hvdtrain.errors import HvdtrainError, UserError
from hvdtrain.system.text import printable

Result = TypeVar("Result")

RECORD_BYTES = 1 << 24
"""The largest file that holds one JSON value: a run's record, result, heartbeats or attempts."""
OPTIONS_BYTES = 1 << 15
"""The largest TOML file with options: ten times one with all."""
DOTS = 1000
"""In one line of such a file: the parser's time and memory grow with the square of the parts of a dotted key."""
LINES_BYTES = 1 << 30
"""The largest file with a JSON value in each line: a run's metrics."""


class Damaged(HvdtrainError):
    """A file of a run, or a checkpoint, is not as it was written. path: the file's or the folder's. why: in words."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{printable(format(path))}: {why}")
        self.path, self.why = path, why


URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
NOT_LOCAL = "is a URL, and not a path of this host; give a folder or file that is mounted here"


def unique_name(beginning: str) -> str:
    """A name of a run with the time, and random digits, as others may start in the same second."""
    return f"{beginning}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def user_cache() -> Path:
    """The folder of hvdtrain in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "hvdtrain")


def is_url(path: str | Path) -> bool:
    """Whether a path is a URL, of which `Path` would make a folder such as `s3:`; `./s3:/` is none."""
    return bool(URL.match(str(path)))


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


def replace_folder(path: Path, write: Callable[[Path], Result]) -> Result:
    """Let `write` make a folder under another name next to `path`, then give it that name; returns what it returned.

    A folder that is there already is removed after that, and stays if anything fails; of a symbolic link, its target
    is replaced. Raises OSError if the disk does not accept the folder, and what `write` raises.
    """
    path = path.resolve()
    draft, old = (path.with_name(f".{path.name}.{os.getpid()}{ending}") for ending in ("", ".old"))
    try:
        result = write(draft)
        if path.exists():
            path.rename(old)
        try:
            draft.rename(path)
        except BaseException:
            if old.exists():
                old.rename(path)
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    return result


def require_writable(folder: Path, option: str) -> None:
    """Create a folder that is written to after much work. Raises UserError if a file cannot be created in it.

    option: the one that names the folder.
    """
    draft = folder / f".writable.{os.getpid()}"
    with creating(f"{option} {folder}: nothing can be written there", folder, f"give another {option}"):
        folder.mkdir(parents=True, exist_ok=True)
        draft.touch()
        draft.unlink(missing_ok=True)  # a process of this number on another host may have removed it


def write_outputs(folder: Path, option: str, contents: Mapping[str, str | bytes]) -> None:
    """Write all files of the folder that an option names, by name, or none. Raises UserError if that fails."""
    with creating(f"{option} {folder}: nothing can be written there", folder, f"give another {option}"):
        write_all_atomically({folder / name: content for name, content in contents.items()})


@contextlib.contextmanager
def creating(what: str, folder: Path, remedy: str = "choose another folder with --runs") -> Iterator[None]:
    """Turn an OSError of what is created in a folder into a UserError, which begins with `what`."""
    try:
        yield
    except OSError as error:
        why, repair = write_fault(error, folder)
        raise UserError(f"{what} ({why})", ", or ".join(filter(None, (repair, remedy)))) from None


def write_fault(error: OSError, folder: Path) -> tuple[str, str]:
    """Why a folder, or one above it, does not accept what was to be written; and what to do about it, if known."""
    why = error.strerror or str(error)
    for link in (path for path in (folder, *folder.parents) if os.path.islink(path) and not os.path.exists(path)):
        return f"{link} is a link to {os.readlink(link)}, which is missing", "restore that or remove the link"
    if error.errno == errno.EFBIG:
        return f"{why}: the size of files is limited", "raise the limit (ulimit -f unlimited)"
    if error.errno == errno.ENOSPC:
        with contextlib.suppress(OSError):
            disk = os.statvfs(next(filter(os.path.exists, (folder, *folder.parents))))
            if disk.f_favail * disk.f_blocks < disk.f_bavail * disk.f_files:  # what was begun may be removed again
                return f"{why}: all inodes are used", "remove files from that disk (df -i counts them)"
    if error.errno in (errno.EDQUOT, errno.EIO, errno.ENOSPC, errno.EROFS):
        return why, "free disk space or repair the disk"
    if error.filename2:
        return f"{why}: it cannot be renamed there", "choose a folder on another disk with --runs"
    return why, ""


def file_system_time(folder: Path) -> float:
    """Now, in seconds since the epoch, by the clock that the file system gives to a new file; hosts' clocks differ.

    Raises OSError if no file can be created in the folder.
    """
    with tempfile.TemporaryFile(dir=folder) as fresh:
        return os.fstat(fresh.fileno()).st_mtime


def changed_at_ns(path: Path) -> int:
    """When a file or a folder changed, in ns since the epoch; 0 where it is not there."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def open_regular(path: Path) -> BufferedReader:
    """Open a file from anywhere for reading. Raises OSError if it is not a regular file."""
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for a writer
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(path, "rb")


def last_bytes(path: Path, most: int) -> bytes:
    """The end of a file from anywhere, at most that many bytes; empty where it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(file.seek(0, os.SEEK_END) - most, 0))
            return file.read(most)
    except OSError:
        return b""


def read_limited(path: Path, limit: int = RECORD_BYTES) -> bytes:
    """The content of a file from anywhere. Raises OSError if it is larger than `limit` bytes, or no regular file."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            largest = f"{limit >> 20} MiB" if limit >> 20 else f"{limit >> 10} KiB"
            raise OSError(errno.EFBIG, f"larger than {largest}", str(path))
        return file.read(size)  # given the limit, Python would allocate all of it


def read_record(path: Path, kind: type[Result], limit: int = RECORD_BYTES) -> Result:
    """The record of a schema in a JSON file from anywhere. Raises Damaged if it is none, or is missing."""
    try:
        return decoded(path, read_limited(path, limit), kind)
    except OSError as error:
        raise Damaged(path, f"cannot be read ({error.strerror})") from None


def decoded(path: Path, content: bytes, kind: type[Result]) -> Result:
    """The record of a schema that a file from anywhere holds. Raises Damaged, which names `path`, if it is none."""
    try:
        return from_json(content, kind)
    except (ValueError, RecursionError) as error:
        raise Damaged(path, f"is not what hvdtrain writes ({printable(str(error))})") from None


def from_json(content: bytes, kind: Any) -> Any:
    """The record of a schema that a JSON text has. Raises ValueError or RecursionError if it is none."""
    import msgspec  # here, as the doctor works where packages are missing

    try:
        return msgspec.json.decode(content, type=kind)
    except (ValueError, RecursionError):  # by json, as names of files may not be UTF-8; NaN and infinities are null
        return converted(json.loads(content, parse_float=_finite, parse_constant=_finite), kind)


def _finite(text: str) -> float | None:
    return value if math.isfinite(value := float(text)) else None


def converted(values: object, kind: type[Result]) -> Result:
    """The record of a schema from its JSON value. Raises ValueError if it is none.

    kind: a dataclass, whose `__post_init__` may raise ValueError, or another type.
    """
    import msgspec

    return msgspec.convert(values, kind)


def read_json(path: Path) -> Any:
    """The JSON value in a file from anywhere.

    Raises OSError as `read_limited` does, ValueError or RecursionError if the content is not JSON.
    """
    return json.loads(read_limited(path))


def read_toml(path: Path, where: str) -> dict[str, Any]:
    """The content of a TOML file from anywhere. Raises UserError, which begins with `where`, if it cannot be read."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        content = read_limited(path, OPTIONS_BYTES).decode("utf-8-sig")
        for number, line in enumerate(content.split("\n"), 1):
            if line.count(".") > DOTS:
                raise ValueError(f"line {number} has more than {DOTS} dots")
        return tomllib.loads(content)
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    except (ValueError, RecursionError) as error:
        reason = f"is not TOML in UTF-8 ({' '.join(printable(str(error)).split())})"
    raise UserError(f"{where}: {reason}", "give a TOML file, with lines such as lr = 0.1 and quotes around text")
