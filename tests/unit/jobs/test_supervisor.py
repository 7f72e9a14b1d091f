"""Errors in the launcher itself, signals to it, and its clock of limits."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

from hvdtrain.jobs.signals import HANDLED, Request, Signals, StopRequests, signal_within

HANDLERS = ["_register_rank", "_on_message", "_on_disconnect", "_on_time_limit"]
BROKEN = """
import sys
from unittest import mock
from hvdtrain.jobs.job import Job, RestartPolicy
from hvdtrain.jobs.run import run
from hvdtrain.jobs.supervisor import Supervisor

for handler in sys.argv[1:]:
    limit_s = 0.1 if handler == "_on_time_limit" else None
    job = Job(("sleep", "0.3"), 1, interface="lo", time_limit_s=limit_s)
    with mock.patch.object(Supervisor, handler, side_effect=LookupError(handler)):
        print(handler, run("local", job, RestartPolicy()).exit_status, flush=True)
"""


def test_a_handler_that_fails_ends_the_job():
    """Otherwise it would wait for an end that it has missed. Needs a process of its own, whose signals it handles."""
    done = subprocess.run([sys.executable, "-c", BROKEN, *HANDLERS], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [f"{handler} 1" for handler in HANDLERS], done.stderr
    for handler in HANDLERS:
        assert f"hvdtrain: the launcher failed: LookupError: {handler}" in done.stderr


def test_repeated_signals():
    requests = StopRequests()
    assert requests.judge(signal.SIGTERM, 10) == Request.NEW
    assert requests.judge(signal.SIGTERM, 12.9) == Request.SAME
    assert requests.judge(signal.SIGINT, 13) == Request.NEW
    assert requests.judge(signal.SIGINT, 13.1) == Request.SAME
    assert requests.judge(signal.SIGINT, 13.3) == Request.REPEATED
    assert requests.judge(signal.SIGTERM, 13.1) == Request.REPEATED
    assert [requests.judge(signal.SIGUSR1, 10 + seconds) for seconds in (0, 1, 9)] == [Request.NEW] * 3


def test_a_signal_between_attempts_is_not_lost():
    async def check():
        signals = Signals()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)
        assert await signal_within(signals, 5) == signal.SIGTERM
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
        assert await signal_within(signals, 5) == signal.SIGINT
        assert await signal_within(signals, 0.05) == 0

    before = {number: signal.getsignal(number) for number in HANDLED}
    try:
        asyncio.run(check())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


SUSPENDED_S = 1.2
SLEEPER = """
import asyncio, time
from hvdtrain.jobs import background
from hvdtrain.system import processes

background.TICK_S, processes.SUSPENDED_S = 0.05, 0.2

async def main():
    began = time.monotonic()
    print("begun", flush=True)
    await background.sleep(0.6)
    print(time.monotonic() - began, flush=True)

asyncio.run(main())
"""


def test_sleep_does_not_count_suspended_time():
    """Needs a process that is suspended."""
    process = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "begun\n"
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(SUSPENDED_S)
    os.kill(process.pid, signal.SIGCONT)
    took_s = float(process.communicate(timeout=60)[0])
    assert took_s > SUSPENDED_S + 0.3  # 0.6 s, of which at most 0.2 s and a tick are of the suspension
    assert process.returncode == 0
