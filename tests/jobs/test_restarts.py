"""A job that fails is restarted, resumes from its newest checkpoint, and ends with the same weights.

A launcher sees how its processes end, and starts others.
"""

import json
import os
import re
import signal
import time

import pytest
from support.jobs import PROGRAMS, distance, finish, newest, run, start, train_several
from support.stack import FASTEST
from support.untrusted import save_checkpoint

from hvdtrain.interfaces.learner import Position
from hvdtrain.system.run_end import RunEnd

OPTIONS = ("--max-steps", "12", "--lr", "0.02", "--checkpoint-every", "3", "--device", "cpu", "--shards", "4")


def launch(launcher: str, ranks: int, *options: str) -> list[str]:
    return ["python", "-m", "hvdtrain", "launch", launcher, "-n", str(ranks), *options, "--"]


def attempts(folder) -> list[dict]:
    return json.loads((folder / "runs" / "run" / "attempts.json").read_text())


@pytest.mark.guarantee("restart-after-kill")
@pytest.mark.parametrize(
    ("framework", "by", "options"),
    [
        ("numpy", "local", ("--strategy", "ring")),
        pytest.param("mxnet", "local", ("--strategy", "ring"), marks=pytest.mark.matrix),
        pytest.param("torch", "local", ("--strategy", "ring"), marks=pytest.mark.matrix),
        pytest.param("mxnet", "horovodrun", ("--strategy", "horovod"), marks=pytest.mark.matrix),
    ],
)
def test_a_killed_rank_restarts_the_job(tmp_path, framework, by, options):
    program = ["python", str(PROGRAMS), "die", framework, *options, *OPTIONS, "--name", "run", "--resume", "auto"]
    status, output = run([*launch(by, 2, "--restarts", "2"), *program], tmp_path)
    assert status == 0, output
    assert "rank 1 on " in output and "was killed by SIGKILL" in output
    assert "restarting in 1 s (1 of 2)" in output
    first, second = attempts(tmp_path)
    assert (first["status"], first["checkpoint"], second["status"], second["checkpoint"]) == (137, -1, 0, 3)
    folder = tmp_path / "runs"
    assert RunEnd.read(folder / "run").status == "finished"
    train_several(tmp_path, framework, {"undisturbed": ("--strategy", "single", *OPTIONS)}, "alone", 1)
    assert distance(newest(folder / "run").weights, newest(folder / "undisturbed").weights) == 0


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


def test_attempts_that_write_no_checkpoint(tmp_path):
    """The first attempt writes a checkpoint of step 3, later attempts write none. (No framework, only files.)"""
    save_checkpoint(tmp_path / "made" / "checkpoints", position=Position(step=3))
    code = (
        "import os; made = os.path.exists('runs/run/checkpoints'); os.makedirs('runs/run', exist_ok=True); "
        "made or os.rename('made/checkpoints', 'runs/run/checkpoints'); from hvdtrain.system import agent_pipe; "
        "path = os.path.abspath('runs/run/checkpoints/step-00000003') if made else ''; "
        "agent_pipe.send(agent_pipe.OpenedRun(os.path.abspath('runs/run'), True, path)); exit(f'process {os.getpid()}')"
    )
    status, output = run([*launch("local", 1, "--restarts", "9"), "python", "-c", code], tmp_path)
    assert status == 1, output
    assert "gave up, as 3 attempts in a row wrote no newer checkpoint; the attempts:" in output
    assert [one["checkpoint"] for one in attempts(tmp_path)] == [-1, 3, 3, 3]
    assert re.findall(r"restarting in (\d+) s", output) == ["1", "1", "2"]
    assert "  4: 1 ranks, from the checkpoint of step 3" in output


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
