"""Parts of the tests: make test-all PART=1/4."""

import argparse
import itertools
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support import parts
from support.jobs import ROOT


def item(nodeid, minutes=None):
    """A test; one of the matrix if its mark has minutes."""
    marks = {} if minutes is None else {"matrix": pytest.mark.matrix(minutes=minutes)}
    return SimpleNamespace(nodeid=nodeid, get_closest_marker=marks.get)


def collected(*options):
    """The names of tests that pytest finds in this folder."""
    command = [sys.executable, "-m", "pytest", "tests/unit/support", "--collect-only", "-q", *options]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [line for line in output.splitlines() if "::" in line]


def test_parts_are_complete_and_disjoint():
    """By the command, which needs a process."""
    found = [collected("--part", f"{number}/3") for number in (1, 2, 3)]
    assert all(found) and sorted(itertools.chain(*found)) == sorted(collected())


def test_tests_that_share_fixtures_or_jobs_are_in_one_part():
    names = ["contracts/test_parity.py::test_one", "contracts/test_tasks.py::test_two", "jobs/test_web.py::test_three"]
    assert [parts.scope_of(f"tests/{name}") for name in names] == ["same jobs", "same jobs", "tests/jobs/test_web.py"]
    ids = [f"tests/contracts/test_{name}" for name in ("networks.py::test[sync-2-torch-mpi]", "tasks.py::test[torch]")]
    assert {parts.group_of(nodeid) for nodeid in ids} == {"same jobs of torch"}


def test_long_tests_are_alone_and_parts_as_long_as_each_other():
    drawn = [item(f"tests/fuzz/test_drawn_models.py::test[{number}]", 2) for number in range(8)]
    short = [item(f"tests/unit/test_{number}.py::test_{case}") for number in range(40) for case in range(60)]
    others = [item(f"tests/jobs/test_{number}.py::test", 0.2) for number in range(24)]
    tests = [*drawn, *short, *others]
    found = parts.divide(tests, 4)
    seconds = [sum(parts.seconds_of(test) for test in tests if parts.group_of(test.nodeid) in part) for part in found]
    assert max(seconds) - min(seconds) < 15 and sum(seconds) == pytest.approx(sum(map(parts.seconds_of, tests)))
    assert parts.divide(reversed(tests), 4) == found


def test_the_files_that_it_names_exist():
    assert [path for path in (*parts.TOGETHER, *parts.APART) if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "1/", "a/b", "-1/4", "1/4/2"])
def test_what_is_no_part(text):
    with pytest.raises(argparse.ArgumentTypeError, match=f"^{text} is no part; give its number"):
        parts.parse(text)
