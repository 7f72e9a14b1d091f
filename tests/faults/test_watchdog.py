"""A job that hangs ends, and the right rank is named; a job that does not hang is left alone."""

import os
import signal
import sys
import time

import pytest
from support.jobs import PROGRAMS, finish, launcher, run, running, start, wait_for
from test_stop import LONG, ranks_of

from hvdtrain.training.watchdog import Heartbeat, explain, where

HANG = ("--hang-timeout", "4")


@pytest.mark.parametrize(
    ("framework", "options", "by"),
    [("torch", ("--strategy", "ring"), "local"), ("torch", ("--strategy", "ddp"), "local"), ("mxnet", (), "gloo"),
     ("tensorflow", (), "mpirun")],
)  # fmt: skip
def test_a_stopped_rank_is_named_and_the_job_ends(tmp_path, framework, options, by):
    """SIGSTOP: no code of that process runs any more, the watchdog's thread included."""
    words = [*launcher(by, 2), "python", "-m", f"hvdtrain.{framework}_lenet", *options, *LONG, *HANG, "--name", "run"]
    process = start(words, tmp_path)
    pids = ranks_of(tmp_path / "runs" / "run", 2)
    os.kill(pids[1], signal.SIGSTOP)
    began = time.monotonic()
    status, output = finish(process, 60)
    assert status != 0
    # The timeout, the silence and the stacks of the others, and what the launcher takes to end a stopped process.
    assert time.monotonic() - began < 4 + 25
    assert f"no heartbeat of rank 1 (process {pids[1]} on " in output
    assert "it is stopped, or its host is gone" in output
    stacks = (tmp_path / "runs" / "run" / "heartbeats" / "stacks-rank-0.txt").read_text()
    assert "train.py" in stacks
    wait_for(lambda: not any(map(running, pids)), 10)


@pytest.mark.parametrize(("framework", "by"), [("torch", "gloo"), ("mxnet", "mpirun"), ("tensorflow", "gloo")])
def test_a_rank_asleep_in_python_is_named_with_its_place(tmp_path, framework, by):
    words = [*launcher(by, 2), "python", str(PROGRAMS), "sleep", framework, "--name", "run", *HANG]
    status, output = run(words, tmp_path, 90)
    assert status != 0
    assert "rank 1 (process " in output
    assert ") is at programs.py:" in output
    assert "in spoil, step 5, and the other ranks wait for it" in output
    folder = tmp_path / "runs" / "run" / "heartbeats"
    assert "in spoil" in (folder / "stacks-rank-1.txt").read_text()
    assert (folder / "stacks-rank-0.txt").exists()


def beat(rank, step=7, doing="step", seen=100.0):
    return Heartbeat(rank, 10 + rank, f"host{rank}", step, doing, seen)


@pytest.mark.parametrize(
    ("beats", "size", "told"),
    [
        ([beat(0), beat(1, seen=80.0)], 2, "no heartbeat of rank 1 (process 11 on host1, step 7): it is stopped"),
        ([beat(0), beat(1)], 3, "no word from rank 2: is the run's folder on a shared disk?"),
        ([beat(0), beat(1, doing="x.py:3 in f")], 2, "rank 1 (process 11 on host1) is at x.py:3 in f, step 7, and the"),
        ([beat(0, step=8), beat(1, step=7), beat(2, step=8)], 3, "rank 1 (process 11 on host1) is at step, step 7"),
        ([beat(0), beat(1)], 2, "no step for 40 s: all ranks are at step, step 7"),
    ],
)
def test_explain(beats, size, told):
    assert told in explain({one.rank: one for one in beats}, size, 40.0, now=101.0)


def test_where_tells_waiting_from_working():
    from hvdtrain.collectives.torch_distributed import TorchDistributedGroup

    assert "in test_where_tells_waiting_from_working" in where(sys._getframe())
    frames = []

    class Spy:
        def all_gather_object(self, gathered, value):
            frames.append(where(sys._getframe()))

    group = object.__new__(TorchDistributedGroup)
    group.size, group._dist = 1, Spy()
    group.gather(1)
    assert frames == ["step"]
    assert where(None) == "ended"
