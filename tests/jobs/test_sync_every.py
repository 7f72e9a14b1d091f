"""Ranks that make steps of their own (`--sync-every`): as the formulas say, and resumed, restarted and stopped."""

from __future__ import annotations

import json
import os
import signal
import sys

import numpy as np
import pytest
from support.jobs import (
    PROGRAMS,
    ROOT,
    distance,
    finish,
    launcher,
    newest,
    pids_of_ranks,
    run,
    start,
    train,
    train_several,
)
from support.stack import FASTEST, FRAMEWORKS, cases
from support.user_loop_runs import assert_identical

from hvdtrain.config.options import STYLES

MATRIX = pytest.mark.matrix
REFERENCE = ROOT / "tests" / "support" / "local_steps.py"
SCRIPTS = {
    name: ROOT / "tests" / "support" / f"user_loop{end}.py" for name, end in (("torch", ""), ("mxnet", "_gluon"))
}
STEPS = (
    "--batch-size",
    "256",
    "--epochs",
    "2",
    "--lr",
    "0.02",
    "--schedule",
    "constant",
    "--warmup-epochs",
    "0",
    "--device",
    "cpu",
)
"""Two epochs of 6 steps; the last one of an epoch is not a full batch."""
LOCAL = ("--sync-every", "4", "--check-sync", "1", "--log-every", "3")


def state(folder):
    """All arrays of the newest checkpoint: weights, and the optimizers of all ranks."""
    saved = newest(folder)
    states = {f"{rank}/{name}": array for rank, arrays in enumerate((saved.optimizer.arrays, *saved.other_ranks))
              for name, array in arrays.items()}  # fmt: skip
    return saved.weights | states


@pytest.mark.parametrize(
    ("framework", "strategy"),
    [
        ("torch", "ring"),
        ("mxnet", "horovod"),
        ("tensorflow", "horovod"),
        pytest.param("torch", "horovod", marks=MATRIX),
        pytest.param("torch", "mpi", marks=MATRIX),
        pytest.param("mxnet", "ring", marks=MATRIX),
        pytest.param("mxnet", "mpi", marks=MATRIX),
        pytest.param("tensorflow", "ring", marks=MATRIX),
        pytest.param("tensorflow", "mpi", marks=MATRIX),
    ],
)
def test_two_ranks_have_the_mean_of_their_weights_and_resume_in_the_middle_of_an_epoch(framework, strategy, tmp_path):
    options = ("--strategy", strategy, *STEPS, *LOCAL)
    runs = {"whole": options, "part": (*options, "--max-steps", "4")}
    resumed = {"resumed": ("--resume", "runs/part", *LOCAL, "--max-steps", "0")}
    folder = train_several(tmp_path, framework, runs | resumed, "mpirun" if strategy == "mpi" else "local", 2)
    whole = state(folder / "whole")
    assert distance(whole, state(folder / "resumed")) == 0
    logged = [json.loads(line) for line in (folder / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in logged if line["kind"] == "train"] == [4, 6, 10, 12]
    # Over all: in TensorFlow, Horovod's core may take what ranks wait for a sum of weights as that of another interval.
    assert sum(sum(line["communicate_s"]) for line in logged if line["kind"] == "train") > 0

    status, output = run([sys.executable, str(REFERENCE), framework, "reference.npz", *STEPS, *LOCAL], tmp_path)
    assert status == 0, output
    reference = np.load(tmp_path / "reference.npz")
    assert max(float(np.abs(whole[name] - reference[name]).max()) for name in reference.files) < 1e-5
    apart = [name for name in reference.files if name.startswith("1/")]
    assert max(float(np.abs(reference[name] - whole["0" + name[1:]]).max()) for name in apart) > 1e-4


@pytest.mark.needs("torch")
@pytest.mark.matrix
def test_ddp(tmp_path):
    folder = train(tmp_path, "torch", "--strategy", "ddp", *STEPS, *LOCAL, by="torchrun", np=2)
    other = train(tmp_path, "torch", "--strategy", "ring", *STEPS, *LOCAL, "--name", "ring", by="local", np=2)
    assert distance(newest(folder).weights, newest(other).weights) < 1e-6


@pytest.mark.parametrize(
    ("framework", "method"),
    [
        (FASTEST, "powersgd:2"),
        pytest.param("torch", "int8", marks=MATRIX),
        pytest.param("tensorflow", "powersgd:2", marks=MATRIX),
    ],
)
def test_changes_of_weights_are_compressed(framework, method, tmp_path):
    """Resumed bit for bit; and where changes were compressed, gradients do not begin with what was left of those."""
    options = (*STEPS, *LOCAL, "--compression", method)
    runs = {
        "whole": options,
        "part": (*options, "--max-steps", "4"),
        "gradients": ("--resume", "runs/part", "--sync-every", "1", "--name", "gradients", "--max-steps", "6"),
        "resumed": ("--resume", "runs/part", "--max-steps", "0"),
        "plain": (*STEPS, *LOCAL),
    }
    folder = train_several(tmp_path, framework, runs, "local", 2)
    whole = state(folder / "whole")
    assert distance(whole, state(folder / "resumed")) == 0
    moved = distance(newest(folder / "plain").weights, newest(folder / "part").weights)
    assert 0 < distance(newest(folder / "whole").weights, newest(folder / "plain").weights) < moved
    if method.startswith("powersgd"):
        assert np.abs(whole["0/compression/error"] - whole["1/compression/error"]).max() > 0
        assert np.abs(state(folder / "part")["0/compression/error"]).max() > 0


def test_one_rank_and_another_number_of_ranks(tmp_path):
    two = train(tmp_path, FASTEST, *STEPS, *LOCAL, "--max-steps", "4", "--name", "two", by="local", np=2)
    single = ("--strategy", "single", *STEPS)
    runs = {"ordinary": single, "average": (*single, *LOCAL), "one": ("--resume", str(two), "--max-steps", "6")}
    folder = train_several(tmp_path, FASTEST, runs, "alone", 1)
    assert distance(state(folder / "ordinary"), state(folder / "average")) == 0
    log = (folder / "one" / "logs" / "rank-0.log").read_text()
    assert "each of the checkpoint's 2 ranks has its own optimizer state; all ranks resume from rank 0's" in log
    assert newest(folder / "one").position.step == 6


def test_a_rank_that_is_killed_between_sync_points(tmp_path):
    """At step 5: the checkpoint that is due after step 3 was written at the sync point after step 4."""
    options = ("--strategy", "ring", *STEPS, *LOCAL, "--checkpoint-every", "3")
    command = ["python", "-m", "hvdtrain", "launch", "local", "-n", "2", "--restarts", "1", "--"]
    command += ["python", str(PROGRAMS), "die", FASTEST, *options, "--name", "run", "--auto-resume"]
    status, output = run(command, tmp_path)
    assert status == 0, output
    attempts = json.loads((tmp_path / "runs" / "run" / "attempts.json").read_text())
    assert [(attempt["status"], attempt["checkpoint"]) for attempt in attempts] == [(137, -1), (0, 4)]
    undisturbed = train(tmp_path, FASTEST, *options, "--name", "undisturbed", by="local", np=2)
    assert distance(state(tmp_path / "runs" / "run"), state(undisturbed)) == 0


def test_a_request_to_stop_waits_for_a_sync_point(tmp_path):
    long = ("--strategy", "ring", "--epochs", "400", "--sync-every", "7", "--log-every", "1")
    command = [*launcher("local", 2), "python", "-m", f"hvdtrain.{FASTEST}_lenet", *long, "--name", "run"]
    process = start(command, tmp_path)
    os.kill(pids_of_ranks(tmp_path / "runs" / "run", 2)[1], signal.SIGUSR1)
    status, output = finish(process, 60)
    assert status == 75, output
    stopped = newest(tmp_path / "runs" / "run").position.step
    assert stopped % 23 % 7 == 0
    last = ("--max-steps", str(stopped + 14 - stopped % 23 % 14))
    runs = {"resumed": ("--resume", "runs/run", *last), "straight": (*long, *last)}
    folder = train_several(tmp_path, FASTEST, runs, "local", 2)
    assert distance(state(folder / "resumed"), state(folder / "straight")) == 0


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, short={"torch"}))
def test_a_task_with_parameters_that_get_no_gradient(framework, tmp_path):
    """Also with one that gets one on some ranks only, and a complex one; with Adam, and one that is frozen."""
    task = ROOT / "tests" / "support" / "tasks" / f"of_{framework}.py"
    options = ("--strategy", "ring", "--epochs", "3", "--batch-size", "8", "--optimizer", "adam", "--lr", "0.01")
    frozen = ("--freeze", "of_kind.*") if framework == "torch" else ()
    runs = {"whole": (*options, *frozen, *LOCAL, "--model", f"{task}:Regression")}
    runs["part"] = (*runs["whole"], "--max-steps", "4")
    runs["resumed"] = ("--resume", "runs/part", "--max-steps", "0")
    folder = train_several(tmp_path, framework, runs, "local", 2)
    assert distance(state(folder / "whole"), state(folder / "resumed")) == 0
    losses = [json.loads(line) for line in (folder / "whole" / "metrics.jsonl").read_text().splitlines()]
    tests = [line["loss"] for line in losses if line["kind"] == "test"]
    assert tests[-1] < tests[0]


@pytest.mark.parametrize("framework", cases(SCRIPTS, short={"torch"}))
def test_a_script_with_its_own_loop(framework, tmp_path):
    """Killed between sync points, and left between them: all ranks then have the same weights, or the run fails."""
    options = ("--epochs", "2", "--batch-size", "20", "--device", "cpu", "--quiet", "--sync-every", "5")
    script = ["python", str(SCRIPTS[framework]), *options]
    runs = {
        "whole": ([], {}),
        "killed": (["--auto-resume", "--checkpoint-every", "4"], {"KILL_AT": "7"}),
        "left": ([], {"LEAVE_AT": "7"}),
    }
    for name, (more, environment) in runs.items():
        launch = [*launcher("local", 2)[:-1], "--restarts", "1", "--"]
        status, output = run([*launch, *script, "--name", name, *more], tmp_path, STATE="1", **environment)
        assert status == 0, output
        assert ("SIGKILL" in output) == (name == "killed")
    assert_identical(tmp_path / "runs" / "killed", tmp_path / "runs" / "whole")
    assert distance(state(tmp_path / "runs" / "killed"), state(tmp_path / "runs" / "whole")) == 0
    assert newest(tmp_path / "runs" / "left").position.step == 7


ACCEPTED = """
import sys
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.frameworks.registry import check_request, list_strategies
from hvdtrain.networks.registry import find_network
from hvdtrain.tasks.target import NetworkTarget

def check(strategy, api="auto", **runtime):
    config = Config(framework=sys.argv[1], strategy=strategy, api=api, sync_every=4)
    try:
        network = find_network("lenet").for_data((1, 28, 28), 10, "")
        check_request(config, NetworkTarget(network), RuntimeOptions(**runtime))
    except UserError as error:
        return error.reason
    return ""

for row in list_strategies(sys.argv[1]):
    print(row.strategy, row.api, check(row.strategy, row.api), sep="|")
print("cuda_graph", "", check("ring", cuda_graph=True, device="auto"), sep="|")
"""


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_strategies_that_can_make_local_steps(framework, tmp_path):
    status, output = run([sys.executable, "-c", ACCEPTED, framework], tmp_path)
    assert status == 0, output
    rows = [line.split("|") for line in output.splitlines() if line.count("|") == 2]
    accepted = {(strategy, api) for strategy, api, reason in rows if not reason}
    names = {"single", "horovod", "ring", "mpi"} | ({"ddp"} if framework == "torch" else set())
    assert accepted == {(name, STYLES[framework][0]) for name in names}
    reasons = [reason for _, _, reason in rows[:-1] if reason]
    assert reasons and all("has no steps that a rank makes by itself" in reason for reason in reasons)
    assert "combines the gradients of each step" in rows[-1][2]


def test_a_job_that_survives_lost_ranks_is_refused(tmp_path):
    command = [*launcher("local", 2)[:-1], "--survive", "--", "python", "-m", f"hvdtrain.{FASTEST}_lenet"]
    status, output = run([*command, "--strategy", "ring", "--sync-every", "4"], tmp_path)
    assert status == 2, output
    assert "--sync-every 4: launch --survive: the steps that a lost rank made by itself would be lost" in output
