"""The lock of a run's folder, so that one job at a time writes there; it also works on folders that hosts share.

A job takes the lock by creating the next file `lock-<number>.json`, which only one process can do, on NFS as well. The
file with the highest number counts. It names its process, which touches it every HEARTBEAT_S seconds. Other jobs take
the lock over when that process has ended: on the same host the kernel knows that; a process elsewhere is considered
ended after STALE_S seconds without a touch. Times are compared by the file system's clock only, as the clocks of hosts
differ. At the end the file stays, marked as released: so no number is used twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import re
import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.errors import FolderLost, UserError
from hvdtrain.system import agent_pipe
from hvdtrain.system.files import Damaged, creating, decoded, file_system_time, read_limited
from hvdtrain.system.processes import ProcessIdentity
from hvdtrain.system.rank_info import JOB
from hvdtrain.system.text import printable

log = logging.getLogger(__name__)

FILE = re.compile(r"lock-([0-9]+)\.json")
HEARTBEAT_S = 3.0
STALE_S = 30.0
"""A process on another host that has not touched its lock for this long has ended."""
POLL_S = 0.5
RELEASE_S = 5.0
"""How long the end of a run waits for a folder that does not respond."""


@dataclass(frozen=True)
class Holder:
    """The content of a lock file: which process wrote it, and for which job."""

    process: ProcessIdentity
    job: str
    """The launcher's HVDTRAIN_JOB: equal for all attempts of a job that is restarted; may be empty."""
    since: str
    """Date and time, for messages."""
    token: str
    """Random: no two lock files have the same."""
    start: str = ""
    """Which start of the job's program: the pipe to its agent, which no other has; empty without an agent."""
    released: bool = False

    @classmethod
    def this_process(cls) -> Holder:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        identity, job = ProcessIdentity.current(), os.environ.get(JOB, "")
        return cls(identity, job, since, secrets.token_hex(8), os.environ.get(agent_pipe.VARIABLE, ""))

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self)) + "\n"


class RunLock:
    """Not held before `acquire`: ranks that do not write the folder need no lock. Use it in a `with` statement."""

    def __init__(self) -> None:
        self._path = Path()
        self._holder: Holder | None = None
        self._lost, self._checked_at = "", 0.0
        self._ended = threading.Event()

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def is_held(self) -> bool:
        return self._holder is not None

    def acquire(self, folder: Path) -> None:
        """Take the lock; while it is not clear whether its holder on another host still runs, wait for that.

        Raises UserError if another job holds it, or the folder is not writable.
        """
        this = Holder.this_process()
        with creating(f"{folder}: its lock cannot be created", folder):
            while not self._try_to_create(folder, this):
                pass
        self._holder = this
        threading.Thread(target=self._beat, name="lock", daemon=True).start()

    def _try_to_create(self, folder: Path, this: Holder) -> bool:
        """Create the next lock file when there is no holder; False where another process was faster."""
        newest = _newest(folder)
        if newest:
            _wait_for_end(newest, this)
        path = folder / f"lock-{_number(newest) + 1}.json"
        try:
            file = open(path, "x")  # noqa: SIM115  (closed below)
        except FileExistsError:
            return False
        try:
            with file:
                file.write(this.to_json())
        except OSError:  # a full disk
            path.unlink()
            raise
        if _newest(folder) != path:  # it was created while this process looked at an older one
            path.unlink()
            return False
        for older in _files(folder):
            if older != path:
                older.unlink(missing_ok=True)
        self._path = path
        return True

    def check(self, within_s: float = 0.0) -> None:
        """Before writing: raise UserError if another job has taken the lock over, or somebody has removed it.

        within_s: how old the answer may be, in seconds; a recent one needs no access to the folder.
        """
        if self._holder and not self._lost and time.monotonic() - self._checked_at >= within_s:
            with contextlib.suppress(OSError):  # whoever writes next reports it
                self._check_file()
        if self._lost:
            folder = self._path.parent
            raise FolderLost(
                f"{folder}: {self._lost} while this job ran, so it ends without writing there",
                "make sure that one job uses the folder",
            )

    def _check_file(self) -> None:
        folder, newest = self._path.parent, _newest(self._path.parent)
        self._checked_at = time.monotonic()
        if not newest:
            if os.path.isdir(folder):
                self._lost = f"{self._path.name} was removed"
            return
        holder = _read(newest)
        if newest != self._path or (holder and self._holder and holder.token != self._holder.token):
            self._lost = f"{_described(holder)} took it over"

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            with contextlib.suppress(OSError):  # a folder that does not respond now
                self._check_file()
                if self._lost:
                    return
                os.utime(self._path)  # without a time: on NFS, the server's

    def release(self) -> None:
        """Let the next job have the folder. Does nothing if the lock is not held."""
        this, self._holder = self._holder, None
        if this and not self._lost:
            self._ended.set()
            marking = threading.Thread(target=self._mark_released, args=(this,), daemon=True)
            marking.start()
            marking.join(RELEASE_S)

    def _mark_released(self, this: Holder) -> None:
        """In place, as a full disk has no space for a new file."""
        with contextlib.suppress(OSError), open(self._path, "r+") as file:
            holder = _read(self._path)
            if holder and holder.token == this.token:
                file.write(dataclasses.replace(this, released=True).to_json())
                file.truncate()


def trained_by_this_program(folder: Path) -> bool:
    """Whether this start of the job's program has trained the run in a folder already, and has left it."""
    newest, this = _newest(folder), Holder.this_process()
    holder = _read(newest) if newest else None
    return bool(holder and holder.released and this.start and (holder.job, holder.start) == (this.job, this.start))


def check_free(folder: Path) -> None:
    """Raise UserError if another job holds the lock of a folder; take no lock. Raises OSError."""
    if newest := _newest(folder):
        _wait_for_end(newest, Holder.this_process())


def _wait_for_end(path: Path, this: Holder) -> None:
    """Return when the process that wrote this lock file has ended. Raises UserError as soon as it is known to run."""
    first_touch, began, said = _modified(path), time.monotonic(), False
    while True:
        holder = _read(path)
        runs = _runs(path, holder, this, first_touch)
        if runs is None and time.monotonic() - began > STALE_S:
            runs = bool(holder and holder.process.running())
        if runs is False:
            return
        if runs:
            holder = holder or _read(path)  # a file that was still empty has its content now
            raise UserError(
                f"{path.parent} is in use by {_described(holder)}",
                "wait for that job or stop it, or choose another --name",
            )
        if not said:
            described = _described(holder)
            log.warning(
                "%s may be in use by %s; waiting up to %.0f s for a sign of it", f"{path.parent}", described, STALE_S
            )
            said = True
        time.sleep(POLL_S)


def _runs(path: Path, holder: Holder | None, this: Holder, first_touch: float) -> bool | None:
    """Whether the process that holds a lock file runs; None as long as that is not clear."""
    modified = _modified(path)
    if not modified or (holder and (holder.released or holder.process == this.process)):
        return False
    running = holder.process.running() if holder else None
    if holder and this.job and holder.job == this.job:  # an earlier attempt of this job, which its launcher has ended
        return None if running else False
    if running is None and modified != first_touch:
        return True
    if running is None and file_system_time(path.parent) - modified > STALE_S:
        return False
    return running


def _described(holder: Holder | None) -> str:
    if not holder:
        return "an unknown process"
    return printable(f"process {holder.process.pid} on {holder.process.host} (since {holder.since})")


def _modified(path: Path) -> float:
    """0 for a file that is gone. NFS clients ask the server again for a file that they open."""
    try:
        with open(path, "rb") as file:
            return os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return 0.0


def _read(path: Path) -> Holder | None:
    """None for a file that is gone or not complete."""
    with contextlib.suppress(Damaged, FileNotFoundError):
        return decoded(path, read_limited(path), Holder)
    return None


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if FILE.fullmatch(path.name)] if os.path.isdir(folder) else []


def _newest(folder: Path) -> Path | None:
    """The lock file that counts; None for a folder that has none."""
    return max(_files(folder), key=_number, default=None)


def _number(path: Path | None) -> int:
    match = FILE.fullmatch(path.name) if path else None
    return int(match[1]) if match else 0
