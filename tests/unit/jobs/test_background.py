"""The clock of limits that a suspended job does not exceed."""

import os
import signal
import subprocess
import sys
import time

SLEEPER = """
import asyncio, time
from hvdtrain.jobs import background
from hvdtrain.system import processes

background.TICK_S, processes.SUSPENDED_S = 0.1, 0.4

async def main():
    began = time.monotonic()
    print("begun", flush=True)
    await background.sleep(2)
    print(time.monotonic() - began, flush=True)

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
    took_s = float(process.communicate(timeout=60)[0])
    assert took_s > SUSPENDED_S + 1.4  # 2 s, of which at most 0.4 s and a tick are of the suspension
    assert process.returncode == 0
