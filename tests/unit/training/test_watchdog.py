"""The watchdog in a process of its own, without a framework: what ends the process, and what does not.

All processes start together, as most of their time is waiting.
"""

import json
import signal
import subprocess
import sys
import time

import pytest
from support.jobs import wait_for

PROGRAM = """
import ctypes, pathlib, sys, threading, time
from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.system.phases import LOOP, phases
from hvdtrain.training import timing, watchdog
from hvdtrain.training.watchdog import EVALUATION

watchdog.FORCED_EXIT_S = 1.0

def work(dog):  # for ever
    # The threads that debugpy stops with the one at a breakpoint
    print(*[thread.name for thread in threading.enumerate() if not getattr(thread, "pydev_do_not_trace", False)])
    for step in range(1, 1 << 30):
        dog.progress(step)
        print(step, flush=True)
        time.sleep(0.1)

def evaluate(dog):  # the same step again and again
    while True:
        for batch in range(5):
            dog.progress(1, EVALUATION, batch)
            time.sleep(0.1)
        dog.progress(1)
        print(1, flush=True)

def debug(dog):
    for step in range(1, 1 << 30):
        dog.progress(step)
        print(step, flush=True)
        time.sleep(0.1)
        if step == 12:
            breakpoint()

def keep_lock(dog):
    for step in range(1, 13):  # long enough for the watchdog to notice a step
        dog.progress(step)
        time.sleep(0.1)
    print(step, flush=True)
    ctypes.PyDLL(None).sleep(60)

timer = timing.StepTimer(SingleProcess())
phases.start_run(LOOP, timer.on_step_time)
phases.begin(LOOP)
with watchdog.Watchdog(pathlib.Path(), SingleProcess(), 1.0, timer, lambda: 0) as dog:
    globals()[sys.argv[1]](dog)
"""


class Program:
    """A function of PROGRAM in a process, which ends with the tests of this file."""

    def __init__(self, folder, name):
        self.folder, self.began = folder, time.monotonic()
        with open(folder / "errors", "w") as errors:
            command, pipe = [sys.executable, "-c", PROGRAM, name], subprocess.PIPE
            self.process = subprocess.Popen(command, cwd=folder, stdin=pipe, stdout=pipe, stderr=errors)

    @property
    def errors(self):
        return (self.folder / "errors").read_text()

    def assert_running(self):
        assert self.process.poll() is None, self.errors


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    names = ("work", "debug", "evaluate", "keep_lock")
    started = {name: Program(tmp_path_factory.mktemp(name), name) for name in names}
    yield started
    for program in started.values():
        with program.process as process:
            process.kill()


def test_suspended_process_is_not_ended_and_nothing_stays_behind(programs):
    """Neither when it is resumed, nor after it; its time does not count for the process that watches Python, either."""
    process = programs["work"].process
    assert process.stdout.readline() == b"MainThread\n", "debugpy stops neither heartbeat nor watchdog"
    process.send_signal(signal.SIGSTOP)
    time.sleep(3)
    process.send_signal(signal.SIGCONT)
    time.sleep(1)
    programs["work"].assert_running()
    children = subprocess.check_output(["ps", "--ppid", str(process.pid), "-o", "pid="], text=True).split()
    assert len(children) == 1
    process.kill()
    process.wait()
    command = ["ps", "-p", children[0], "-o", "args="]
    wait_for(lambda: "interpreter_watch" not in subprocess.run(command, capture_output=True, text=True).stdout, 10)


def test_process_at_a_prompt_of_pdb_is_not_ended_and_other_ranks_see_it_work(programs):
    process = programs["debug"].process
    for line in process.stdout:
        if b"(Pdb)" in line or b"breakpoint()" in line or line.startswith(b"> "):
            break
    time.sleep(max(programs["debug"].began + 8 - time.monotonic(), 1))
    programs["debug"].assert_running()
    beat = programs["debug"].folder / "heartbeats" / "rank-0.json"
    assert json.loads(beat.read_text())["idle_s"] < 1
    process.stdin.write(b"c\n")
    process.stdin.flush()
    assert any(line.strip() == b"20" for line in process.stdout)


def test_endless_evaluation_is_ended(programs):
    assert programs["evaluate"].process.wait(60) == 1
    assert "in evaluate, step 1; the stacks of all ranks are in heartbeats" in programs["evaluate"].errors


def test_process_in_which_python_does_not_run_is_ended(programs):
    assert programs["keep_lock"].process.wait(60) in (-signal.SIGQUIT, -signal.SIGKILL)
    report = programs["keep_lock"].errors
    assert "hvdtrain: rank 0: Python has not run for" in report and "in keep_lock" in report
