"""What the records of a case's ranks say, and how the runs of two cores compare."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

# From the worst, which is that of a test whose ranks differ.
ORDER = ("hung", "aborted", "failed", "not run", "passed", "skipped")
START, END = "(start)", "(end)"  # of a job, before the first test and after the last one
Outcomes = dict[str, list[str]]
"""The outcome of each test on each rank."""


@dataclass
class Run:
    """One run of a case with a core, of all its jobs."""

    seconds: float = 0.0
    outcomes: Outcomes = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """Of a test that did not pass, its error."""

    def count(self, outcome: str) -> int:
        """Number of tests of that outcome; the end of a job is one only if it goes wrong."""
        return sum(
            worst(ranks) == outcome for name, ranks in self.outcomes.items() if name != END or outcome != "passed"
        )


def worst(ranks: Iterable[str]) -> str:
    """The outcome of a test from those of its ranks."""
    return min(ranks, key=ORDER.index)


@dataclass
class Record:
    """What one rank wrote."""

    items: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    outcomes: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    pid: int = 0


def read_record(path: Path) -> Record:
    """A rank's record; empty if it wrote none. A last line that was cut off does not count."""
    record = Record()
    for line in path.read_text().split("\n")[:-1] if path.exists() else []:
        what = json.loads(line)
        if "items" in what:
            record.items, record.pid = what["items"], what["pid"]
        elif "start" in what:
            record.started.append(what["start"])
        elif "test" in what:
            record.outcomes[what["test"]] = what["outcome"]
            if what["reason"]:
                record.reasons[what["test"]] = what["reason"]
        else:
            record.ended = True
    return record


def add_job(run: Run, records: list[Record], ended: str) -> str | None:
    """Add what a job did to a run; the test at which the job stopped, or None if it came to its end.

    ended: `passed` if the job ended by itself with status 0, else `aborted` or `hung`.
    """
    order = [*dict.fromkeys(name for record in records for name in (*record.outcomes, *record.items))]
    stopped = None
    if ended != "passed" and not all(record.ended for record in records):
        # A rank can be one test ahead of the others: the first one is where the job stopped.
        stopped = next((name for name in order if any(started_only(record, name) for record in records)), None)
    known = order[: order.index(stopped) + 1] if stopped else order
    if stopped is None:
        place = END if any(record.started for record in records) else START
        before = run.outcomes.get(place, ["passed"])[0]
        if place == END or ended != "passed":
            run.outcomes[place] = [worst([before, ended])] * len(records)
    for name in known:
        # Which of its ranks were ended first is chance.
        ranks = [ended if name == stopped else record.outcomes.get(name, "not run") for record in records]
        run.outcomes[name] = ranks
        for record in records:
            if name in record.reasons:
                run.reasons.setdefault(name, record.reasons[name])
    return stopped


def started_only(record: Record, name: str) -> bool:
    return name in record.started and name not in record.outcomes


def differences(reference: list[Run], others: list[Run]) -> dict[str, str]:
    """Tests whose outcomes are not the same in all runs of two cores: `differs`, or `flaky` if some runs agree."""
    found = {}
    for name in dict.fromkeys(name for run in [*reference, *others] for name in run.outcomes):
        one, other = ({tuple(run.outcomes.get(name, ["not run"])) for run in runs} for runs in (reference, others))
        if len(one | other) > 1:
            found[name] = "flaky" if one & other else "differs"
    return found


def history(runs: list[Run], name: str) -> str:
    """The outcomes of a test in all runs, with those of ranks where they are not the same."""
    texts = []
    for run in runs:
        ranks = run.outcomes.get(name, ["not run"])
        texts.append(ranks[0] if len(set(ranks)) == 1 else "/".join(ranks))
    return ", ".join(texts)
