"""Signals before the first step and after the last one, `--resume auto`, and ranks that start late.

Needs processes: signals, and their exit statuses. `faults/test_chaos.py` asks jobs to stop while they train.
"""

import signal
import time
from pathlib import Path

import pytest
from faults.watched_job import NUMPY
from support.jobs import PROGRAMS, distance, finish, launch, newest, run, several, start, succeed, wait_for
from support.stack import FASTEST

SINGLE = ("--strategy", "single")
MATRIX = pytest.mark.matrix


def test_signals_before_the_first_step_and_after_the_last_one(tmp_path):
    """Before: the process ends at once, without a traceback. After: the result is written."""
    process = start(["python", "-m", f"hvdtrain.{FASTEST}_lenet", *SINGLE, "--name", "early"], tmp_path)
    wait_for(lambda: f"lib{FASTEST}" in Path(f"/proc/{process.pid}/maps").read_text(), 60)
    process.send_signal(signal.SIGINT)
    status, output = finish(process, 10)
    assert (status, output.count("\n")) == (-signal.SIGINT, 1), output
    assert output.startswith("starting rank 0 of 1: importing ")
    program = ["python", str(PROGRAMS), "terminated_at_the_end", NUMPY]
    succeed([*program, *SINGLE, "--max-steps", "2", "--name", "late"], tmp_path)
    assert (tmp_path / "runs" / "late" / "result.json").exists()


def test_auto_resume_starts_a_run_and_then_resumes_it(tmp_path):
    """As a batch system restarts a job with the same command line."""
    (tmp_path / "runs" / "run" / "checkpoints").mkdir(parents=True)  # an attempt that ended before its first one
    steps = ("--max-steps", "6"), ("--max-steps", "11")
    auto = (*SINGLE, "--name", "run", "--resume", "auto", "--checkpoint-every", "4")
    trainings = [*((*auto, *last) for last in steps), (*SINGLE, "--name", "straight", *steps[1])]
    status, output = run(several(NUMPY, trainings, "alone", 1), tmp_path)
    assert status == 0 and "resumed from runs/run/checkpoints/step-00000006" in output, output
    resumed, straight = (newest(tmp_path / "runs" / name) for name in ("run", "straight"))
    assert resumed.position == straight.position and distance(resumed.weights, straight.weights) == 0


@MATRIX
@pytest.mark.parametrize(
    ("framework", "options", "message"),
    [
        ("mxnet", (), "rank 1 did not initialize Horovod within 4 s"),
        ("torch", ("--strategy", "ring"), "(rank 1 did not connect)"),
        ("torch", ("--strategy", "ddp"), "not all 2 ranks have started within 4 s"),
        ("tensorflow", (), "rank 1 did not initialize Horovod within 4 s"),
    ],
)
def test_rank_that_does_not_start_is_named(tmp_path, framework, options, message):
    """--start-timeout limits the start of a library."""
    began = time.monotonic()
    program = ["python", str(PROGRAMS), "late", framework, *options, "--max-steps", "2", "--name", "run"]
    command = [*launch("local", 2, "--start-timeout", "4"), *program]
    status, output = run(command, tmp_path, HVDTRAIN_TEST_LATE_S="300")
    assert status == 1, output
    assert message in output
    assert "Traceback" not in output
    assert time.monotonic() - began < 100
