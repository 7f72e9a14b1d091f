"""A check: a function that yields findings, with a name, a topic and the processes that run it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from hvdtrain.system.rank_info import RankInfo

Topic = Literal["software", "jobs", "job", "machine", "network", "gpu"]
"""In the order in which a report has them."""
Where = Literal["rank", "host", "alone", "job"]
"""Who runs a check: every rank, one rank per host, the single process where there is no job, or all ranks of a job
together, in step."""

Status = Literal["ok", "warn", "fail"]
STATUSES: tuple[Status, ...] = ("ok", "warn", "fail")
"""From best to worst."""


class Finding(NamedTuple):
    """One result of a check.

    text: what was found, one sentence without a final period.
    remedy: for `warn` and `fail`, the command or change that fixes it; empty for `ok`.
    """

    status: Status
    text: str
    remedy: str = ""


def ok(text: str) -> Finding:
    """Nothing to do."""
    return Finding("ok", text)


def warn(text: str, remedy: str) -> Finding:
    """Jobs run, but slowly or only in some configurations."""
    return Finding("warn", text, remedy)


def fail(text: str, remedy: str) -> Finding:
    """Jobs fail, or compute something else than intended."""
    return Finding("fail", text, remedy)


AGAIN = "run it again when this machine is quiet"


def doubted(finding: Finding, busy: str) -> Finding:
    """The finding; a warning for a failure that a busy machine may explain. busy: says so; empty if it is quiet."""
    if not busy or finding.status != "fail":
        return finding
    return warn(f"{finding.text}; {busy}", f"{AGAIN}; if it fails then: {finding.remedy}")


Row = dict[str, Any]
"""A finding as JSON values, with `check` and `topic`."""


@dataclass
class ExaminedRank:
    """The process that a check runs in."""

    rank_info: RankInfo
    ranks: int
    """Ranks on this host: the job's, or as many as are planned."""

    @property
    def in_job(self) -> bool:
        return self.rank_info.size > 1

    def check_deadline(self) -> None:
        """Raise DeadlineReached if nothing may be started any more."""


class DeadlineReached(Exception):
    """No subprocess is started any more."""


class TooBusy(Exception):
    """A subprocess took too long, on a machine that other programs keep busy."""


Function = Callable[[Any], Iterator[Finding]]
"""Gets an ExaminedRank, or a CheckContext to start processes by."""


@dataclass(frozen=True)
class Check:
    """A check; call it with the context to get its findings."""

    name: str
    topic: Topic
    where: Where
    about: str
    """What it checks, from its function's docstring."""
    function: Function
    measures: bool = False
    """Whether it measures how fast something is, so that nothing else may run."""

    def __call__(self, context: ExaminedRank) -> Iterator[Finding]:
        return self.function(context)


def check(topic: Topic, where: Where, measures: bool = False) -> Callable[[Function], Check]:
    """Turn a function `check_<name>` into a `Check`; the first line of its docstring says what it does."""

    def make(function: Function) -> Check:
        name = function.__name__.removeprefix("check_").replace("_", "-")
        about = (function.__doc__ or "").split("\n")[0].rstrip(".")
        return Check(name, topic, where, about, function, measures)

    return make


def run_check(check: Check, context: ExaminedRank) -> list[Finding]:
    """The findings of a check. A check that crashes gives a warning, so that the others still run."""
    alone, findings = f"python -m hvdtrain doctor --only {check.name}", []
    try:
        context.check_deadline()
        for finding in check(context):
            findings.append(finding)
        return findings
    except DeadlineReached:
        return [warn("skipped, because the time limit was reached", f"run it alone: {alone}")]
    except TooBusy as error:
        return [*findings, warn(str(error), f"{AGAIN}: {alone}")]
    except Exception as error:
        reason = " ".join(str(error).split()) or "no reason given"
        text = f"the check itself crashed ({type(error).__name__}: {reason})"
        return [warn(text, "please report this, with the output of --json")]


def rows_of(check: Check, findings: Iterable[Finding]) -> list[Row]:
    return [{"check": check.name, "topic": check.topic, **finding._asdict()} for finding in findings]
