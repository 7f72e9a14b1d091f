"""The watchdog in a process of its own, without a framework: what ends the process, and what does not."""

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

def list_stopped_threads(dog):  # those that debugpy stops with the one at a breakpoint
    stopped = [thread.name for thread in threading.enumerate() if not getattr(thread, "pydev_do_not_trace", False)]
    print(*stopped, flush=True)

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


@pytest.fixture
def start(tmp_path):
    """Starts a function of PROGRAM, and returns its process once it has made a step."""
    processes = []

    def begin(name):
        errors = open(tmp_path / "errors", "w")  # noqa: SIM115  (the process has it)
        command = [sys.executable, "-c", PROGRAM, name]
        process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        processes.append(process)
        assert process.stdout.readline()
        return process

    yield begin
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def test_suspended_process_is_not_ended(start, tmp_path):
    """Neither when it is resumed, nor after it; its time does not count for the process that watches Python, either."""
    process = start("work")
    process.send_signal(signal.SIGSTOP)
    time.sleep(3)
    process.send_signal(signal.SIGCONT)
    time.sleep(1)
    assert process.poll() is None, (tmp_path / "errors").read_text()


def test_process_at_a_prompt_of_pdb_is_not_ended_and_other_ranks_see_it_work(start, tmp_path):
    process = start("debug")
    for line in process.stdout:
        if b"(Pdb)" in line or b"breakpoint()" in line or line.startswith(b"> "):
            break
    time.sleep(4)
    assert process.poll() is None, (tmp_path / "errors").read_text()
    assert json.loads((tmp_path / "heartbeats" / "rank-0.json").read_text())["idle_s"] < 1
    process.stdin.write(b"c\n")
    process.stdin.flush()
    assert any(line.strip() == b"20" for line in process.stdout)


def test_debugpy_stops_neither_heartbeat_nor_watchdog(tmp_path):
    command = [sys.executable, "-c", PROGRAM, "list_stopped_threads"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout.split() == ["MainThread"]


def test_endless_evaluation_is_ended(start, tmp_path):
    process = start("evaluate")
    assert process.wait(60) == 1
    assert "in evaluate, step 1; the stacks of all ranks are in heartbeats" in (tmp_path / "errors").read_text()


def test_process_in_which_python_does_not_run_is_ended(start, tmp_path):
    process = start("keep_lock")
    assert process.wait(60) in (-signal.SIGQUIT, -signal.SIGKILL)
    report = (tmp_path / "errors").read_text()
    assert "hvdtrain: rank 0: Python has not run for" in report
    assert "in keep_lock" in report


def test_nothing_stays_behind(start):
    process = start("work")
    children = subprocess.check_output(["ps", "--ppid", str(process.pid), "-o", "pid="], text=True).split()
    assert len(children) == 1
    process.kill()
    process.wait()
    command = ["ps", "-p", children[0], "-o", "args="]
    wait_for(lambda: "interpreter_watch" not in subprocess.run(command, capture_output=True, text=True).stdout, 10)
