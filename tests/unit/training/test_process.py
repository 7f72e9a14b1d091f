"""--on-end in a program that calls training itself: which status an error means."""

import subprocess
import sys

import pytest

from hvdtrain.errors import Stopped, TrainingError, UserError
from hvdtrain.system.run_end import RunEnd
from hvdtrain.training import process


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
