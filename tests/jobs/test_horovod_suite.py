"""The program that runs Horovod's tests: what it says of tests that fail, abort or hang with one of two cores."""

import json
import os
import re
import signal
import threading

import pytest
from horovod_suite import __main__ as suite
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
def run(tmp_path, monkeypatch):
    """Runs a file of tests of two cores; the status, and what differs by the names of tests."""
    folder = tmp_path / "horovod" / "test" / "parallel"
    folder.mkdir(parents=True)
    monkeypatch.setattr(suite, "install_requirements", lambda: tmp_path)
    monkeypatch.setattr(suite, "MAX_RUNS", 2)

    def run(tests):
        (folder / "test_some.py").write_text(tests)
        cores = ["--core", "one", f"COUNT={tmp_path}", "--core", "two", "CHANGED=1", f"COUNT={folder}"]
        places = ["--source", str(tmp_path / "horovod"), "--over", "mpi", "--ranks", "2", "--output", str(tmp_path)]
        status = suite.main([*places, "--quiet-limit", "30", *cores])
        lines = (tmp_path / "summary.txt").read_text().splitlines()
        return status, dict(line.removeprefix("test_some-2-mpi, two, ").split(": ", 1) for line in lines if ":" in line)

    return run


@pytest.mark.matrix(minutes=2)
def test_differences_of_two_cores(run, tmp_path, capsys):
    status, found = run(TESTS)
    assert status == 1
    assert found == {
        "test_fails_on_one_rank": "differs: passed, passed | passed/failed, passed/failed",
        "test_aborts": "differs: passed, passed | aborted, aborted",
        "test_hangs": "differs: passed, passed | hung, hung",
        # The other tests ran after those that aborted and hung, and this one passed the second time.
        "test_fails_once": "flaky: passed, passed | failed/passed, passed",
    }
    (log,) = [path.read_text() for path in tmp_path.glob("two/*/run-1/job-1/log.txt")]
    assert re.search(r"test_some.py.*in test_hangs", log), "the stacks of a rank that hangs are in the log"
    capsys.readouterr()
    assert run(TESTS) == (status, found) and "run 1:" not in capsys.readouterr().out, "results are kept"


def test_the_same_outcomes_end_with_status_0(run, tmp_path):
    assert run("def test_fails(): assert 0\n") == (0, {})
    outcomes = json.loads((tmp_path / "two" / "test_some-2-mpi" / "run-1" / "run.json").read_text())
    assert outcomes == {"test_fails": ["failed", "failed"]}


def test_a_comparison_that_is_stopped_leaves_no_process(run, tmp_path):
    started = tmp_path / "started"
    touch = f"pathlib.Path({str(started)!r}).touch()"

    def stop():
        wait_for(started.exists, 60)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop).start()
    with pytest.raises(KeyboardInterrupt):
        run(f"import pathlib, time\ndef test_waits():\n    {touch}\n    time.sleep(999)\n")
    (job,) = tmp_path.glob("*/*/run-1/job-0")
    assert suite.processes_of(job) == []
    assert not [*job.parent.glob("run.json")], "the case is run again by the next comparison"


def test_wrong_input(tmp_path):
    with pytest.raises(UserError, match="has no tests of these names in test/parallel"):
        suite.cases(tmp_path, [2], ["gloo"], [])
    with pytest.raises(UserError, match="nowhere is no VARIABLE=VALUE, and has no bin/horovodrun"):
        suite.parse_core(["name", "nowhere"])
