"""When a job that fails is restarted, and from where; `faults/test_chaos.py` has what it trains to.

A launcher sees how its processes end, and starts others.
"""

import json
import os
import signal
import time

import pytest
from support.jobs import PROGRAMS, finish, launch, run, start
from support.stack import FASTEST

OPTIONS = ("--max-steps", "12", "--lr", "0.02", "--checkpoint-every", "3", "--device", "cpu", "--shards", "4")


def attempts(folder) -> list[dict]:
    return json.loads((folder / "runs" / "run" / "attempts.json").read_text())


def test_code_that_changes_the_folder_resumes_its_run(tmp_path):
    """As Hydra does, to a folder of each start."""
    away, here = tmp_path / "away", tmp_path / "here"
    away.mkdir(), here.mkdir()
    options = ("--strategy", "single", *OPTIONS, "--on-end", "pwd > ended")
    program = ["python", str(PROGRAMS), "elsewhere", "numpy", *options, "--name", "run", "--resume", "auto"]
    status, output = run([*launch("local", 1, "--restarts", "2"), *program], here, HVDTRAIN_TEST_AWAY=str(away))
    assert (status, (here / "ended").read_text()) == (0, f"{here}\n"), output
    assert [attempt["checkpoint"] for attempt in attempts(here)] == [-1, 3]
    assert "resumed from runs/run/checkpoints/step-00000003" in output and "record in runs/run" in output
    assert not list(away.glob("*/*")), "nothing is written where the code is"


@pytest.mark.parametrize(
    ("options", "expected", "message"),
    [
        (("--lr", "1e15", "--warmup-epochs", "0", "--log-every", "1", "--max-steps", "9"), 1, "is not finite"),
        (("--lr", "-1"), 2, "--lr -1"),
        (("--name", "a" * 300), 2, "cannot be created (File name too long)"),
    ],
    ids=["loss", "option", "name"],
)
def test_what_would_fail_again_is_not_restarted(tmp_path, options, expected, message):
    program = ["python", "-m", f"hvdtrain.{FASTEST}_lenet", "--strategy", "single", *options]
    status, output = run([*launch("local", 1, "--restarts", "3"), *program], tmp_path)
    assert status == expected and output.count(message) == 1, output
    assert "restarting" not in output and "Traceback" not in output


def test_a_signal_ends_the_pause_between_attempts(tmp_path):
    process = start([*launch("local", 1, "--restarts", "9"), "python", "-c", "raise SystemExit(3)"], tmp_path)
    lines = iter(process.stdout.readline, "")
    next(line for line in lines if "restarting in 4 s (3 of 9)" in line)
    os.kill(process.pid, signal.SIGTERM)
    began = time.monotonic()
    status, output = finish(process, 20)
    assert time.monotonic() - began < 3
    assert status == 128 + signal.SIGTERM
    assert "asked to end between two attempts" in output
    assert "3: 1 ranks, from the beginning" in output
