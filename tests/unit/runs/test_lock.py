"""The lock of a run's folder: which process acquires it, waits for it or loses it; so some tests need processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from support.jobs import wait_for

from hvdtrain.errors import UserError
from hvdtrain.runs import lock
from hvdtrain.runs.lock import RunLock

HOLD = """
import sys, time
from pathlib import Path
from hvdtrain.runs.lock import RunLock
held = RunLock()
try:
    held.acquire(Path(sys.argv[1]))
    print("held", flush=True)
    time.sleep(600)
except Exception as error:
    print(error, flush=True)
"""


@contextlib.contextmanager
def holders(folder, count=1):
    """Processes that try to hold the lock, all at the same time, each with the first line that it prints."""
    started = [
        subprocess.Popen([sys.executable, "-c", HOLD, folder], stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    try:
        yield [(process, process.stdout.readline().strip()) for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def write_lock(folder, age_s=0.0, number=1, **changes):
    """A lock file that a process on another host touched `age_s` seconds ago, by the file system's clock."""
    holder = lock.Holder.this_process()
    elsewhere = replace(holder.process, host="node9", place="node9 boot pid", pid=12)
    path = folder / f"lock-{number}.json"
    path.write_text(replace(holder, process=elsewhere, token="theirs", **changes).to_json())
    touched = path.stat().st_mtime - age_s
    os.utime(path, (touched, touched))
    return path


@pytest.fixture
def short(monkeypatch):
    """All times are a twentieth."""
    for name in ("HEARTBEAT_S", "STALE_S", "POLL_S"):
        monkeypatch.setattr(lock, name, getattr(lock, name) / 20)


def test_one_of_many_gets_it(tmp_path):
    with holders(tmp_path, 4) as tried:
        (winner,) = [process for process, line in tried if line == "held"]
        others = [line for process, line in tried if process is not winner]
    refused = f"{tmp_path} is in use by process {winner.pid} on "
    assert all(line.startswith(refused) and "choose another --name" in line for line in others), others


def test_a_holder_that_is_writing_its_file_is_named(tmp_path, monkeypatch):
    """The other process has created the file, and writes it after this one has read it."""
    path, read = tmp_path / "lock-1.json", lock._read
    path.touch()
    os.utime(path, (1, 1))

    def written_later(path):
        monkeypatch.setattr(lock, "_read", read)
        path.write_text(lock.Holder.this_process().to_json())

    monkeypatch.setattr(lock, "_read", written_later)
    with pytest.raises(UserError, match=f"is in use by process {os.getpid()} on"):
        RunLock().acquire(tmp_path)


def test_suspended_holder_keeps_it_and_a_killed_one_does_not(tmp_path):
    with holders(tmp_path) as [(process, line)]:
        assert line == "held"
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(UserError, match=f"is in use by process {process.pid} on"):
            RunLock().acquire(tmp_path)
        process.kill()
        process.wait()
        began = time.monotonic()
        with RunLock() as own:
            own.acquire(tmp_path)
            own.check()
        assert time.monotonic() - began < lock.STALE_S / 3


def same_pid(folder):
    """The file of a process that has ended, and whose number this process has got."""
    own = lock.Holder.this_process()
    earlier = replace(own, process=replace(own.process, started=own.process.started - 1), token="theirs")
    (folder / "lock-1.json").write_text(earlier.to_json())


@pytest.mark.parametrize(
    "write",
    [same_pid, lambda folder: write_lock(folder, 2 * lock.STALE_S), lambda folder: write_lock(folder, job="this")],
    ids=["a process of the same number", "a host that is silent for long", "an attempt of this job"],
)
def test_who_does_not_hold_it_is_not_waited_for(tmp_path, monkeypatch, caplog, write):
    monkeypatch.setenv("HVDTRAIN_JOB", "this")
    write(tmp_path)
    began = time.monotonic()
    with RunLock() as own:
        own.acquire(tmp_path)
    assert time.monotonic() - began < lock.STALE_S / 3 and not caplog.messages


def test_released_lock_is_free_and_its_file_stays(tmp_path):
    for number in (1, 2):
        with RunLock() as own:
            own.acquire(tmp_path)
        (path,) = tmp_path.iterdir()
        assert path.name == f"lock-{number}.json" and json.loads(path.read_text())["released"]


def test_process_on_another_host_is_waited_for(tmp_path, short, caplog):
    """Also where the file system's clock was set back, so that the lock seems to be of the future."""
    write_lock(tmp_path, age_s=-1e6)
    began = time.monotonic()
    with RunLock() as own:
        own.acquire(tmp_path)
    assert time.monotonic() - began > lock.STALE_S * 0.9
    assert "may be in use by process 12 on node9" in caplog.text and "waiting up to 2 s for a sign of it" in caplog.text


def test_process_on_another_host_that_touches_it_keeps_it(tmp_path, short):
    path = write_lock(tmp_path)
    touching = threading.Timer(0.2, path.touch)
    touching.start()
    with pytest.raises(UserError, match="in use by process 12 on node9"):
        RunLock().acquire(tmp_path)
    touching.join()


@pytest.mark.parametrize(
    ("lose", "reason"),
    [
        (lambda folder: (folder / "lock-1.json").unlink(), "lock-1.json was removed"),
        (lambda folder: write_lock(folder, number=7), "process 12 on node9 .* took it over"),
        (lambda folder: write_lock(folder, number=1), "process 12 on node9 .* took it over"),
    ],
)
def test_holder_that_loses_it_writes_nothing_more(tmp_path, lose, reason):
    own = RunLock()
    own.acquire(tmp_path)
    own.check()
    lose(tmp_path)
    before = {path: path.read_text() for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match=f"{reason}.* while this job ran, so it ends without writing"):
        own.check()
    own.release()
    assert before == {path: path.read_text() for path in tmp_path.iterdir()}


def test_heartbeat_finds_the_loss(tmp_path, short):
    with RunLock() as own:
        own.acquire(tmp_path)
        first = (tmp_path / "lock-1.json").stat().st_mtime_ns
        wait_for(lambda: (tmp_path / "lock-1.json").stat().st_mtime_ns > first, 30)
        own.check(within_s=600)
        write_lock(tmp_path, number=2)

        def lost():
            with contextlib.suppress(UserError):
                own.check(within_s=600)
                return False
            return True

        wait_for(lost, 30)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"process": {}}', '{"process": {"pid": "../1"}}', "\0\x1b[31m"])
def test_any_content_of_a_lock_file(tmp_path, short, content):
    path = tmp_path / "lock-1.json"
    path.write_text(content)
    os.utime(path, (0, 0))
    with RunLock() as own:
        own.acquire(tmp_path)


def test_folder_that_is_gone_is_not_a_lost_lock(tmp_path):
    """Whoever writes there next says so."""
    folder = tmp_path / "run"
    folder.mkdir()
    with RunLock() as own:
        own.acquire(folder)
        folder.rename(tmp_path / "moved")
        own.check()


def test_folder_that_cannot_be_written(tmp_path):
    with pytest.raises(UserError, match=r"its lock cannot be created \(No such file or directory\)"):
        RunLock().acquire(tmp_path / "missing")
