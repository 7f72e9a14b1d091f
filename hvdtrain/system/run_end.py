"""`end.json`: how a run ended, in its folder. Rank 0 writes it, a failing rank, or the launcher, which knows more."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.errors import INTERRUPTED, HvdtrainError, Stopped
from hvdtrain.system.files import read_json, write_atomically
from hvdtrain.system.json_text import finite_number

FILE = "end.json"
STATUSES = ("finished", "stopped", "failed", "hung", "restarting")
"""`restarting`: an attempt failed, and the launcher starts the next one."""


class RunEnd(NamedTuple):
    """How a run, or an attempt of its job, ended."""

    status: str
    """One of STATUSES."""
    exit_status: int = 0
    reason: str = ""
    """Why it ended; empty for a run that finished."""
    rank: int | None = None
    """The rank that failed first; None where none did, or none is known."""
    host: str = ""
    """The host of that rank."""
    time: float = 0.0
    """Seconds since the epoch."""

    @classmethod
    def of_exception(cls, error: BaseException, rank: int | None = None, host: str = "") -> RunEnd:
        """The end of a process of training that raised this; rank, host: its own, None and "" if that says nothing."""
        if isinstance(error, HvdtrainError):
            return cls.of_process(error.exit_status, error.reason, rank, host)
        if isinstance(error, KeyboardInterrupt):
            return cls.of_process(INTERRUPTED, "interrupted", rank, host)
        return cls.of_process(1, f"{type(error).__name__}: {error}", rank, host)

    @classmethod
    def of_process(cls, exit_status: int, reason: str = "", rank: int | None = None, host: str = "") -> RunEnd:
        """The end of a process of training with this exit status."""
        status = {0: "finished", Stopped.exit_status: "stopped", INTERRUPTED: "stopped"}.get(exit_status)
        return cls(status, exit_status, reason) if status else cls.of_error("failed", exit_status, reason, rank, host)

    @classmethod
    def of_error(cls, status: str, exit_status: int, reason: str, rank: int | None, host: str) -> RunEnd:
        """The end by an error; rank, host: of the rank that has it, unless `reason` begins with another rank."""
        named = re.match(r"rank (\d{1,6})\b", reason)
        if named and int(named[1]) != rank:
            rank, host = int(named[1]), ""
        return cls(status, exit_status, reason, rank, host)

    def write(self, folder: Path, replace: bool = True) -> None:
        """Write it to a run's folder. Does nothing where the folder does not accept it.

        replace: whether it takes the place of one that is there already.
        """
        path = folder / FILE
        if os.path.isdir(folder) and (replace or not os.path.exists(path)):
            with contextlib.suppress(OSError):  # nobody can be told: what failed was reported already
                write_atomically(path, json.dumps({**self._asdict(), "time": self.time or time.time()}) + "\n")

    @classmethod
    def read(cls, folder: Path) -> RunEnd | None:
        """The one in a run's folder; None where there is none, or what is there was not written by `write`."""
        try:
            values: dict[str, Any] = read_json(folder / FILE)
            found = cls(**{name: values[name] for name in cls._fields if name in values})  # later versions may add some
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        texts, numbers = (found.reason, found.host), (found.exit_status, found.rank or 0)
        is_valid = (
            found.status in STATUSES
            and all(isinstance(text, str) for text in texts)
            and all(type(number) is int for number in numbers)
            and finite_number(found.time) is not None
        )
        return found if is_valid else None

    @staticmethod
    def remove(folder: Path) -> None:
        """Remove the one in a run's folder, as the run goes on. Does nothing where the folder does not allow it."""
        with contextlib.suppress(OSError):
            os.unlink(folder / FILE)
