"""A job that hangs is ended, and the rank that the others wait for is named.

Needs processes: a rank that does not run, and a watchdog that ends its process.
"""

import os
import signal
import time

import pytest
from support.jobs import PROGRAMS, finish, launcher, pids_of_ranks, run, running, start, wait_for

from faults.watched_job import NUMPY
from hvdtrain.system.run_end import RunEnd

MATRIX = pytest.mark.matrix
LONG = ("--epochs", "40", "--log-every", "5")
HANG_S = 3
HANG = ("--hang-timeout", str(HANG_S), "--name", "run")


def command(program, framework, by, *options):
    return [*launcher(by, 2), "python", str(PROGRAMS), program, framework, *HANG, *options]


@pytest.mark.guarantee("hung-rank")
@pytest.mark.parametrize(
    ("framework", "options", "by"),
    [
        (NUMPY, ("--strategy", "ring"), "local"),
        pytest.param("torch", ("--strategy", "ddp"), "local", marks=MATRIX),
        pytest.param("mxnet", (), "gloo", marks=MATRIX),
    ],
)
def test_stopped_rank_is_named_and_the_job_ends(tmp_path, framework, options, by):
    """SIGSTOP stops all threads of a process, the watchdog's included."""
    process = start(command("slowly", framework, by, *options, *LONG), tmp_path, HVDTRAIN_TEST_STEP_S="0.01")
    run_folder = tmp_path / "runs" / "run"
    pids = pids_of_ranks(run_folder, 2)
    os.kill(pids[1], signal.SIGSTOP)
    began = time.monotonic()
    status, output = finish(process, 60)
    assert status != 0
    # The timeout, the wait for heartbeats and stacks, and the time that the launcher takes to end a stopped process.
    assert time.monotonic() - began < HANG_S + 25
    named = f"no heartbeat of rank 1 (process {pids[1]} on "
    assert named in output and "it is stopped, or its host is down" in output
    end = RunEnd.read(run_folder)
    assert (end.status, end.rank, named in end.reason) == ("hung", 1, True)
    assert "train.py" in (run_folder / "heartbeats" / "stacks-rank-0.txt").read_text()
    wait_for(lambda: not any(map(running, pids)), 10)


@MATRIX
@pytest.mark.parametrize("framework", ["torch", "mxnet", "tensorflow"])
def test_rank_that_stops_after_the_last_step_is_named(tmp_path, framework):
    status, output = run(command("freeze_at_the_end", framework, "local", "--max-steps", "5"), tmp_path, 90)
    assert status != 0
    assert "no heartbeat of rank 1 (process " in output
