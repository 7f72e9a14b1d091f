"""What the records of a case's ranks say, how the runs of two cores compare, and the tables of both, in Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from horovod_suite.cases import Case, Core

# From the worst, which is that of a test whose ranks differ.
ORDER = ("hung", "aborted", "failed", "started", "not run", "passed", "skipped")
COUNTED = ("passed", "failed", "skipped", "aborted", "hung", "not run")
START, END = "(start)", "(end)"  # of a job, before the first test and after the last one
Record = dict[str, tuple[str, str]]
"""The outcome of each test on a rank, and a reason if it did not pass; END, if all ran."""


@dataclass
class Run:
    """One run of a case with a core, of all its jobs."""

    seconds: float = 0.0
    outcomes: dict[str, list[str]] = field(default_factory=dict)
    """The outcome of each test on each rank."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Of a test that did not pass, its error."""

    def count(self, outcome: str) -> int:
        """Number of tests of that outcome; the end of a job is one only if it goes wrong."""
        return sum(
            worst(ranks) == outcome for name, ranks in self.outcomes.items() if name != END or outcome != "passed"
        )

    def summary(self) -> str:
        return ", ".join(f"{count} {name}" for name in COUNTED if (count := self.count(name)))

    def ranks(self, name: str) -> tuple[str, ...]:
        return tuple(self.outcomes.get(name, ["not run"]))


Results = dict[tuple[Case, str], list[Run]]
"""All runs of a case with a core."""


def worst(ranks: Iterable[str]) -> str:
    """The outcome of a test from those of its ranks."""
    return min(ranks, key=ORDER.index)


def read_record(path: Path) -> Record:
    """A rank's record; empty if it wrote none. A last line that was cut off does not count."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return {test: (outcome, reason) for test, outcome, reason in map(json.loads, lines)}


def add_job(run: Run, records: list[Record], ended: str) -> str | None:
    """Add what a job did to a run; the test at which the job stopped, or None if it came to its end.

    ended: `passed` if the job ended by itself with status 0, else `aborted` or `hung`.
    """
    stopped, has_run = None, any(outcome != "not run" for record in records for outcome, _ in record.values())
    if ended != "passed" and not all(END in record for record in records):
        # A rank can be one test ahead of the others: the first one is where the job stopped.
        started = [name for record in records for name, (outcome, _) in record.items() if outcome == "started"]
        stopped = min(started, key=[*dict.fromkeys(name for record in records for name in record)].index, default=None)
    for name in dict.fromkeys(name for record in records for name in record if name != END):
        # Which of its ranks were ended first is chance.
        found = [record.get(name, ("not run", "")) for record in records]
        run.outcomes[name] = [ended if name == stopped else outcome for outcome, _ in found]
        if reasons := [reason for _, reason in found if reason]:
            run.reasons.setdefault(name, reasons[0])
        if name == stopped:
            return stopped
    place = END if has_run else START
    if place == END or ended != "passed":
        run.outcomes[place] = [worst([run.outcomes.get(place, ["passed"])[0], ended])] * len(records)
    return None


def differences(reference: list[Run], others: list[Run]) -> dict[str, str]:
    """Tests whose outcomes are not the same in all runs of two cores: `differs`, or `flaky` if some runs agree."""
    found = {}
    for name in dict.fromkeys(name for run in [*reference, *others] for name in run.outcomes):
        one, other = ({run.ranks(name) for run in runs} for runs in (reference, others))
        if len(one | other) > 1:
            found[name] = "flaky" if one & other else "differs"
    return found


def history(runs: list[Run], name: str) -> str:
    """The outcomes of a test in all runs, with those of ranks where they are not the same."""

    def shown(ranks: tuple[str, ...]) -> str:
        return ranks[0] if len(set(ranks)) == 1 else "/".join(ranks)

    return ", ".join(shown(run.ranks(name)) for run in runs)


def row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def table(cores: list[Core], results: Results) -> Iterator[str]:
    """Outcomes of the first runs: a row for each file and controller, a column for each number of ranks and core."""
    found = {(case.file.name, case.over, case.ranks, name): runs[0] for (case, name), runs in results.items()}
    columns = [(size, core.name) for size in sorted({case.ranks for case, _ in results}) for core in cores]
    yield row(("file", "over", *(f"{size} ranks, {name}" for size, name in columns)))
    yield row(["---"] * (len(columns) + 2))
    for file, over in dict.fromkeys((file, over) for file, over, _, _ in found):
        runs = [found.get((file, over, size, name)) for size, name in columns]
        yield row((file, over, *(cell(run) if run else "" for run in runs)))


def cell(run: Run) -> str:
    """Passed, failed and skipped tests, as `12 / 0 / 3`, and what else there is."""
    others = (f"{count} {name}" for name in COUNTED[3:] if (count := run.count(name)))
    return ", ".join((" / ".join(str(run.count(name)) for name in COUNTED[:3]), *others))


def different(cores: list[Core], results: Results) -> Iterator[tuple[str, ...]]:
    """Each test that is not the same with another core as with the first: its verdict, and the outcomes of all runs."""
    for case in dict.fromkeys(case for case, _ in results):
        reference = results[case, cores[0].name]
        for core in cores[1:]:
            runs = results[case, core.name]
            for name, verdict in differences(reference, runs).items():
                errors = [run.reasons[name] for run in (*runs, *reference) if name in run.reasons]
                yield (verdict, case.name, name, history(reference, name), core.name, history(runs, name),
                       errors[0].replace("|", "/") if errors else "")  # fmt: skip


def table_of_differences(cores: list[Core], rows: list[tuple[str, ...]]) -> Iterator[str]:
    """The differences, or one line that says that there are none."""
    if not rows:
        yield "None." if len(cores) > 1 else "Only one core was run."
        return
    yield row(("", "case", "test", cores[0].name, "core", "outcomes with it", "first error"))
    yield row(["---"] * 7)
    yield from map(row, rows)
