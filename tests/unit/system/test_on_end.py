"""The command of --on-end: what it is told, and that it can neither hang nor be changed by what it is told."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.jobs import wait_for

from hvdtrain.system import on_end
from hvdtrain.system.run_end import Failure, RunEnd

HOSTILE = "rank 1 on node2: '; touch injected; $(touch injected) `touch injected`\n\x1b[2J\0 https://user:word@host/?token=abc"


def test_the_command_is_told_in_its_environment_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"id": "0123456789abcdef"}')
    secrets = {"HVDTRAIN_TOKEN": "word", "HOROVOD_SECRET_KEY": "word", "HVDTRAIN_SIZE": "2", "RANK": "0", "OMPI_X": "1"}
    for name, value in {**secrets, "NOTICE_HOOK": "kept"}.items():
        monkeypatch.setenv(name, value)
    code = "import json, os; json.dump(dict(os.environ), open('told', 'w'))"
    ended = RunEnd("failed", 137, Failure(HOSTILE, rank=1, stands_alone=True))
    assert on_end.run(f'{sys.executable} -c "{code}"; echo $HVDTRAIN_REASON', ended, Path("run"), 30) == ""
    told = json.loads((tmp_path / "told").read_text())
    assert {
        name: told[f"HVDTRAIN_{name}"] for name in ("STATUS", "EXIT_STATUS", "RUN", "RUN_ID", "RANK", "REASON")
    } == {
        "STATUS": "failed",
        "EXIT_STATUS": "137",
        "RUN": str(tmp_path / "run"),
        "RUN_ID": "0123456789abcdef",
        "RANK": "1",
        "REASON": "rank 1 on node2: '; touch injected; $(touch injected) `touch injected`\\n\\x1b[2J\\x00 https://host/?...",
    }
    assert not told.keys() & secrets.keys() and told["NOTICE_HOOK"] == "kept"
    assert sorted(os.listdir()) == ["run", "told"]


@pytest.mark.parametrize("value", [{}, {"id": "../../etc"}, {"id": 5}, [], "text", "not JSON"])
def test_a_record_without_an_id(tmp_path, value):
    (tmp_path / "config.json").write_text(value if value == "not JSON" else json.dumps(value))
    told = on_end.variables(RunEnd("finished"), tmp_path)
    assert (told["HVDTRAIN_RUN_ID"], told["HVDTRAIN_RANK"], told["HVDTRAIN_REASON"]) == ("", "", "")


def test_a_command_that_does_not_end_is_killed_with_its_processes(tmp_path):
    began, file = time.monotonic(), tmp_path / "alive"
    command = f"(while sleep 0.05; do touch {file}; done) & wait"
    problem = on_end.run(command, RunEnd("finished"), None, 0.5)
    assert problem == "the command of --on-end did not end within 0.5 s, and was killed"
    assert time.monotonic() - began < 5
    file.unlink()
    time.sleep(0.3)
    assert not file.exists()


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("exit 3", "the command of --on-end ended with exit status 3"),
        ("a\0b", "--on-end cannot be started (embedded null byte)"),
        ("x" * (1 << 21), "--on-end cannot be started ([Errno 7] Argument list too long: "),
    ],
)
def test_a_command_that_fails(command, problem):
    assert on_end.run(command, RunEnd("finished"), None, 30).startswith(problem)


def test_a_command_ends_also_where_the_process_that_started_it_was_killed(tmp_path, monkeypatch):
    file, limit = tmp_path / "alive", on_end._limit(1)
    assert limit[1:] == ["--signal=KILL", "6"]
    code = (
        "import sys; from hvdtrain.system import on_end; on_end._limit = lambda _: [*sys.argv[2:], '1']; "
        "on_end.run(sys.argv[1], on_end.RunEnd('failed', 1), None, 30)"
    )
    command = f"while sleep 0.05; do touch {file}; done"
    process = subprocess.Popen([sys.executable, "-c", code, command, *limit[:2]])
    wait_for(file.exists, 30)
    process.kill()
    process.wait()
    file.unlink()
    wait_for(file.exists, 5)
    time.sleep(1.5)
    file.unlink()
    time.sleep(0.3)
    assert not file.exists()
