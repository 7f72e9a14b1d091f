"""A run's folder has one job at a time; a job that was killed loses little, and is resumed at once.

Jobs are processes, as they are killed, and their locks are released by their end; the job that is refused is not.
"""

import json
import os
import re
import signal

import pytest
from support.in_process import train_here
from support.jobs import PROGRAMS, finish, launcher, newest, run, start, wait_for
from support.stack import FASTEST

from hvdtrain.errors import UserError
from hvdtrain.system.run_end import RunEnd, newest_checkpoint

TRAIN = ("python", "-m", f"hvdtrain.{FASTEST}_lenet", "--strategy", "single")
NAMED = ("--name", "run", "--resume", "auto")


def test_second_job_is_refused_and_a_killed_one_is_resumed_at_once(tmp_path):
    """Also: a checkpoint within an epoch without any option, and an error that says how to resume."""
    program = ["python", str(PROGRAMS), "slowly", FASTEST, "--strategy", "single", *NAMED, "--batch-size", "8"]
    program += ["--log-every", "2", "--checkpoint-every", "0.2s"]
    first = start([*launcher("local", 1), *program], tmp_path, HVDTRAIN_TEST_STEP_S="0.05")
    folder = tmp_path / "runs" / "run"
    wait_for(lambda: newest_checkpoint(folder) is not None, 90)
    lock = json.loads((folder / "lock-1.json").read_text())

    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(UserError, match=f"runs/run is in use by process {lock['process']['pid']} on"):
        train_here(tmp_path, FASTEST, *NAMED)
    assert sorted(path.name for path in folder.iterdir()) == before
    assert first.poll() is None

    os.kill(lock["process"]["pid"], signal.SIGKILL)
    status, output = finish(first)
    assert status == 128 + signal.SIGKILL, output
    end = RunEnd.read(folder)
    assert (end.status, end.exit_status, end.rank) == ("failed", 137, 0)
    assert end.reason.startswith(f"rank 0 on {end.host} was killed by SIGKILL")
    assert newest(folder).position.epoch == 0
    assert re.search(r"the newest checkpoint is of step \d+; resume with --resume runs/run\n", output)

    status, output = run([*TRAIN, *NAMED, "--lr", "1e15", "--warmup-epochs", "0", "--log-every", "1"], tmp_path)
    assert status == 1, output
    assert "may be in use" not in output
    step = int(re.search(r"not finite.*; resume from step (\d+) with --resume runs/run\n", output)[1])
    assert step == newest(folder).position.step
    (left,) = folder.glob("lock-*.json")
    assert left.name == "lock-2.json" and json.loads(left.read_text())["released"]
