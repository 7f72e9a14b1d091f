"""A check: a function that yields findings, with a name, a topic and the processes that run it."""

from __future__ import annotations

import copy
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


@dataclass
class ExaminedRank:
    """The process that a check runs in."""

    rank_info: RankInfo
    ranks: int
    """Ranks on this host: the job's, or as many as are planned."""
    late = ""
    """Why the failures that a check finds may be those of a busy machine; empty where nothing took too long."""

    @property
    def in_job(self) -> bool:
        return self.rank_info.size > 1


Function = Callable[[Any], Iterator[Finding]]
"""Gets an ExaminedRank, or a CheckContext to start processes by."""


@dataclass(frozen=True)
class Check:
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


Row = dict[str, Any]
"""A finding as JSON values, with `check` and `topic`."""


def run_check(check: Check, context: ExaminedRank) -> list[Row]:
    """The findings of a check. A check that crashes gives a warning, so that the others still run."""
    own = copy.copy(context)
    try:
        findings = list(check(own))
    except Exception as error:
        reason = " ".join(str(error).split()) or "no reason given"
        text = f"the check itself crashed ({type(error).__name__}: {reason})"
        findings = [warn(text, "please report this, with the output of --json")]
    return rows_of(check, findings, own.late)


def rows_of(check: Check, findings: Iterable[Finding], late: str = "") -> list[Row]:
    """late: see `ExaminedRank`; then a failure is a warning."""
    rows = []
    for status, text, remedy in findings:
        if late and status == "fail":
            status, text, remedy = warn(f"{text}; {late}", f"{AGAIN}; if it fails then: {remedy}")
        rows.append({"check": check.name, "topic": check.topic, "status": status, "text": text, "remedy": remedy})
    return rows
