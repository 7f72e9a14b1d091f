"""Checkpoints survive kills, and runs are resumed from them as if they had not been interrupted.

Writers are processes because they are killed, and ranks because they send each other the state that one has read.
"""

import dataclasses
import functools
import json
import random
import re

import pytest
from faults.checkpoint_files import kills_while_writing
from support.jobs import distance, newest, several, succeed, train_several
from support.stack import FASTEST, FRAMEWORKS, INSTALLED, cases

from hvdtrain.interfaces.learner import Position
from hvdtrain.runs import checkpoints


@pytest.mark.guarantee("complete-checkpoints")
@pytest.mark.parametrize("kills", [60, pytest.param(200, marks=pytest.mark.matrix)])
def test_kills_while_writing(tmp_path, kills):
    assert kills_while_writing(tmp_path, kills, random.Random(0)) >= kills


RUN = ("--momentum", "0.9", "--lr", "0.02", "--epochs", "2")
SINGLE = ("--strategy", "single")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """The folder of runs of two ranks of a framework, whose checkpoints have many files, also smaller than an array."""

    @functools.cache
    def of(framework):
        folder = tmp_path_factory.mktemp("ranks")
        trainings = [(*RUN, "--name", name, "--max-steps", steps) for name, steps in (("whole", "4"), ("part", "2"))]
        command = several(framework, [*trainings, ("--resume", "runs/part", "--max-steps", "4")], "local", 2)
        succeed(["in_small_parts" if word == "several" else word for word in command], folder)
        return folder / "runs"

    return of


@pytest.mark.guarantee("resume-bit-for-bit")
@pytest.mark.parametrize("framework", cases(FRAMEWORKS, short={FASTEST}))
def test_a_checkpoint_of_many_files_resumes_bit_for_bit_in_the_middle_of_an_epoch(two_ranks, framework):
    """As parameters over 1 GiB have."""
    whole, resumed = newest(two_ranks(framework) / "whole"), newest(two_ranks(framework) / "part")
    folder = checkpoints.newest(two_ranks(framework) / "part")[0]
    for stem in ("weights", "optimizer"):
        assert max(path.stat().st_size for path in folder.glob(f"{stem}-0000?-of-0000?.safetensors")) > 20_000
    assert resumed.position == whole.position
    assert distance(resumed.weights, whole.weights) == 0
    assert distance(resumed.optimizer.arrays, whole.optimizer.arrays) == 0


@pytest.fixture(scope="module")
def one_process(tmp_path_factory, two_ranks):
    """Of a framework: the folder of runs of one process."""

    @functools.cache
    def of(framework):
        folder = tmp_path_factory.mktemp("alone")
        other = two_ranks(next((name for name in INSTALLED if name != framework), framework))
        runs = {"whole": (*RUN, "--max-steps", "8"), "resumed": ("--resume", str(other / "whole"), "--max-steps", "8")}
        runs["adam"] = ("--resume", "runs/whole", "--optimizer", "adam", "--max-steps", "9")
        if framework != "mxnet":  # which has no fp16
            runs["fp32"] = ("--max-steps", "2")
            runs["fp16"] = ("--resume", "runs/fp32", "--precision", "fp16", "--max-steps", "4")
            runs["back"] = ("--resume", "runs/fp16", "--precision", "fp32", "--max-steps", "5")
        return train_several(folder, framework, {name: (*SINGLE, *runs[name]) for name in runs}, "alone", 1)

    return of


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, short={"torch"}))
def test_resume_in_another_framework_and_with_another_size(one_process, framework):
    """Two ranks in one framework, then one process in another: the same as one process throughout."""
    whole, resumed = (newest(one_process(framework) / name) for name in ("whole", "resumed"))
    assert (resumed.framework, resumed.position.step) == (framework, 8)
    assert distance(resumed.weights, whole.weights) < 1e-4


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, short={"torch"}))
def test_resume_with_another_optimizer_warns(one_process, framework):
    folder = one_process(framework) / "adam"
    assert newest(folder).position.step == 9
    log = (folder / "logs" / "rank-0.log").read_text()
    assert "no optimizer state of adam, which starts from zero" in log


@pytest.mark.parametrize("framework", cases(["tensorflow", "torch"], short={"torch"}))
def test_a_loss_scale_belongs_to_fp16(one_process, framework):
    """A run in fp32 has none, so that one that resumes from it in fp16 starts from the initial one."""
    runs = ("fp32", "fp16", "back")
    scales = {name: newest(one_process(framework) / name).optimizer.extra.get("loss_scale") or {} for name in runs}
    in_fp16 = scales["fp16"] if framework == "tensorflow" else scales["fp16"]["scale"]
    assert in_fp16 > 1000  # 65536, or half of it after each overflow
    assert scales["fp32"] == scales["back"] == {}


@pytest.mark.guarantee("newest-checkpoint")
def test_renumbered_steps_and_an_older_checkpoint(tmp_path):
    """Another batch size, another --remainder, and then an older checkpoint, which begins a run of its own."""
    trainings = [
        ("--name", "run", "--epochs", "2"),
        ("--resume", "runs/run", "--epochs", "3", "--batch-size", "256"),
        ("--resume", "runs/run", "--epochs", "4", "--remainder", "drop"),
        ("--resume", "runs/run/checkpoints/step-00000046", *("--epochs", "3", "--batch-size", "64")),
    ]
    single = [(*SINGLE, "--remainder", "pad", *options) for options in trainings]
    output = succeed(several("numpy", single, "alone", 1), tmp_path)
    resumed = re.findall(r"resumed from runs/run/checkpoints/step-0*(\d+): epoch (\d), step (\d+)", output)
    assert resumed == [("46", "3", "12"), ("18", "4", "15"), ("46", "3", "46")]
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if path.name != "run")
    assert newest(tmp_path / "runs" / "run").position.step == 20
    assert json.loads((folder / "config.json").read_text())["parent"] == "runs/run/checkpoints/step-00000046"
    position = newest(folder).position
    assert dataclasses.replace(position, best=(), best_epoch=0) == Position(3, 0, 69, 64, 0)
