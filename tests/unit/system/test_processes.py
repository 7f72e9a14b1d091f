"""Which process of a program gets a request to stop: children of a process that a test starts, as an agent does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

FIND = """
import subprocess, sys
from hvdtrain.system.processes import handling
program = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE)
program.stdout.readline()
found = handling(int(sys.argv[1]))
print("none" if not found else "program" if found == [program.pid] else "another", flush=True)
"""
WAITS = "print(flush=True); time.sleep(60)"
WORKER = f"""
import os, signal, time
if not os.fork():
    signal.signal(signal.SIGTERM, HANDLER)
    {WAITS}
time.sleep(60)
"""
HANDLES = f"import signal, time; signal.signal(signal.SIGTERM, lambda *_: None); {WAITS}"
STARTS = f"import subprocess, sys; subprocess.call([sys.executable, '-c', {HANDLES!r}])"
SPAWNS = (
    f"import multiprocessing; multiprocessing.get_context('spawn').Process(target=exec, args=({HANDLES!r},)).start()"
)


@pytest.mark.parametrize(
    ("command", "number", "found"),
    [
        ([sys.executable, "-c", HANDLES], signal.SIGTERM, "program"),
        ([sys.executable, "-c", f"import time; {WAITS}"], signal.SIGTERM, "none"),
        ([sys.executable, "-c", STARTS], signal.SIGTERM, "another"),
        ([sys.executable, "-c", SPAWNS], signal.SIGTERM, "none"),
        ([sys.executable, "-c", WORKER.replace("HANDLER", "lambda *_: None")], signal.SIGTERM, "none"),
        ([sys.executable, "-c", WORKER.replace("HANDLER", "signal.SIG_IGN")], signal.SIGTERM, "none"),
        (["sh", "-c", f"{sys.executable} -c '{HANDLES}'; true"], signal.SIGTERM, "another"),
        (["sh", "-c", f"sleep 60 & {sys.executable} -c 'import time; {WAITS}'; true"], signal.SIGINT, "another"),
        (["sh", "-c", "trap : TERM; echo; sleep 60"], signal.SIGTERM, "program"),
        (["sh", "-c", "trap '' TERM; echo; sleep 60"], signal.SIGTERM, "none"),
        (["sh", "-c", "trap : INT; echo; sleep 60"], signal.SIGINT, "none"),
    ],
)
def test_the_process_that_handles_a_signal_is_found(command, number, found):
    finding = [sys.executable, "-c", FIND, str(int(number)), *command]
    root = Path(__file__).parents[3]
    with subprocess.Popen(finding, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=root) as process:
        try:
            assert process.stdout.readline() == f"{found}\n"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
