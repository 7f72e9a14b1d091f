"""The clock of limits that a suspended job does not exceed."""

import os
import signal
import subprocess
import sys
import time

SLEEPER = """
import asyncio
from hvdtrain.jobs import background
from hvdtrain.system import processes

background.TICK_S, processes.SUSPENDED_S = 0.1, 0.4

async def main():
    print("begun", flush=True)
    await background.sleep(2)
    print("passed", flush=True)

asyncio.run(main())
"""
SUSPENDED_S = 3


def test_sleep_does_not_count_suspended_time():
    process = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "begun\n"
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(SUSPENDED_S)
    os.kill(process.pid, signal.SIGCONT)
    resumed = time.monotonic()
    assert process.communicate(timeout=60)[0] == "passed\n"
    # 2 s, less at most 0.4 s of the suspension and what passed before it.
    assert time.monotonic() - resumed > 0.3
    assert process.returncode == 0
