"""The end of a process: --on-end in a program that calls training itself, cores, and signals that ask it to stop.

Processes show which status and messages signals and breakpoints leave.
"""

import logging
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from support.untrusted import save_checkpoint

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.formats.reading import CHANGED, DataChanged
from hvdtrain.errors import FolderLost, Stopped, TrainingError, UserError, WriteError, WrongBits
from hvdtrain.interfaces.learner import Position
from hvdtrain.runs import console
from hvdtrain.runs.lock import RunLock
from hvdtrain.runs.record import create_folder
from hvdtrain.system.run_end import Failure, RunEnd
from hvdtrain.training import audit, process, result
from hvdtrain.training.ranks import StopRequest
from hvdtrain.training.result import count_cores, total_cores
from hvdtrain.training.state import must_write


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (None, "finished 0 "),
        (Stopped("rank 1 was asked to stop"), "stopped 75 "),
        (KeyboardInterrupt(), "stopped 130 "),
        (TrainingError("loss is not finite", rank=3), "failed 1 3"),
        (UserError("no such file"), "failed 2 "),
        (ZeroDivisionError("rank"), "failed 1 "),
    ],
)
def test_the_command_is_told_how_training_ended(tmp_path, error, told):
    command = f'echo "$HVDTRAIN_STATUS $HVDTRAIN_EXIT_STATUS $HVDTRAIN_RANK" > {tmp_path}/told'
    try:
        with process.notifying(command):
            if error:
                raise error
    except BaseException as raised:
        assert raised is error
    assert (tmp_path / "told").read_text() == f"{told}\n"


def test_only_rank_0_runs_it(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(process.log, "handlers", [])  # another test may have left a log open
    process.notify(f"touch {tmp_path}/told", RunEnd("finished"))
    assert not list(tmp_path.iterdir())


def test_a_breakpoint_without_a_terminal_is_one_line():
    code = "from hvdtrain.training.process import ending_process\nwith ending_process():\n    breakpoint()\n    x = 1\n"
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    assert ended.stderr.count("\n") == 1


ERRORS = {
    "disk": lambda folder: OSError(28, "No space left on device"),
    "wrong bits": lambda folder: WrongBits("rank 1 computed wrong bits", audit.REMEDY),
    "any": lambda folder: TrainingError("loss is not finite"),
    "user's": lambda folder: KeyError("x"),
    "interrupted": lambda folder: KeyboardInterrupt(),
    "data": lambda folder: DataChanged("a.png changed during training", CHANGED),
    "gone": lambda folder: FolderLost("another job has it"),
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("saved", ["", "damaged", "whole"])
def test_a_resume_is_offered_only_where_a_whole_checkpoint_is(tmp_path, monkeypatch, capsys, kind, saved):
    """Also by the message of a name that is taken; `test_run.py` has the launcher's."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "notes.txt").touch()  # else a new run of that name takes its place
    if saved:
        path = save_checkpoint(folder / "checkpoints", position=Position(step=3))
    if saved == "damaged":
        (path / "weights.safetensors").write_bytes(b"")
    error = ERRORS[kind](folder)
    if kind == "disk":
        with pytest.raises(WriteError) as raised, must_write("the checkpoint of step 9", folder):
            raise error
        error = raised.value
    monkeypatch.setattr(process.log, "handlers", [logging.NullHandler()])
    monkeypatch.setattr(console, "open_folder", lambda: folder)
    monkeypatch.setattr(console, "log_to_file", lambda *_: None)
    process._report(0, Failure.of_exception(error), 0.0)
    with pytest.raises(UserError, match="run exists; choose another --name") as taken:
        create_folder(Config(), RuntimeOptions(runs=tmp_path, name="run"), 1, RunLock())
    for text in (capsys.readouterr().err, str(taken.value)):
        assert ("--resume" in text) == text.strip().endswith(f"resume from step 3 with --resume {folder}")
        assert ("--resume" in text) == (saved == "whole"), text
    RunEnd("finished").write(folder)
    process._report(0, Failure.of_exception(error), 0.0)
    assert "--resume" not in capsys.readouterr().err, "a script failed after its run"


FOUR, ALONE = frozenset(range(4)), SingleProcess()


@pytest.mark.parametrize(
    ("ranks", "total"),
    [
        ([("a", 1, FOUR), ("a", 1, FOUR)], 2),
        ([("a", 4, FOUR), ("a", 4, FOUR)], 4),  # both ranks use all cores
        ([("a", 2, frozenset({0, 1})), ("a", 2, frozenset({2, 3}))], 4),  # bound to cores of their own
        ([("a", 2, FOUR), ("b", 8, FOUR)], 6),  # two hosts
    ],
)
def test_a_core_counts_once(ranks, total):
    assert total_cores(ranks) == total


def test_threads_of_devices_are_cores_and_gpus_have_none(monkeypatch):
    def cores(device, devices=1):
        return count_cores(SimpleNamespace(learner=SimpleNamespace(device=device, devices=devices), group=ALONE))

    monkeypatch.setattr(result.os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert (cores("cuda:0"), cores("cpu", devices=2)) == (None, 6)
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert cores("cpu", devices=2) == 8


STOPPED_BY = [(True, False, "SIGUSR1", True), (True, True, "STOP", False), (False, True, "STOP", False)]


@pytest.mark.parametrize(("signaled", "file", "by", "again"), STOPPED_BY)
def test_what_the_file_stops_is_not_started_again(tmp_path, signaled, file, by, again):
    """Also if the time limit comes at the same time: the file is gone afterwards."""
    with StopRequest(tmp_path, SingleProcess()) as stop, pytest.raises(Stopped) as stopped:
        if file:
            (tmp_path / "STOP").touch()
        if signaled:
            signal.raise_signal(signal.SIGUSR1)
        stop.stop(0, 3, lambda: None)
    assert stopped.value.retry is again and re.search(rf"asked to stop by (.*/)?{by};", str(stopped.value))
    assert Failure.of_exception(stopped.value).stopped


PROGRAM = """
import pathlib, sys, time
from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.system.command import prepare_streams
from hvdtrain.training.ranks import StopRequest

prepare_streams()  # as commands do: what a closed terminal does not take is no error
with StopRequest(pathlib.Path(), SingleProcess()) as stop:
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
        if pathlib.Path("end").exists():
            pathlib.Path("reason").write_text(stop.reason())
            sys.exit(f"reason {stop.reason()!r}")
"""


@pytest.fixture
def stopping(tmp_path, request):
    """The program; of a test with an indirect parameter, with these words before it."""
    command, pipe = [*getattr(request, "param", []), sys.executable, "-c", PROGRAM], subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, text=True, stdout=pipe, stderr=pipe) as started:
        assert started.stdout.readline()
        yield started
        started.kill()


def send(process, *numbers, apart_s):
    for number in numbers:
        process.send_signal(number)
        time.sleep(apart_s)


def test_signal_that_is_repeated_is_the_same_request(stopping, tmp_path):
    """As Slurm and a terminal repeat them; SIGUSR1 may also come again later."""
    send(stopping, signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR1, apart_s=0.05)
    (tmp_path / "end").touch()
    _, errors = stopping.communicate(timeout=30)
    assert "reason 'SIGTERM'" in errors


@pytest.mark.parametrize(
    ("stopping", "number", "reason"),
    [
        ([], signal.SIGHUP, "SIGHUP"),
        (["nohup"], signal.SIGHUP, ""),
        (["sh", "-c", "trap '' INT; exec \"$@\"", "sh"], signal.SIGINT, ""),  # as in the background of a shell
    ],
    indirect=["stopping"],
)
def test_signal_that_the_parent_ignores_asks_for_nothing(stopping, tmp_path, number, reason):
    """And a terminal that is closed asks to stop, twice where a shell also does."""
    stopping.stderr.close()  # as of a terminal that is gone
    send(stopping, number, number, apart_s=0.05)
    (tmp_path / "end").write_text("")
    assert stopping.wait(timeout=30) == 1 and (tmp_path / "reason").read_text() == reason


def test_second_ctrl_c_ends_at_once(stopping):
    send(stopping, signal.SIGINT, apart_s=0)
    first = stopping.stderr.readline()
    assert first == "hvdtrain: rank 0: stopping with a checkpoint or the result; press Ctrl-C again to end at once\n"
    time.sleep(0.6)
    assert stopping.poll() is None
    send(stopping, signal.SIGINT, apart_s=0)
    _, errors = stopping.communicate(timeout=30)
    assert (stopping.returncode, errors) == (130, "hvdtrain: rank 0: interrupted\n")


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_an_interrupt_that_follows_at_once_prints_no_traceback(monkeypatch, handler):
    """As the agent may send one as soon as it knows the process."""
    at_sending = []
    monkeypatch.setattr(process.agent_pipe, "send", lambda _: not at_sending.append(signal.getsignal(signal.SIGINT)))
    before = signal.signal(signal.SIGINT, handler)
    try:
        process._end_at_once_by_interrupt()
        assert signal.default_int_handler not in at_sending and signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)
