"""Failures on a GPU end a job as they do on the CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.gpu_jobs import REHEARSAL
from support.jobs import finish, pids_of_ranks

from hvdtrain.system.network import free_port

HANG = ("--epochs", "10000", "--log-every", "5", "--hang-timeout", "5", "--max-steps", "0")


@pytest.mark.parametrize(
    ("options", "said"), [((), "loss is not finite at step"), (("--on-nan", "skip"), "skipped so far")]
)
def test_a_loss_that_is_not_finite_ends_training_or_is_skipped(jobs, options, said):
    given = ("--strategy", "single", "--lr", "9e15", "--warmup-epochs", "0", "--max-steps", "40", "--log-every", "5")
    status, output = jobs.run(*given, *options)
    assert said in output + jobs.log(), f"exit status {status}"
    assert "Traceback" not in output and (options or status != 0)


def test_the_watchdog_ends_ranks_that_wait_on_one_gpu(jobs):
    """Two ranks that share a GPU, as if each were on a host of its own; the other one is stopped."""
    port = free_port()
    command = jobs.command("--strategy", "ring", *HANG)
    processes = [
        jobs.start(
            command,
            RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        )
        for rank in (0, 1)
    ]  # fmt: skip
    _assert_ends(jobs, processes[0], lambda pids: os.killpg(pids[1], signal.SIGKILL))
    finish(processes[1], 60)


def test_the_watchdog_ends_ranks_that_wait_in_nccl(jobs, gpus):
    if gpus < 2:
        pytest.skip(f"needs 2 GPUs, and there is {gpus}: NCCL gives a GPU to one rank only")
    process = jobs.start(jobs.command("--strategy", "ddp", *HANG, by="local", np=2))
    _assert_ends(jobs, process, lambda pids: None)


def _assert_ends(jobs, process, afterwards):
    pids = pids_of_ranks(jobs.folder / "runs" / "run", 2)
    os.kill(pids[1], signal.SIGSTOP)
    status, output = finish(process, 90)
    afterwards(pids)
    assert status != 0
    assert "no heartbeat of rank 1" in output, output[-3000:]


def test_the_doctor_sees_the_gpu(jobs):
    command = [sys.executable, "-m", "hvdtrain", "doctor", "--json", "--only", "gpu", "gpu-per-rank", "--ranks", "1"]
    process = jobs.start(command)
    _, output = finish(process, 120)
    found = json.loads(output[output.index("{") :])["findings"]
    assert found
    if not REHEARSAL:
        import torch

        texts = " ".join(one["text"] for one in found)
        assert torch.cuda.get_device_name(0) in texts
        assert not [one for one in found if one["status"] == "fail"], found


def test_the_pytorch_of_this_machine_is_used():
    """Else the tests would prove something about another one."""
    made = Path(sys.prefix, ".hvdtrain-system-torch")
    if not made.exists():
        pytest.skip("needs an environment of make test-gpu")
    import torch

    command = [made.read_text().splitlines()[0], "-c", "import torch; print(torch.__file__)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert Path(done.stdout.splitlines()[-1]).resolve() == Path(torch.__file__).resolve()
