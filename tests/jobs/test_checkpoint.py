"""Checkpoints survive kills, and runs are resumed from them as if they had not been interrupted."""

import dataclasses
import json
import random
import re
import shutil
from pathlib import Path

import pytest
from faults.checkpoint_files import kills_while_writing
from support.jobs import distance, newest, run, several, train, train_several
from support.stack import FASTEST, FRAMEWORKS, INSTALLED, cases

from hvdtrain.interfaces import Position
from hvdtrain.runs import checkpoints

RESUME = ("python", "-m", f"hvdtrain.{FASTEST}_lenet", "--resume")


@pytest.mark.guarantee("complete-checkpoints")
@pytest.mark.parametrize("kills", [60, pytest.param(200, marks=pytest.mark.matrix)])
def test_kills_while_writing(tmp_path, kills):
    assert kills_while_writing(tmp_path, kills, random.Random(0)) >= kills


RUN = ("--momentum", "0.9", "--lr", "0.02", "--epochs", "2")


@pytest.mark.matrix
@pytest.mark.guarantee("resume-bit-for-bit")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_resume_in_the_middle_of_an_epoch_is_bit_for_bit(tmp_path, framework):
    folder = train_several(tmp_path, framework, {"whole": RUN, "part": (*RUN, "--max-steps", "30")}, "gloo", 2)
    train(tmp_path, framework, "--resume", "runs/part", "--max-steps", "0", by="gloo", np=2)
    whole, resumed = newest(folder / "whole"), newest(folder / "part")
    assert resumed.position == whole.position
    assert distance(resumed.weights, whole.weights) == 0
    assert distance(resumed.optimizer.arrays, whole.optimizer.arrays) == 0


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, short={FASTEST}))
def test_a_checkpoint_of_many_files_resumes_bit_for_bit(tmp_path, framework):
    """As parameters over 1 GiB have; also one that is smaller than an array."""
    trainings = [(*RUN, "--name", name, "--max-steps", steps) for name, steps in (("whole", "4"), ("part", "2"))]
    command = several(framework, [*trainings, ("--resume", "runs/part", "--max-steps", "4")], "local", 2)
    status, output = run(["in_small_parts" if word == "several" else word for word in command], tmp_path)
    assert status == 0, output
    whole, resumed = newest(tmp_path / "runs" / "whole"), newest(tmp_path / "runs" / "part")
    folder = checkpoints.newest(tmp_path / "runs" / "part")[0]
    for stem in ("weights", "optimizer"):
        assert max(path.stat().st_size for path in folder.glob(f"{stem}-0000?-of-0000?.safetensors")) > 20_000
    assert resumed.position == whole.position
    assert distance(resumed.weights, whole.weights) == 0
    assert distance(resumed.optimizer.arrays, whole.optimizer.arrays) == 0


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, short={"torch"}))
def test_resume_in_another_framework_and_with_another_size(tmp_path, framework):
    """Two ranks in one framework, then one process in another: the same as one process throughout."""
    other = INSTALLED[(INSTALLED.index(framework) + 1) % len(INSTALLED)]
    train(tmp_path, framework, "--name", "part", *RUN, "--max-steps", "8", by="local", np=2)
    runs = {"whole": (*RUN, "--max-steps", "12"), "resumed": ("--resume", "runs/part", "--max-steps", "12")}
    folder = train_several(tmp_path, other, runs, "alone", 1)
    whole, resumed = (newest(folder / name) for name in runs)
    assert resumed.framework == other
    assert distance(resumed.weights, whole.weights) < 1e-4


@pytest.mark.parametrize("framework", cases(["tensorflow", "torch"], short={"torch"}))
def test_a_loss_scale_belongs_to_fp16(tmp_path, framework):
    """A run in fp32 has none, so that one that resumes from it in fp16 starts from the initial one."""
    runs = {
        "fp32": ("--max-steps", "2"),
        "fp16": ("--resume", "runs/fp32", "--precision", "fp16", "--max-steps", "4"),
        "back": ("--resume", "runs/fp16", "--precision", "fp32", "--max-steps", "5"),
    }
    single = {name: ("--strategy", "single", *options) for name, options in runs.items()}
    folder = train_several(tmp_path, framework, single, "alone", 1)
    scales = {name: newest(folder / name).optimizer.extra.get("loss_scale") or {} for name in runs}
    in_fp16 = scales["fp16"] if framework == "tensorflow" else scales["fp16"]["scale"]
    assert in_fp16 > 1000  # 65536, or half of it after each overflow
    assert scales["fp32"] == scales["back"] == {}


@pytest.mark.guarantee("newest-checkpoint")
def test_renumbered_steps_and_a_branch(tmp_path):
    """Another batch size, another --remainder, and then an older checkpoint: the newest is the one written last."""
    trainings = [
        ("--name", "run", "--epochs", "2"),
        ("--resume", "runs/run", "--epochs", "3", "--batch-size", "256"),
        ("--resume", "runs/run", "--epochs", "4", "--remainder", "drop"),
        ("--resume", "runs/run/checkpoints/step-00000046", *("--epochs", "3", "--batch-size", "64")),
    ]
    single = [("--strategy", "single", "--remainder", "pad", *options) for options in trainings]
    status, output = run(several("torch", single, "alone", 1), tmp_path)
    assert status == 0, output
    folder = tmp_path / "runs" / "run"
    resumed = re.findall(r"resumed from runs/run/checkpoints/step-0*(\d+): epoch (\d), step (\d+)", output)
    assert resumed == [("46", "3", "12"), ("18", "4", "15"), ("46", "3", "46")]
    assert "runs/run/branch-1 keeps 2 checkpoint(s) that training does not continue" in output
    position = newest(folder).position
    assert dataclasses.replace(position, best=0.0, best_epoch=0) == Position(3, 0, 69, 64, 0)
    assert sorted(path.name for path in (folder / "branch-1").iterdir()) == ["step-00000018", "step-00000020"]


@pytest.fixture(scope="module")
def three_steps(tmp_path_factory):
    """A run of one process, which tests copy."""
    return train(tmp_path_factory.mktemp("three"), FASTEST, "--strategy", "single", "--max-steps", "3")


@pytest.fixture
def folder(three_steps, tmp_path):
    """The folder of a test's own copy of the run, `runs/run`."""
    return Path(shutil.copytree(three_steps, tmp_path / "runs" / "run"))


def test_resume_with_options_that_do_not_match(tmp_path, folder):
    for options, message in (
        (("--seed", "4"), "--seed is 4 here and 0 in the checkpoint"),
        (("--data", "synthetic"), "the fingerprint of --data"),
    ):
        command = [*RESUME, str(folder), "--max-steps", "5", *options]
        status, output = run(command, tmp_path)
        assert status == 2, output
        assert message in output
    shutil.rmtree(folder / "checkpoints")
    status, output = run([*RESUME, str(folder)], tmp_path)
    assert status == 2, output
    assert "no intact checkpoint" in output


def test_resume_with_another_optimizer_warns(tmp_path, folder):
    command = [*RESUME, str(folder), "--optimizer", "adam", "--max-steps", "4"]
    status, output = run(command, tmp_path)
    assert status == 0, output
    assert "no optimizer state of adam, which starts from zero" in output
    assert len(json.loads((folder / "config.json").read_text())) > 3


def test_existing_run_is_not_overwritten(tmp_path, folder):
    before = (folder / "metrics.jsonl").read_text()
    options = ("--strategy", "single", "--max-steps", "2", "--name", "run")
    status, output = run(["python", "-m", f"hvdtrain.{FASTEST}_lenet", *options], tmp_path)
    assert status == 2, output
    assert "runs/run exists; choose another --name, or resume it with --resume runs/run" in output
    assert (folder / "metrics.jsonl").read_text() == before
