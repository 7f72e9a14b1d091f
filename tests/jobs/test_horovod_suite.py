"""The program that runs Horovod's tests: what it says of tests that fail, abort or hang with one of two cores."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from horovod_suite import __main__ as suite
from horovod_suite import job
from horovod_suite.cases import cases, parse_core
from support.jobs import wait_for

from hvdtrain.errors import UserError

TESTS = """
import os, time, pathlib, pytest
changed, rank = "CHANGED" in os.environ, int(os.environ["OMPI_COMM_WORLD_RANK"])

def test_passes(): pass
def test_fails_in_both(): assert rank
def test_fails_on_one_rank(): assert not (changed and rank)
def test_aborts(): changed and rank == 1 and os.abort()
def test_hangs(): changed and rank == 0 and time.sleep(1000)
@pytest.mark.skip("no GPU")
def test_is_skipped(): pass
def test_fails_once():
    file = pathlib.Path(os.environ["COUNT"], f"rank-{rank}")
    first = not file.exists()
    file.touch()
    assert not (changed and first and rank == 0)
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A source tree with one file of tests."""
    folder = tmp_path / "horovod" / "test" / "parallel"
    folder.mkdir(parents=True)
    (folder / "test_some.py").write_text(TESTS)
    monkeypatch.setattr(suite, "install_requirements", lambda: tmp_path)
    return tmp_path / "horovod"


def run(tree, *options):
    output = tree.parent / "output"
    arguments = ["--source", str(tree), "--over", "mpi", "--ranks", "2", "--quiet-limit", "30", "--output", str(output)]
    status = suite.main([*arguments, *options])
    text = (output / "summary.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith(("| differs", "| flaky"))]
    return status, {row[2].partition("[")[0]: (row[0], row[3], row[5]) for row in rows}, output


@pytest.mark.matrix
def test_differences_of_two_cores(tree, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(suite, "MAX_RUNS", 2)
    (tmp_path / "counts").mkdir()
    count = f"COUNT={tmp_path / 'counts'}"
    status, found, output = run(tree, "--core", "one", f"COUNT={tmp_path}", "--core", "two", "CHANGED=1", count)
    assert status == 1
    assert found == {
        "test_fails_on_one_rank": ("differs", "passed, passed", "passed/failed, passed/failed"),
        "test_aborts": ("differs", "passed, passed", "aborted, aborted"),
        "test_hangs": ("differs", "passed, passed", "hung, hung"),
        # The other tests ran after those that aborted and hung, and this one passed the second time.
        "test_fails_once": ("flaky", "passed, passed", "failed/passed, passed"),
    }
    said = capsys.readouterr().out
    assert "| file | over | 2 ranks, one | 2 ranks, two |" in said
    assert "| test_some.py | mpi | 5 / 1 / 1 | 1 / 3 / 1, 1 aborted, 1 hung |" in said
    (log,) = [path.read_text() for path in output.glob("two/*/run-1/job-1/log.txt")]
    assert re.search(r"test_some.py.*in test_hangs", log), "the stacks of a rank that hangs are in the log"
    # Results are kept, so this ends at once, with the same table.
    assert run(tree, "--core", "one", "--core", "two")[1] == found
    assert "run 1:" not in capsys.readouterr().out


def test_the_same_outcomes_end_with_status_0(tree, tmp_path, capsys):
    (tree / "test" / "parallel" / "test_some.py").write_text("def test_fails(): assert 0\n")
    assert run(tree, "--core", "one", "--core", "two", "CHANGED=1")[:2] == (0, {})
    assert "# Differences\n\nNone.\n" in capsys.readouterr().out
    result = json.loads((tree.parent / "output" / "two" / "test_some-2-mpi" / "run-1" / "run.json").read_text())
    assert result["outcomes"] == {"(end)": ["passed", "passed"], "test_fails": ["failed", "failed"]}


def test_a_comparison_that_is_stopped_leaves_no_process(tree, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "stopping", threading.Event())
    started = tmp_path / "started"
    waits = (
        f"import pathlib, time\ndef test_waits():\n    pathlib.Path({str(started)!r}).touch()\n    time.sleep(999)\n"
    )
    (tree / "test" / "parallel" / "test_some.py").write_text(waits)
    with ThreadPoolExecutor(1) as pool:
        comparison = pool.submit(run, tree)
        try:
            wait_for(started.exists, 60)
        finally:
            job.stopping.set()
        with pytest.raises(job.Stopped):
            comparison.result(60)
    (folder,) = (tmp_path / "output").glob("*/*/run-1/job-0")
    assert job.processes_of(folder) == []
    assert not [*folder.parent.glob("run.json")], "the case is run again by the next comparison"


def test_wrong_input(tree, tmp_path):
    with pytest.raises(UserError, match="has no test/parallel"):
        cases(tmp_path, [2], ["gloo"], [])
    with pytest.raises(UserError, match="no case has a part of its name in torch"):
        cases(tree, [2], ["gloo"], ["torch"])
    with pytest.raises(UserError, match="nowhere is no VARIABLE=VALUE, and has no bin/horovodrun"):
        parse_core(["name", "nowhere"])
