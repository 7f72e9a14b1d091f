"""Jobs one after the other: why they failed, their time limit; and the launcher's errors, signals and clock."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from support.jobs import ROOT, wait_for

from hvdtrain.jobs import event_loop
from hvdtrain.jobs.event_loop import Signals
from hvdtrain.jobs.series import JobSeries, SeriesJob
from hvdtrain.system import processes


def job(tmp_path, name, code):
    return SeriesJob(name, [sys.executable, "-c", code], tmp_path / f"{name}.log")


def test_reasons_of_failures(tmp_path, capsys):
    say = "from hvdtrain.system.agent_pipe import Failure, OpenedRun, send; "
    launcher = say + "send(Failure('no such host', 'check it')); print('hvdtrain: ended'); raise SystemExit(2)"
    ranks = say + "send(OpenedRun('/a', True)); "
    ranks += "send(Failure('lost', rank=1, host='node1')); send(Failure('bad')); raise SystemExit(1)"
    jobs = [
        job(tmp_path, "good", "print('fine')"),
        job(tmp_path, "launcher", launcher),
        job(tmp_path, "ranks", ranks),
        job(tmp_path, "silent", "raise SystemExit(7)"),
    ]
    reasons = list(JobSeries(os.environ).run(jobs))
    assert [one.partition(" (its output")[0] for one in reasons] == [
        "", "no such host; check it", "rank 1 on node1: lost", "exit status 7",
    ]  # fmt: skip
    assert {path.name for path in tmp_path.iterdir()} == {"launcher.log", "ranks.log", "silent.log"}
    assert (tmp_path / "launcher.log").read_text() == "hvdtrain: ended\nhvdtrain: no such host; check it\n"
    assert "[4/4] silent" in capsys.readouterr().err


def test_time_limit_ends_a_job_and_the_next_one_can_still_be_stopped(tmp_path):
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    series = JobSeries(os.environ, limit_s=2.0, grace_s=0.1).run([job(tmp_path, name, deaf) for name in ("a", "b")])
    assert next(series).startswith("no end within 2 s")
    stop = signal.getsignal(signal.SIGTERM)
    assert callable(stop)
    with pytest.raises(SystemExit) as ended:
        stop(signal.SIGTERM, None)
    assert ended.value.code == 128 + signal.SIGTERM
    series.close()


def test_sigusr1_lets_the_running_job_end_and_asks_for_another_start(tmp_path):
    """As before the time limit of a batch job."""
    polite = "import os, signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); "
    polite += "os.kill(os.getppid(), signal.SIGUSR1); time.sleep(60)"
    with pytest.raises(SystemExit) as ended:
        list(JobSeries(os.environ).run([job(tmp_path, "a", polite), job(tmp_path, "b", "print('not started')")]))
    assert ended.value.code == 75
    assert {path.name for path in tmp_path.iterdir()} == {"a.log"}


SAVES = """
import pathlib, signal, sys, time
def stop(*_):
    time.sleep(0.4)
    pathlib.Path("saved").touch()
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
pathlib.Path("running").touch()
time.sleep(60)
"""
SERIES = "import os, sys; from pathlib import Path; from hvdtrain.jobs.series import *; "
SERIES += "list(JobSeries(os.environ).run([SeriesJob('a', [sys.executable, 'job.py'], Path('a.log'))]))"


@pytest.fixture
def other(tmp_path, monkeypatch):
    """A series in another process, whose job runs, and saves its work for a moment when it is asked to stop."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(SAVES)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", SERIES], env=environment, stderr=subprocess.DEVNULL)
    wait_for((tmp_path / "running").exists, 30)
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGQUIT, signal.SIGTERM])
def test_the_job_of_a_killed_series_stops_and_the_next_series_waits_for_it(other, tmp_path, end, capfd):
    """The next one would otherwise find the run in use, and train the one after it at the same time."""
    other.send_signal(end)
    saved = []

    def prepare():
        saved.append((tmp_path / "saved").exists())
        return True

    job = SeriesJob("a", [sys.executable, "-c", "print('continued'); raise SystemExit(3)"], tmp_path / "a.log", prepare)
    (reason,) = JobSeries(os.environ).run([job])
    assert (saved, reason.partition(" (")[0]) == ([True], "exit status 3")
    assert (tmp_path / "a.log").read_text() == "continued\n"
    assert "waiting: " in capfd.readouterr().err


def test_a_process_that_a_job_left_behind_keeps_no_later_series(tmp_path):
    left = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid); raise SystemExit(3)"
    pids = []
    for _ in range(2):
        (reason,) = JobSeries(os.environ, limit_s=20).run([job(tmp_path, "a", left)])
        pids.append(int((tmp_path / "a.log").read_text()))
        assert reason.startswith("exit status 3 (")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_a_job_that_another_series_has_run_meanwhile_is_not_run_again(other, tmp_path):
    os.kill(other.pid, signal.SIGKILL)
    job = SeriesJob("a", ["/missing"], tmp_path / "a.log", lambda: not (tmp_path / "saved").exists())
    assert list(JobSeries(os.environ).run([job])) == [""]
    assert not (tmp_path / "a.log").exists()


def test_a_job_is_watched_while_it_runs_and_its_end_may_be_excused(tmp_path, capsys):
    stop = tmp_path / "stop"
    waits = "import os, time\nwhile not os.path.exists('stop'): time.sleep(0.02)\nraise SystemExit(75)"
    looks = []

    def watch():
        looks.append(stop.exists())
        stop.touch()

    excused = job(tmp_path, "a", waits)._replace(watch=watch, excuse=lambda: "stopped on purpose")
    excused = excused._replace(command=["env", "-C", str(tmp_path), *excused.command])
    series = JobSeries(os.environ, limit_s=20)
    drawn = iter([excused, job(tmp_path, "b", "raise SystemExit(7)")])
    assert [reason.partition(" (")[0] for reason in series.run(drawn, 9)] == ["", "exit status 7"]
    printed = capsys.readouterr().err
    assert looks[0] is False and "    stopped on purpose\n" in printed and "[2/9] b" in printed
    assert not (tmp_path / "a.log").exists()
    late = job(tmp_path, "c", "import time; time.sleep(60)")._replace(watch=lambda: None)
    (reason,) = JobSeries(os.environ, limit_s=0.2, grace_s=0.1).run([late])
    assert "no end within 0.2 s" in reason


HANDLERS = ["_register_rank", "_on_message", "_on_connection_end", "_on_process_end"]
BROKEN = """
import sys
from unittest import mock
from hvdtrain.jobs.job import Job
from hvdtrain.jobs.run import run
from hvdtrain.jobs.supervisor import Supervisor

for handler in sys.argv[1:]:
    job = Job(("sleep", "0.3"), 1, interface="lo")
    with mock.patch.object(Supervisor, handler, side_effect=LookupError(handler)):
        print(handler, run(job).exit_status, flush=True)
"""


def test_a_handler_that_fails_ends_the_job():
    """Otherwise it would wait for an end that it has missed. Needs a process of its own, whose signals it handles."""
    done = subprocess.run([sys.executable, "-c", BROKEN, *HANDLERS], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [f"{handler} 1" for handler in HANDLERS], done.stderr
    for handler in HANDLERS:
        assert f"hvdtrain: the launcher failed: LookupError: {handler}" in done.stderr


def test_repeated_signals(monkeypatch):
    """SIGTERM within 3 s and SIGINT within 0.2 s are the same request; SIGUSR1 never asks for the end at once."""
    received = []

    async def check():
        signals = Signals()
        with signals.handled_by(lambda number, repeated: received.append((number, repeated))):
            for number, at in sent:
                monkeypatch.setattr(event_loop, "time", SimpleNamespace(monotonic=lambda at=at: at))
                signals._deliver(number)

    term, interrupt, usr1 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1
    sent = [(term, 10), (term, 12.9), (interrupt, 13), (interrupt, 13.1), (interrupt, 13.3), (term, 13.1)]
    sent += [(usr1, 10), (usr1, 20)]
    asyncio.run(check())
    assert received == [
        (term, False),
        (interrupt, False),
        (interrupt, True),
        (term, True),
        (usr1, False),
        (usr1, False),
    ]


def test_a_signal_between_attempts_is_not_lost():
    """One that arrives before somebody waits for it, meanwhile, and before the next attempt begins."""

    async def check():
        signals, received = Signals(), []
        assert await signals.within(0.05) == 0
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
        assert await signals.within(5) == signal.SIGINT
        for number in (signal.SIGHUP, signal.SIGUSR1):
            signals = Signals()
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.05)
            with signals.handled_by(lambda *given: received.append(given)):
                assert await signals.within(5) == received[-1][0]
        assert received == [(signal.SIGTERM, False), (signal.SIGUSR1, False)]

    asyncio.run(check())


def test_sleep_does_not_count_suspended_time(monkeypatch):
    """But for the first 0.2 s; two hours pass in the second of its pauses."""
    now, pauses = [0.0], []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += 7200.0 if len(pauses) == 2 else seconds

    monkeypatch.setattr(event_loop, "TICK_S", 0.05)
    monkeypatch.setattr(processes, "SUSPENDED_S", 0.2)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(asyncio, "sleep", pause)
    asyncio.run(event_loop.sleep(0.6))
    assert sum(pauses) == pytest.approx(0.6 - 0.2 + 0.05)
