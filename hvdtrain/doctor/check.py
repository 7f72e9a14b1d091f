"""The type of a check: a function that yields findings, with a name, a topic and the processes that run it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

from hvdtrain.doctor.check_context import CheckContext
from hvdtrain.doctor.findings import Finding, warn

Topic = Literal["software", "jobs", "job", "machine", "network", "gpu"]
Where = Literal["rank", "host", "alone", "job"]
"""Who runs a check: every rank, one rank per host, the single process where there is no job, or all ranks of a job
together, in step."""
Function = Callable[[CheckContext], Iterator[Finding]]


@dataclass(frozen=True)
class Check:
    """A check; call it with the context to get its findings."""

    name: str
    topic: Topic
    where: Where
    about: str
    """What it checks, from its function's docstring."""
    function: Function

    def __call__(self, context: CheckContext) -> Iterator[Finding]:
        return self.function(context)


def check(topic: Topic, where: Where) -> Callable[[Function], Check]:
    """Turn a function `check_<name>` into a `Check`; the first line of its docstring says what it does."""

    def make(function: Function) -> Check:
        name = function.__name__.removeprefix("check_").replace("_", "-")
        about = (function.__doc__ or "").split("\n")[0].rstrip(".")
        return Check(name, topic, where, about, function)

    return make


def checks_of(module: ModuleType) -> list[Check]:
    """The checks that a module defines, in the order in which it defines them."""
    return [value for value in vars(module).values() if isinstance(value, Check)]


def run_check(check: Check, context: CheckContext) -> list[Finding]:
    """The findings of a check. A check that crashes gives a warning, so that the others still run."""
    if time.monotonic() > context.deadline:
        remedy = f"run it alone: python -m hvdtrain doctor --only {check.name}"
        return [warn("skipped, because the time limit was reached", remedy)]
    try:
        return list(check(context))
    except Exception as error:
        reason = " ".join(str(error).split()) or "no reason given"
        text = f"the check itself crashed ({type(error).__name__}: {reason})"
        return [warn(text, "please report this, with the output of --json")]
