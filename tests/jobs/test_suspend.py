"""A job that is suspended as a whole and resumed continues; Ctrl-C then ends it with a checkpoint.

Needs processes: ranks that do not run for a while. Other frameworks and launchers: `suspend` in tests/faults.
"""

import os
import signal
import time

import pytest
from support.jobs import finish, launcher, newest, pids_of_ranks, start, wait_for

MATRIX = pytest.mark.matrix
HANG_S, SUSPENDED_S, APART_S = 2, 4, 3


def send(number, pids):
    for pid in pids:
        os.kill(pid, number)


@pytest.mark.parametrize(
    ("framework", "options", "by"),
    [
        pytest.param("torch", ("--strategy", "ring"), "local", marks=MATRIX),
        pytest.param("torch", ("--strategy", "ddp"), "local", marks=MATRIX),
    ],
)
def test_suspended_job_continues_and_ctrl_c_saves_it(tmp_path, framework, options, by):
    """Its ranks are resumed further apart than --hang-timeout."""
    command = [*launcher(by, 2), "python", "-m", f"hvdtrain.{framework}_lenet", *options, "--hang-timeout", str(HANG_S)]
    process = start([*command, "--epochs", "400", "--log-every", "5", "--quiet", "--name", "run"], tmp_path)
    run_folder = tmp_path / "runs" / "run"
    pids, metrics = pids_of_ranks(run_folder, 2), run_folder / "metrics.jsonl"
    send(signal.SIGSTOP, pids)
    time.sleep(SUSPENDED_S)
    before = metrics.stat().st_size
    send(signal.SIGCONT, pids[:1])
    time.sleep(APART_S)
    send(signal.SIGCONT, pids[1:])
    wait_for(lambda: metrics.stat().st_size > before + 1000, 60)
    send(signal.SIGINT, pids)
    status, output = finish(process, 60)
    assert status == 75 if by == "local" else status != 0, output
    assert "no step for" not in output
    assert output.count("stopping after this step; press Ctrl-C again to end at once") == 1
    assert (
        f"was asked to stop by SIGINT; the checkpoint of step {newest(run_folder).position.step} is written" in output
    )
