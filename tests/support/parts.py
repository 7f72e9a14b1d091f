"""Parts of the tests that take about as long as each other, for jobs of CI: make test-all PART=1/4."""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterable

import pytest

from support.stack import FRAMEWORKS, keep

SAME_JOBS = "same jobs"
TOGETHER = {
    **{f"tests/contracts/test_{name}.py": SAME_JOBS for name in ("parity", "strategies", "networks", "tasks")},
    **{f"tests/cluster/test_{name}.py": "same hosts" for name in ("hosts", "slurm", "survive")},
}
"""Files whose tests compare runs of the same jobs, and those whose jobs run on the same hosts."""
APART = {
    *(f"tests/contracts/test_{name}.py" for name in ("combinations", "one_hash")),
    *("tests/faults/test_chaos.py", "tests/fuzz/test_drawn_models.py"),
    *(f"tests/jobs/test_{name}.py" for name in ("benchmarks", "requests")),
}
"""Files each of whose tests starts jobs of its own, which may take minutes."""
SECONDS = {"tests/unit": (0.1, 1.0), "tests/contracts": (2.0, 4.0)}
"""About how long a test takes in make test, and in the matrix, where its mark does not name minutes."""
ELSEWHERE = (1.3, 10.0)


def parse(text: str) -> tuple[int, int]:
    """The number of a part, from 1, and how many there are, of 1/4. Raises ArgumentTypeError for what is no part."""
    number, _, count = text.partition("/")
    if number.isdecimal() and count.isdecimal() and 0 < int(number) <= int(count):
        return int(number), int(count)
    raise argparse.ArgumentTypeError(f"{text} is no part; give its number and how many there are, such as 1/4")


def scope_of(nodeid: str) -> str:
    """What a test shares fixtures and jobs with: its file, some files, or nothing but itself."""
    path = nodeid.partition("::")[0]
    return nodeid if path in APART else TOGETHER.get(path, path)


def group_of(nodeid: str) -> str:
    """What a test shares a part with: its scope, of which the same jobs are those of a framework each."""
    scope, named = scope_of(nodeid), re.search("|".join(FRAMEWORKS), nodeid)
    return f"{scope} of {named[0]}" if scope == SAME_JOBS and named else scope


def seconds_of(item: pytest.Item) -> float:
    """About how long a test takes."""
    if item.get_closest_marker("skip"):
        return 0.0
    short, long = SECONDS.get("/".join(item.nodeid.split("/")[:2]), ELSEWHERE)
    matrix = item.get_closest_marker("matrix")
    return 60 * matrix.kwargs.get("minutes", long / 60) if matrix else short


def divide(items: Iterable[pytest.Item], count: int) -> list[set[str]]:
    """The groups of each part. The longest ones come first, each to the part that has least so far."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for item in items:
        seconds[group_of(item.nodeid)] += seconds_of(item)
    parts, loads = [set[str]() for _ in range(count)], [0.0] * count
    for group in sorted(seconds, key=lambda group: (-seconds[group], group)):
        lightest = loads.index(min(loads))
        parts[lightest].add(group)
        loads[lightest] += seconds[group]
    return parts


def select(config: pytest.Config, items: list[pytest.Item], number: int, count: int) -> None:
    """Deselect the tests of the other parts."""
    chosen = divide(items, count)[number - 1]
    keep(config, items, lambda item: group_of(item.nodeid) in chosen)
