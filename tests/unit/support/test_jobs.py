"""A job of several parts of which some fail: as processes, since a part may end its process."""

import sys

import pytest
from support.jobs import PROGRAMS, Runs, try_each

PARTS = f"""
import sys

sys.path.append({str(PROGRAMS.parent)!r})
from programs import parts

for given in parts(sys.argv[1:]):
    print("did", *given, flush=True)
    if given == ["bad"]:
        sys.exit("a part failed")
"""


def test_other_parts_stand_and_the_one_that_failed_is_named(tmp_path):
    (tmp_path / "job.py").write_text(PARTS)
    jobs = []

    def job_of(words):
        jobs.append([*words])
        return [sys.executable, "job.py", *[word for given in words for word in ("--then", *given)][1:]]

    parts = {"first": ["good"], "second": ["bad"], "third": ["good", "too"], "last": ["bad"]}
    runs = Runs(tmp_path / "runs", try_each(parts, job_of, tmp_path))
    assert jobs == [[*parts.values()], [["good", "too"], ["bad"]]]
    assert "did good\n" in runs.output("first") and "did good too\n" in runs.output("third")
    assert runs / "third" == tmp_path / "runs" / "third"
    for name in ("second", "last"):
        with pytest.raises(AssertionError, match=rf"{name} failed:[^$]*a part failed"):
            runs / name


def test_a_job_that_does_not_start_fails_all_its_parts_once(tmp_path):
    ended = try_each({"one": ["1"], "other": ["2"]}, lambda some: ["sh", "-c", "echo no; exit 3"], tmp_path)
    assert ended == {"one": (3, "no\n"), "other": (3, "no\n")}
