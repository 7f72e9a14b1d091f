"""The errors that end a command, and the exit status of each.

An error has two sentences for people: `reason`, what happened and where, and `remedy`, what the user can do about it.
What code has to know about it is in fields of its own: no code reads the sentences.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

INTERRUPTED = 130
"""Exit status of a process that Ctrl-C ended: 128 + SIGINT."""
EXIT_STATUSES = {
    "0": "success; of a launcher: all ranks succeeded",
    "1": "training failed, for example because of a loss that is not finite",
    "2": "invalid input: an option, a file or the installation; of a launcher also hosts that cannot be reached or "
    "that differ, and ranks that did not start in time",
    "75": "training was asked to stop and wrote a checkpoint: start it again with --resume",
    "128 + N": "signal N ended the process: 130 is Ctrl-C, 141 the end of the program that read the output; of a "
    "launcher: a signal killed a rank",
    "other": "of a launcher: that of the rank that failed first",
}
"""What they mean, as docs/reference.md lists it."""


class HvdtrainError(Exception):
    """An error that one sentence explains; users never see its traceback.

    reason: what happened and where, without a final period.
    remedy: what to do about it; empty if the reason is enough.
    option: the option whose value is at fault, as the field of Config or RuntimeOptions is named; empty if none is.
    rank: the rank that has the error, where all ranks raise it and the reason names that one; else None.
    step: the step at which it happened, where that is known.
    """

    exit_status = 1
    retry = True
    """Whether the same command may succeed when a launcher starts it again."""
    resumable = True
    """Whether to say how to resume the run; an error whose remedy says that by itself has False."""
    lost_peer = False
    """Whether it only follows from the end of another rank."""

    def __init__(
        self, reason: str, remedy: str = "", *, option: str = "", rank: int | None = None, step: int | None = None
    ) -> None:
        super().__init__(reason, remedy)
        self.reason, self.remedy = reason, remedy
        self.option, self.rank, self.step = option, rank, step

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}" if self.remedy else self.reason


class UserError(HvdtrainError):
    """The request cannot be carried out: an option, a file or an installation is at fault (exit status 2)."""

    exit_status = 2
    retry = False


class MissingPackage(UserError):
    """A package that only some features need cannot be imported; the remedy installs it."""


@contextlib.contextmanager
def needed_by(feature: str, extra: str) -> Iterator[None]:
    """Around imports of packages that come with an extra of hvdtrain. Raises MissingPackage where one is missing."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "a package").partition(".")[0]
        reason = "" if isinstance(error, ModuleNotFoundError) else f" ({str(error).partition(chr(10))[0]})"
        raise MissingPackage(f"{feature} needs {package}{reason}", f"pip install 'hvdtrain[{extra}]'") from None


class Stopped(HvdtrainError):
    """Training was asked to stop and wrote a checkpoint (exit status 75, EX_TEMPFAIL of sysexits.h)."""

    exit_status = 75
    resumable = False


class TrainingError(HvdtrainError):
    """Training started and failed, for example by a loss that is not finite (exit status 1)."""


class NotFiniteError(TrainingError):
    """A loss or a parameter is not finite. Options and data decide that, so a restart would end in the same way."""

    retry = False


class BitsDiffer(TrainingError):
    """The replay produced different weights than the run recorded. A restart would end in the same way."""

    retry = False
    resumable = False


class WrongBits(TrainingError):
    """A rank computed other bits than another one (`--audit`). On the same hosts it would soon happen again."""

    retry = False


class PeerLost(TrainingError):
    """Another rank has closed its connection, so this one cannot continue."""

    lost_peer = True


class WriteError(TrainingError):
    """The run's folder does not accept what training cannot do without."""


class FolderLost(UserError):
    """The run's folder is gone, or another job has it."""
