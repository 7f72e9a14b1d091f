"""A job that is asked to stop writes a checkpoint, says how to resume, and resumes to identical weights."""

import os
import signal
from pathlib import Path

import pytest
from support.jobs import (
    PROGRAMS,
    distance,
    finish,
    launcher,
    newest,
    pids_of_ranks,
    run,
    start,
    train,
    train_several,
    wait_for,
)
from support.stack import FASTEST

from hvdtrain.system.run_end import RunEnd

LONG = ("--epochs", "40", "--log-every", "5")

MATRIX = pytest.mark.matrix
CASES = [
    (FASTEST, ("--strategy", "ring"), "local", 2, "SIGINT to the launcher"),
    ("tensorflow", ("--strategy", "single", "--api", "fit"), "alone", 1, "SIGTERM to rank 0"),
    ("mxnet", (), "gloo", 2, "a file"),
    pytest.param("torch", ("--strategy", "ddp"), "local", 2, "SIGUSR1 to rank 1", marks=MATRIX),
    pytest.param("mxnet", (), "mpirun", 2, "SIGUSR1 to rank 1", marks=MATRIX),
    pytest.param("tensorflow", (), "gloo", 2, "a file", marks=MATRIX),
]


@pytest.mark.guarantee("stop-and-resume")
@pytest.mark.parametrize(("framework", "options", "by", "ranks", "how"), CASES)
def test_stop_and_resume(tmp_path, framework, options, by, ranks, how):
    command = [*launcher(by, ranks), "python", "-m", f"hvdtrain.{framework}_lenet", *options, *LONG, "--name", "run"]
    process, run_folder = start(command, tmp_path), tmp_path / "runs" / "run"
    pids = pids_of_ranks(run_folder, ranks)
    number = getattr(signal, how.split()[0], None)
    if number is None:
        (run_folder / "STOP").touch()
    else:
        os.kill(process.pid if how.endswith("launcher") else pids[int(how[-1])], number)
    status, output = finish(process, 60)
    # horovodrun and mpirun have an exit status of their own if a rank does not end with 0.
    assert status == 75 if by in ("local", "alone") else status != 0, output
    expected = str(run_folder.relative_to(tmp_path) / "STOP") if number is None else how.split()[0]
    assert f"was asked to stop by {expected}; the checkpoint of step" in output
    assert "resume with --resume runs/run" in output
    assert "uncaught exception" not in output, "Horovod is shut down before the first rank ends"
    assert not (run_folder / "STOP").exists()
    assert (RunEnd.read(run_folder).status, RunEnd.read(run_folder).exit_status) == ("stopped", 75)
    stopped = newest(run_folder)
    last = ("--max-steps", str(stopped.position.step + 7))
    runs = {"resumed": ("--resume", "runs/run", *LONG, *last), "straight": (*options, *LONG, *last)}
    if "ddp" in options:  # a process can start torch.distributed only once
        for name, own in runs.items():
            train(tmp_path, framework, *own, "--name", name, by=by, np=ranks)
    else:
        train_several(tmp_path, framework, runs, "local" if by == "gloo" else by, ranks)
    resumed, straight = (newest(tmp_path / "runs" / name) for name in runs)
    assert resumed.position.step == straight.position.step > stopped.position.step
    assert distance(resumed.weights, straight.weights) == 0


def test_signals_before_the_first_step_and_after_the_last_one(tmp_path):
    """Before: the process ends at once, without a traceback. After: the result is written."""
    process = start(["python", "-m", "hvdtrain.torch_lenet", "--strategy", "single", "--name", "early"], tmp_path)
    wait_for(lambda: "libtorch" in Path(f"/proc/{process.pid}/maps").read_text(), 60)
    process.send_signal(signal.SIGINT)
    assert finish(process, 10) == (-signal.SIGINT, "starting rank 0 of 1: importing PyTorch ...\n")
    options = ("--strategy", "single", "--max-steps", "2", "--name", "late")
    status, output = run(["python", str(PROGRAMS), "terminated_at_the_end", FASTEST, *options], tmp_path)
    assert status == 0, output
    assert "all steps are done, and the result is being written\n" in output
    assert (tmp_path / "runs" / "late" / "result.json").exists()


def test_auto_resume_starts_a_run_and_then_resumes_it(tmp_path):
    """As a batch system restarts a job with the same command line."""
    options = ("--strategy", "single", "--name", "run", "--auto-resume", "--checkpoint-every", "4", *LONG)
    (tmp_path / "runs" / "run" / "checkpoints").mkdir(parents=True)  # an attempt that ended before its first one
    for last in (6, 11):
        folder = train(tmp_path, FASTEST, *options, "--max-steps", str(last))
        assert newest(folder).position.step == last
    straight = train(tmp_path, FASTEST, "--strategy", "single", *LONG, "--max-steps", "11", "--name", "straight")
    assert distance(newest(folder).weights, newest(straight).weights) == 0


def test_auto_resume_requires_a_name(tmp_path):
    status, output = run(["python", "-m", "hvdtrain.torch_lenet", "--auto-resume"], tmp_path)
    assert (status, "; give the run a --name" in output) == (2, True), output
