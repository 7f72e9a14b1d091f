"""Which ranks run, from files that others may write at any time, and the watchdog in a process of its own.

A process shows what the watchdog ends, and what not. All start together, as most of their time is waiting.
"""

import itertools
import json
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
from support.jobs import running, wait_for
from support.untrusted import save_checkpoint

from hvdtrain.runs import checkpoints
from hvdtrain.system import files
from hvdtrain.training import heartbeats
from hvdtrain.training.heartbeats import Heartbeat, Heartbeats, Observation, explain, state_of

PROGRAM = """
import ctypes, pathlib, sys, threading, time
from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.system.phases import LOOP, phases
from hvdtrain.training import timing, watchdog
from hvdtrain.training.watchdog import EVALUATION

watchdog.FORCED_EXIT_S = 1.0

def work(dog, breaks_at=0):  # for ever
    # The threads that debugpy stops with the one at a breakpoint
    print(*[thread.name for thread in threading.enumerate() if not getattr(thread, "pydev_do_not_trace", False)])
    for step in range(1, 1 << 30):
        dog.progress(step)
        print(step, flush=True)
        time.sleep(0.1)
        if step == breaks_at:
            breakpoint()

def evaluate(dog):  # the same step again and again
    while True:
        for batch in range(5):
            dog.progress(1, EVALUATION, batch)
            time.sleep(0.1)
        dog.progress(1)
        print(1, flush=True)

def debug(dog):
    work(dog, 12)

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
    (child,) = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    wait_for(lambda: not running(child.pid), 10)


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


@pytest.fixture
def observer(tmp_path):
    """Rank 0 of three; rank 1 runs, with a clock that is an hour ahead, and rank 2 has stopped."""

    def of(rank):
        def current(number):
            return Heartbeat(rank, 10 + rank, "host", 7, "step", True, 0.0, number, time.time() + 3600 * rank)

        return Heartbeats(tmp_path, rank, lambda: range(3), current)

    running, stopped = of(1), of(2)
    for beats in (running, stopped):
        beats.start()
    stopped.stop(10)
    yield of(0)
    running.stop(10)


def test_only_a_rank_whose_heartbeat_does_not_change_is_silent(observer, monkeypatch):
    monkeypatch.setattr(heartbeats, "SILENT_S", 1.5)
    seen = observer.observe()
    assert (seen.living, seen.silent) == ([0, 1], {2})


def test_slow_folder_gets_more_time(tmp_path, monkeypatch):
    """A heartbeat that takes a second in this rank may take a second in others."""
    written = threading.Event()

    def write(*_):
        if threading.current_thread() is not threading.main_thread():
            time.sleep(1.5)
            written.set()

    monkeypatch.setattr(heartbeats, "write_atomically", write)
    slow = Heartbeats(tmp_path, 0, lambda: [0], lambda number: Heartbeat(0, 1, "host", 7, "step", True, 0.0, number))
    slow.start()
    assert slow.silent_s == heartbeats.SILENT_S
    assert written.wait(30)
    slow.stop(10)
    assert slow.silent_s > heartbeats.SILENT_S


def beat(rank, step=7, doing="step", idle_s=40.0):
    return Heartbeat(rank, 10 + rank, f"host{rank}", step, doing, doing == "step", idle_s, number=3)


def observed(*beats, silent=()):
    return Observation({beat.rank: beat for beat in beats}, frozenset(silent))


FOLDER = "no heartbeat file of rank 2: the run's folder may not be on a shared disk"


@pytest.mark.parametrize(
    ("seen", "size", "awaited", "expected"),
    [
        (observed(beat(0), beat(1), silent=[1]), 3, [1], "no heartbeat of rank 1 (process 11 on host1, step 7): it is"),
        (observed(beat(0), beat(1, step=6)), 3, [2], FOLDER),  # before one that is a step behind, and waits for it
        (observed(beat(0), beat(1, doing="x:3 in f")), 2, [1], "rank 1 (process 11 on host1) is at x:3 in f, step 7"),
        (observed(beat(0, step=8), beat(1), beat(2, step=8)), 3, [1], "rank 1 (process 11 on host1) is at step"),
        (observed(beat(0), beat(1)), 2, [], "no step for 40 s: all ranks are at step, step 7"),
    ],
)
def test_explanation_of_a_hang(seen, size, awaited, expected):
    assert seen.awaited(range(size)) == awaited and expected in explain(seen, range(size), 40.0)
    assert not seen.works(within_s=15.0)


def test_rank_that_makes_progress_works():
    """As rank 0 does in a slow folder, while the others wait for it."""
    beats = beat(0), beat(1, idle_s=2.0)
    assert observed(*beats).works(within_s=15.0) and not observed(*beats, silent=[1]).works(within_s=15.0)


def test_each_file_of_a_checkpoint_changes_the_state(tmp_path, monkeypatch):
    """Although it is written, and read back, at the same place in the code: each may be slow."""
    states = []

    def slow_open(*arguments, **options):
        states.append(state_of(sys._getframe()))
        return open(*arguments, **options)

    for module in (checkpoints, files):
        monkeypatch.setattr(module, "open", slow_open, raising=False)
    for _ in range(3):
        save_checkpoint(tmp_path / "checkpoints", keep=1)
    assert states and not [before for before, after in itertools.pairwise(states) if before == after]


def test_standard_error_that_is_not_a_file_may_be_captured(tmp_path):
    """As in a notebook, or a test that captures it."""
    code = (
        "import io, pathlib, sys; sys.stderr = io.StringIO()\n"
        "from hvdtrain.collectives.groups import SingleProcess\n"
        "from hvdtrain.training.timing import StepTimer\n"
        "from hvdtrain.training.watchdog import Watchdog\n"
        "with Watchdog(pathlib.Path(), group := SingleProcess(), 0.0, StepTimer(group), lambda: 0):\n"
        "    print('watched')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stdout == "watched\n", done.stderr
