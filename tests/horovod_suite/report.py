"""The tables of a comparison, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from horovod_suite.cases import Case, Core
from horovod_suite.outcomes import Run, differences, history

COUNTED = ("passed", "failed", "skipped", "aborted", "hung", "not run")
Results = dict[tuple[Case, str], list[Run]]
"""All runs of a case with a core."""


def row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


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
    yield from (row(one) for one in rows)
