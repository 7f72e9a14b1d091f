"""How a job ended: its exit status and, where it failed, which rank, on which host, and why."""

from __future__ import annotations

import dataclasses
import signal
from dataclasses import dataclass

from hvdtrain.errors import Stopped, UserError
from hvdtrain.jobs.cause import RankEnd, lost_peer
from hvdtrain.jobs.output import LAST_LINES
from hvdtrain.system.run_end import RunEnd


@dataclass(frozen=True)
class Failure:
    """Why a job ended: the first failure, as the others follow from it."""

    reason: str
    """What happened; without the rank's name where `rank` is set, unless `names_rank`: `was killed by SIGKILL`."""
    remedy: str = ""
    rank: int | None = None
    host: str = ""
    names_rank: bool = False
    """Whether `reason` says by itself on which rank it happened."""
    last_lines: tuple[str, ...] = ()
    """What the rank printed last."""
    ends_others: bool = False
    """Whether other ranks run, which are ended now."""
    at_start: bool = False
    """Whether the job could not start: an option is wrong, hosts differ, or a rank did not register."""
    retry: bool = True
    """Whether a restart may succeed: not where the options and the data alone decide the failure."""
    signature: str = ""
    """Equal for failures that are the same; empty where chance has a part, as in a killed rank or a lost host."""

    @staticmethod
    def of_error(error: UserError) -> Failure:
        """A job that could not start."""
        return Failure(error.reason, error.remedy, at_start=True)

    @staticmethod
    def of_rank(end: RankEnd, ends_others: bool) -> Failure:
        """A rank has failed."""
        error = end.error
        known = end.by_itself and end.message and not lost_peer(end) and not (error and error.retry)
        signature = f"rank {end.rank} {end.how}: {end.message}" if known else ""
        if error:
            # An error that all ranks have names the rank at fault itself.
            label = "" if error.reason.startswith("rank ") else f"rank {end.rank} on {end.host}: "
            reason, retry = f"{label}{error.reason}", error.retry is not False
            failure = Failure(reason, error.remedy, end.rank, end.host, names_rank=True, retry=retry)
        else:
            failure = Failure(end.how, "", end.rank, end.host, last_lines=end.tail[-LAST_LINES:])
        return dataclasses.replace(failure, ends_others=ends_others, signature=signature)

    @property
    def line(self) -> str:
        """All on one line: the summary, and the last line that the rank printed."""
        last = f" ({self.last_lines[-1].strip()})" if self.last_lines else ""
        return self.summary.partition("\n")[0] + last

    @property
    def summary(self) -> str:
        """One line: which rank, on which host, and what happened."""
        return self.reason if self.rank is None or self.names_rank else f"rank {self.rank} on {self.host} {self.reason}"

    def __str__(self) -> str:
        parts = [self.summary, self.remedy, "ending the others" if self.ends_others else ""]
        parts += ["its last lines:" + "".join(f"\n  {line}" for line in self.last_lines)] if self.last_lines else []
        return "; ".join(part for part in parts if part)


@dataclass(frozen=True)
class JobResult:
    """The end of a job, or of one attempt."""

    status: int
    """The job's exit status: 0, 75 where it stopped after a checkpoint, or that of the rank that failed first."""
    failure: Failure | None = None
    asked_to_stop: bool = False
    """Whether a signal or the time limit asked the job to stop, so that it is not started again."""
    cause: Failure | None = None
    """That of the last attempt, where `failure` lists all."""

    @property
    def end(self) -> RunEnd:
        """As it is recorded in the run's folder."""
        failure = self.cause or self.failure
        if self.asked_to_stop or self.status == Stopped.exit_status:
            return RunEnd("stopped", self.status, failure.line if failure else "asked to stop")
        if not failure:
            return RunEnd("failed" if self.status else "finished", self.status)
        return RunEnd.of_error("failed", self.status, failure.line, failure.rank, failure.host)


def interrupted_status(number: int) -> int:
    """The exit status of a job that a signal ended before its ranks could write a checkpoint.

    SIGUSR1 announces a time limit: as after a checkpoint, 75 says that the job can be started again.
    """
    return Stopped.exit_status if number == signal.SIGUSR1 else 128 + number
