"""What a check finds, what it may ask of, and the list of all checks."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hvdtrain.doctor import subprocesses
from hvdtrain.doctor.subprocesses import Done
from hvdtrain.system import rank_info

Status = Literal["ok", "warn", "fail"]
STATUSES: tuple[Status, ...] = ("ok", "warn", "fail")
"""From good to bad."""
FRAMEWORKS = ("torch", "mxnet", "tensorflow")


class Finding(NamedTuple):
    """One sentence of what was found; for warn and fail also the command or change that mends it."""

    status: Status
    text: str
    remedy: str = ""


def ok(text: str) -> Finding:
    return Finding("ok", text)


def warn(text: str, remedy: str) -> Finding:
    return Finding("warn", text, remedy)


def fail(text: str, remedy: str) -> Finding:
    return Finding("fail", text, remedy)


@dataclass
class Setting:
    """Where and for what the doctor runs, and what several checks want to know but is dear to find out."""

    place: rank_info.RankInfo
    ranks: int
    """Ranks on this host: the job's, or as many as are planned."""
    deadline: float
    """time.monotonic() after which no subprocess is started or waited for any more."""
    hosts: tuple[str, ...] = ()
    """Hosts to reach by ssh."""
    runs: Path = Path("runs")
    host: str = field(default_factory=rank_info.host_name)
    _known: dict[str, Any] = field(default_factory=dict)

    @property
    def in_job(self) -> bool:
        return self.place.size > 1

    def limit(self, limit_s: float) -> float:
        """Seconds a subprocess may take: as asked, or what is left."""
        return max(min(limit_s, self.deadline - time.monotonic()), 0.1)

    def run(self, words: list[str], limit_s: float, **environment: str) -> Done:
        """Run a program; it never takes longer than `limit_s` and a few seconds."""
        return subprocesses.run(words, self.limit(limit_s), {**os.environ, **environment})

    def probe(self, *words: str, limit_s: float = 60) -> tuple[dict[str, Any], Done]:
        """Run a part of `hvdtrain.doctor.probe` in a process of its own; what it said, and how it ended."""
        limit_s = self.limit(limit_s)
        done = subprocesses.run(probe_words(*words, limit_s=limit_s), limit_s + 1, dict(os.environ))
        return functools.reduce(lambda one, other: {**one, **other}, subprocesses.said(done.out), {}), done

    def framework(self, name: str) -> dict[str, Any]:
        """What `import name` and `import horovod.name` gave, asked once (see `probe.framework`)."""

        def ask() -> dict[str, Any]:
            told, done = self.probe("framework", name)
            if "end" not in told:  # it died without a word of its own
                stage = "horovod" if "version" in told else "framework"
                told.setdefault(f"{stage}_error", done.reason())
            return told

        return self.once(f"framework {name}", ask)

    def once(self, key: str, ask: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = ask()
        return self._known[key]


def probe_words(*words: str, limit_s: float) -> list[str]:
    """The words that start a part of the probe, which ends itself after `limit_s`."""
    return [sys.executable, "-m", "hvdtrain.doctor.probe", f"{limit_s:.0f}", *words]


Where = Literal["rank", "host", "alone"]
"""A check runs on every rank, on one rank of each host, or only where there is no job."""


class Check(NamedTuple):
    name: str
    topic: str
    where: Where
    about: str
    function: Callable[[Setting], Iterator[Finding]]


CHECKS: list[Check] = []
"""All that are not about the job as a whole, in the order in which they run."""


def check(
    topic: str, where: Where
) -> Callable[[Callable[[Setting], Iterator[Finding]]], Callable[[Setting], Iterator[Finding]]]:
    """Put a function into the list; its name, without `check_`, is the check's, and its docstring says what it does."""

    def add(function: Callable[[Setting], Iterator[Finding]]) -> Callable[[Setting], Iterator[Finding]]:
        name = function.__name__.removeprefix("check_").replace("_", "-")
        about = (function.__doc__ or "").split("\n")[0].rstrip(".")
        CHECKS.append(Check(name, topic, where, about, function))
        return function

    return add


def examine(one: Check, setting: Setting) -> list[Finding]:
    """The findings of a check; one that stumbles says so, and the others go on."""
    if time.monotonic() > setting.deadline:
        return [warn("not looked at: the time was up", f"run it alone: python -m hvdtrain doctor --only {one.name}")]
    try:
        return list(one.function(setting))
    except Exception as error:
        text = f"the check itself crashed ({type(error).__name__}: {' '.join(str(error).split()) or 'no reason'})"
        return [warn(text, "please report this, with the output of --json")]


def first_line(text: str, limit: int = 200) -> str:
    """The first line that says something, not too long for a sentence."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def megabytes(size: float) -> str:
    """A number of bytes for people."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
