"""Files of runs, which others may have written; the record of a run's end; and the command of --on-end.

Processes: the command of --on-end is one, and one test kills the process that started it.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.jobs import wait_for

from hvdtrain.config.sources import recorded
from hvdtrain.errors import Stopped, TrainingError, UserError
from hvdtrain.runs import metrics
from hvdtrain.system import run_end
from hvdtrain.system.files import LINES_BYTES, RECORD_BYTES, Damaged, read_json, read_record
from hvdtrain.system.rank_info import host_name
from hvdtrain.system.run_end import Failure, RunEnd, last_step

FAILED = RunEnd(
    *("failed", 137),
    Failure("rank 1 on node1 was killed", rank=1, host="node1", stands_alone=True, traceback=("Traceback", "  File")),
    12.5,
)


def test_what_is_written_is_read(tmp_path):
    FAILED.write(tmp_path)
    assert RunEnd.read(tmp_path) == FAILED
    RunEnd("finished").write(tmp_path, replace=False)
    assert RunEnd.read(tmp_path) == FAILED, "the first one stays"
    RunEnd.remove(tmp_path)
    assert RunEnd.read(tmp_path) is None
    FAILED.write(tmp_path / "gone")
    assert not (tmp_path / "gone").exists(), "there is no folder"


CHANGES = [
    {"status": "unknown"}, {"status": ["failed"]}, {"exit_status": "1"}, {"exit_status": True},
    {"failure": {"reason": None}}, {"failure": {"rank": 1.5}}, {"failure": "x"}, {"time": "now"},
    {"time": float("inf")}, {"time": 10**400},
]  # fmt: skip


def test_what_is_never_written_is_no_end(tmp_path):
    other = ["", "[]", "[1", '"failed"', "7", "{}", "null"]
    for text in [json.dumps({**FAILED.record(), **change}) for change in CHANGES] + other:
        (tmp_path / "end.json").write_text(text)
        assert RunEnd.read(tmp_path) is None, text


@pytest.mark.parametrize(
    ("error", "status", "rank", "host"),
    [
        (Stopped("rank 1 was asked to stop", rank=1), ("stopped", 75), None, ""),
        (TrainingError("rank 3: loss is not finite", rank=3, step=7), ("failed", 1), 3, ""),
        (TrainingError("the disk is full"), ("failed", 1), 0, host_name()),
        (UserError("--lr 0: must be above 0", option="lr"), ("failed", 2), 0, host_name()),
        (KeyError("x"), ("failed", 1), 0, host_name()),
        (KeyboardInterrupt(), ("stopped", 130), None, ""),
    ],
)
def test_errors_of_a_rank(error, status, rank, host, tmp_path):
    end = RunEnd.of_exception(error).on_rank(0, size=4)
    assert ((end.status, end.exit_status), end.rank, end.host) == (status, rank, host)
    end.write(tmp_path)
    assert end.reason.startswith(f"rank 0 on {host_name()}: ") == (getattr(error, "rank", None) is None)
    assert not RunEnd.of_exception(error).on_rank(0, size=1).reason.startswith("rank 0")
    read = RunEnd.read(tmp_path)
    assert (read.status, read.reason, read.rank, read.host) == (end.status, end.reason, end.rank, end.host)
    assert read.failure.option == getattr(error, "option", "")
    assert read.failure.step == getattr(error, "step", None)


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
    assert run_end.run_on_end(f'{sys.executable} -c "{code}"; echo $HVDTRAIN_REASON', ended, Path("run"), 30) == ""
    told = json.loads((tmp_path / "told").read_text())
    expected = {
        "STATUS": "failed",
        "EXIT_STATUS": "137",
        "RUN": str(tmp_path / "run"),
        "RUN_ID": "0123456789abcdef",
        "RANK": "1",
        "REASON": "rank 1 on node2: '; touch injected; $(touch injected) `touch injected`\\n\\x1b[2J\\x00 https://host/?...",
    }
    assert {name: told[f"HVDTRAIN_{name}"] for name in expected} == expected
    assert not told.keys() & secrets.keys() and told["NOTICE_HOOK"] == "kept"
    assert sorted(os.listdir()) == ["run", "told"]


NOTIFIES = """
from pathlib import Path
from hvdtrain.system.run_end import Failure, RunEnd, run_on_end
end = RunEnd("failed", 1, Failure("caf\\u00e9 \\u4e2d"))
assert not run_on_end("printf %s \\"$HVDTRAIN_REASON\\" > told", end, Path("run"), 30)
"""


@pytest.mark.parametrize(("encoding", "told"), [("utf-8", "café 中"), ("ascii", r"caf\xe9 \u4e2d")])
def test_the_command_is_told_reasons_that_its_locale_lacks(tmp_path, encoding, told):
    """Needs a process, as Python decides at its start how names of files are encoded."""
    variables = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": str(int(encoding == "utf-8"))}
    subprocess.run([sys.executable, "-c", NOTIFIES], cwd=tmp_path, env={**os.environ, **variables}, check=True)
    assert (tmp_path / "told").read_text(encoding) == told


@pytest.mark.parametrize("text", ["{}", '{"id": "../../etc"}', '{"id": 5}', "[]", '"text"', "not JSON"])
def test_a_record_without_an_id(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    told = run_end.on_end_variables(RunEnd("finished"), tmp_path)
    assert (told["HVDTRAIN_RUN_ID"], told["HVDTRAIN_RANK"], told["HVDTRAIN_REASON"]) == ("", "", "")


def is_touched(file):
    file.unlink(missing_ok=True)
    time.sleep(0.3)
    return file.exists()


def test_a_command_that_does_not_end_is_killed_with_its_processes(tmp_path):
    file = tmp_path / "alive"
    command = f"(while sleep 0.05; do touch {file}; done) & wait"
    problem = run_end.run_on_end(command, RunEnd("finished"), None, 1)
    assert problem == "the command of --on-end did not end within 1 s, and was killed"
    assert not is_touched(file)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("exit 3", "the command of --on-end ended with exit status 3"),
        ("a\0b", "--on-end cannot be started (embedded null byte)"),
        ("x" * (1 << 21), "--on-end cannot be started ([Errno 7] Argument list too long: "),
    ],
)
def test_a_command_that_fails(command, problem):
    assert run_end.run_on_end(command, RunEnd("finished"), None, 30).startswith(problem)


def test_a_command_ends_also_where_the_process_that_started_it_was_killed(tmp_path):
    """A `timeout` on PATH takes a second in place of the seconds that it is given."""
    file, given, timeout = (tmp_path / name for name in ("alive", "given", "timeout"))
    timeout.write_text(f'#!/bin/sh\necho "$1 $2" > {given}\nshift 2\nexec {shutil.which("timeout")} -s KILL 1 "$@"\n')
    timeout.chmod(0o755)
    code = (
        "import sys; from hvdtrain.system import run_end; "
        "run_end.run_on_end(sys.argv[1], run_end.RunEnd('failed', 1), None, 30)"
    )
    command = f"while sleep 0.05; do touch {file}; done"
    variables = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.Popen([sys.executable, "-c", code, command], env=variables)
    wait_for(file.exists, 30)
    process.kill()
    process.wait()
    wait_for(lambda: not is_touched(file), 30)
    assert given.read_text() == "--signal=KILL 35\n"


def test_a_record_that_is_too_large_or_no_file_is_not_read(tmp_path):
    path = tmp_path / "config.json"
    for make in (lambda: path.touch(), lambda: os.mkfifo(path)):
        make()
        if path.is_file():
            os.truncate(path, RECORD_BYTES + 1)
        with pytest.raises(OSError, match=r"larger than 16 MiB|not a regular file"):
            read_json(path)
        with pytest.raises(UserError, match=r"no valid config\.json"):
            recorded(tmp_path)
        with pytest.raises(Damaged, match="cannot be read"):
            read_record(path, dict)
        path.unlink()
    heartbeat = tmp_path / "heartbeats" / "rank-0.json"
    heartbeat.parent.mkdir()
    os.mkfifo(heartbeat)
    assert last_step(tmp_path, 0) is None
    metrics_file = tmp_path / "metrics.jsonl"
    metrics_file.touch()
    os.truncate(metrics_file, LINES_BYTES + 1)
    with pytest.raises(OSError, match="larger than 1024 MiB"):
        metrics.read(metrics_file)
