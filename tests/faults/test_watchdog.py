"""A job that hangs is ended, and the rank that the others wait for is named."""

import os
import signal
import time

import pytest
from support.jobs import PROGRAMS, finish, launcher, pids_of_ranks, run, running, start, wait_for

from hvdtrain.system.run_end import RunEnd

MATRIX = pytest.mark.matrix
LONG = ("--epochs", "40", "--log-every", "5")
HANG = ("--hang-timeout", "4")


@pytest.mark.guarantee("hung-rank")
@pytest.mark.parametrize(
    ("framework", "options", "by"),
    [
        ("mxnet", ("--strategy", "ring"), "local"),
        pytest.param("torch", ("--strategy", "ring"), "local", marks=MATRIX),
        pytest.param("torch", ("--strategy", "ddp"), "local", marks=MATRIX),
        pytest.param("mxnet", (), "gloo", marks=MATRIX),
        pytest.param("tensorflow", (), "mpirun", marks=MATRIX),
    ],
)
def test_stopped_rank_is_named_and_the_job_ends(tmp_path, framework, options, by):
    """SIGSTOP stops all threads of a process, the watchdog's included."""
    command = [*launcher(by, 2), "python", "-m", f"hvdtrain.{framework}_lenet", *options, *LONG, *HANG, "--name", "run"]
    process = start(command, tmp_path)
    pids = pids_of_ranks(tmp_path / "runs" / "run", 2)
    os.kill(pids[1], signal.SIGSTOP)
    began = time.monotonic()
    status, output = finish(process, 60)
    assert status != 0
    # The timeout, the wait for heartbeats and stacks, and the time that the launcher takes to end a stopped process.
    assert time.monotonic() - began < 4 + 25
    assert f"no heartbeat of rank 1 (process {pids[1]} on " in output
    assert "it is stopped, or its host is down" in output
    end = RunEnd.read(tmp_path / "runs" / "run")
    assert (end.status, end.rank, f"no heartbeat of rank 1 (process {pids[1]}" in end.reason) == ("hung", 1, True)
    stacks = (tmp_path / "runs" / "run" / "heartbeats" / "stacks-rank-0.txt").read_text()
    assert "train.py" in stacks
    wait_for(lambda: not any(map(running, pids)), 10)


@pytest.mark.parametrize(
    ("framework", "options"),
    [
        pytest.param("torch", ("--strategy", "ring"), marks=MATRIX),
        pytest.param("mxnet", (), marks=MATRIX),
        pytest.param("tensorflow", (), marks=MATRIX),
    ],
)
def test_rank_that_stops_after_the_last_step_is_named(tmp_path, framework, options):
    program = ["python", str(PROGRAMS), "freeze_at_the_end", framework, *options, *HANG]
    status, output = run([*launcher("local", 2), *program, "--max-steps", "5", "--name", "run"], tmp_path, 90)
    assert status != 0
    assert "no heartbeat of rank 1 (process " in output


@MATRIX
@pytest.mark.guarantee("hung-rank")
@pytest.mark.parametrize(("framework", "by"), [("mxnet", "mpirun"), ("torch", "gloo"), ("tensorflow", "gloo")])
def test_sleeping_rank_is_named_with_its_place_in_the_code(tmp_path, framework, by):
    command = [*launcher(by, 2), "python", str(PROGRAMS), "sleep", framework, "--name", "run", *HANG]
    status, output = run(command, tmp_path, 90)
    assert status != 0
    assert "rank 1 (process " in output
    assert ") is at programs.py:" in output
    assert "in inject, step 5, and the other ranks wait for it" in output
    folder = tmp_path / "runs" / "run" / "heartbeats"
    assert "in inject" in (folder / "stacks-rank-1.txt").read_text()
    assert (folder / "stacks-rank-0.txt").exists()
