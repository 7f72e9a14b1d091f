"""A job that is asked to stop writes a checkpoint, says how to resume, and resumes to identical weights.

Needs processes: signals to a launcher and to ranks, and their exit statuses.
"""

import os
import signal
import time
from pathlib import Path

import pytest
from faults.watched_job import NUMPY
from support.jobs import (
    PROGRAMS,
    distance,
    finish,
    launcher,
    newest,
    pids_of_ranks,
    run,
    start,
    train_several,
    wait_for,
)
from support.stack import FASTEST

from hvdtrain.system.run_end import RunEnd

LONG = ("--epochs", "40", "--log-every", "5")
SINGLE = ("--strategy", "single")
MATRIX = pytest.mark.matrix


def slowly(framework, by, ranks, *options):
    return [*launcher(by, ranks), "python", str(PROGRAMS), "slowly", framework, *LONG, *options]


CASES = [
    (NUMPY, ("--strategy", "ring"), "local", 2, "SIGINT to the launcher"),
    ("mxnet", ("--strategy", "module"), "local", 2, "a file"),
    pytest.param("tensorflow", ("--strategy", "keras-fit-single"), "alone", 1, "SIGTERM to rank 0", marks=MATRIX),
    pytest.param(NUMPY, SINGLE, "alone", 1, "SIGHUP to rank 0", marks=MATRIX),
    pytest.param("torch", ("--strategy", "ddp"), "local", 2, "SIGUSR1 to rank 1", marks=MATRIX),
    pytest.param("mxnet", (), "mpirun", 2, "SIGUSR1 to rank 1", marks=MATRIX),
    *(pytest.param(framework, (), "gloo", 2, "a file", marks=MATRIX) for framework in ("mxnet", "tensorflow")),
]


@pytest.mark.guarantee("stop-and-resume")
@pytest.mark.parametrize(("framework", "options", "by", "ranks", "how"), CASES)
def test_stop_and_resume(tmp_path, framework, options, by, ranks, how):
    command = slowly(framework, by, ranks, *options, "--name", "run")
    process, run_folder = start(command, tmp_path, HVDTRAIN_TEST_STEP_S="0.01"), tmp_path / "runs" / "run"
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
    # A process can start torch.distributed only once.
    for some in [{name: own} for name, own in runs.items()] if "ddp" in options else [runs]:
        train_several(tmp_path, framework, some, "local" if by == "gloo" else by, ranks)
    resumed, straight = (newest(tmp_path / "runs" / name) for name in runs)
    assert resumed.position.step == straight.position.step > stopped.position.step
    assert distance(resumed.weights, straight.weights) == 0


def test_signals_before_the_first_step_and_after_the_last_one(tmp_path):
    """Before: the process ends at once, without a traceback. After: the result is written."""
    process = start(["python", "-m", f"hvdtrain.{FASTEST}_lenet", *SINGLE, "--name", "early"], tmp_path)
    wait_for(lambda: f"lib{FASTEST}" in Path(f"/proc/{process.pid}/maps").read_text(), 60)
    process.send_signal(signal.SIGINT)
    status, output = finish(process, 10)
    assert (status, output.count("\n")) == (-signal.SIGINT, 1), output
    assert output.startswith("starting rank 0 of 1: importing ")
    program = ["python", str(PROGRAMS), "terminated_at_the_end", NUMPY]
    status, output = run([*program, *SINGLE, "--max-steps", "2", "--name", "late"], tmp_path)
    assert status == 0, output
    assert "all steps are done, and the result is being written\n" in output
    assert (tmp_path / "runs" / "late" / "result.json").exists()


def test_auto_resume_starts_a_run_and_then_resumes_it(tmp_path):
    """As a batch system restarts a job with the same command line."""
    (tmp_path / "runs" / "run" / "checkpoints").mkdir(parents=True)  # an attempt that ended before its first one
    options = ("--resume", "auto", "--checkpoint-every", "4")
    for name, last, given in (("run", 6, options), ("run", 11, options), ("straight", 11, ())):
        command = slowly(NUMPY, "alone", 1, *SINGLE, "--name", name, *given, "--max-steps", str(last))
        status, output = run(command, tmp_path, HVDTRAIN_TEST_STEP_S="0")
        assert status == 0, output
        assert newest(tmp_path / "runs" / name).position.step == last
    resumed, straight = (newest(tmp_path / "runs" / name) for name in ("run", "straight"))
    assert distance(resumed.weights, straight.weights) == 0


# --start-timeout limits the start of a library: not sooner, and not much later; the missing rank is named.


def start_late(folder, framework, options, limit_s, late_s):
    command = launcher("local", 2)
    command[-1:] = ["--start-timeout", str(limit_s), "--"]
    program = ["python", str(PROGRAMS), "late", framework, *options, "--max-steps", "2", "--name", "run"]
    return run([*command, *program], folder, HVDTRAIN_TEST_LATE_S=str(late_s))


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
    began = time.monotonic()
    status, output = start_late(tmp_path, framework, options, limit_s=4, late_s=300)
    assert status == 1, output
    assert message in output
    assert "Traceback" not in output
    assert time.monotonic() - began < 100


@MATRIX
def test_rank_may_be_later_than_the_libraries_allow(tmp_path):
    """Gloo itself waits for 30 s."""
    status, output = start_late(tmp_path, FASTEST, (), limit_s=120, late_s=45)
    assert status == 0, output
