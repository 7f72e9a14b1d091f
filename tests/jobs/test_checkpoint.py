"""Checkpoints survive kills and damage, and runs go on from them as if nothing had happened."""

import json
import random
import shutil

import pytest
from faults.checkpoint_files import kills_while_writing
from support.jobs import FRAMEWORKS, distance, newest, run, train

from hvdtrain.errors import UserError
from hvdtrain.interfaces import Checkpoint, OptimizerState, Position
from hvdtrain.networks.initial_weights import initial_weights
from hvdtrain.networks.registry import NETWORKS
from hvdtrain.runs import checkpoints
from hvdtrain.runs.checkpoints import Damaged

RESUME = ("python", "-m", "hvdtrain.torch_lenet", "--resume")


def made(step=1, score=0.0):
    weights = initial_weights(NETWORKS["lenet"], "xavier", step)
    state = OptimizerState({f"momentum/{name}": value for name, value in weights.items()}, -0.5, 7, {"a": 1})
    position = Position(1, 2, step, 64, 0)
    return Checkpoint(weights, state, position, "lenet", "torch", "sgd", "ab12", score, ("0", "1"))


def test_what_is_loaded_is_what_was_saved(tmp_path):
    saved = made()
    loaded = checkpoints.load(checkpoints.save(tmp_path, saved, keep=1))
    assert distance(loaded.weights, saved.weights) == 0
    assert distance(loaded.optimizer.arrays, saved.optimizer.arrays) == 0
    assert loaded.optimizer._replace(arrays={}) == saved.optimizer._replace(arrays={})
    assert (loaded.position, loaded.classes, loaded.data) == (saved.position, saved.classes, saved.data)


def test_newest_and_best_are_kept(tmp_path):
    for step, score in enumerate([0.5, 0.9, 0.7, 0.6, 0.8], start=1):
        checkpoints.save(tmp_path, made(step, score), keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-00000002",
        "step-00000004",
        "step-00000005",
    ]


@pytest.mark.parametrize("file", [*checkpoints.FILES, checkpoints.MANIFEST])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_damage_is_named_and_the_newest_whole_one_taken(tmp_path, caplog, file, damage):
    for step in (1, 2):
        checkpoints.save(tmp_path, made(step), keep=5)
    path = tmp_path / "step-00000002" / file
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data if damage == "flip" else data[: len(data) // 2])
    with pytest.raises(Damaged, match="step-00000002"):
        checkpoints.load(tmp_path / "step-00000002")
    assert checkpoints.newest(tmp_path)[1].position.step == 1
    assert "step-00000002" in caplog.text


def test_no_whole_checkpoint_is_an_error(tmp_path):
    with pytest.raises(UserError, match="no whole checkpoint"):
        checkpoints.newest(tmp_path)


def test_200_kills_while_writing(tmp_path):
    assert kills_while_writing(tmp_path, 200, random.Random(0)) >= 200


RUN = ("--momentum", "0.9", "--lr", "0.02", "--epochs", "2")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_resume_is_bit_for_bit_from_the_middle_of_an_epoch(tmp_path, framework):
    whole = newest(train(tmp_path, framework, "--name", "whole", *RUN, by="gloo", np=2))
    train(tmp_path, framework, "--name", "part", *RUN, "--max-steps", "30", by="gloo", np=2)
    train(tmp_path, framework, "--resume", "runs/part", "--max-steps", "0", by="gloo", np=2)
    resumed = newest(tmp_path / "runs" / "part")
    assert resumed.position == whole.position
    assert distance(resumed.weights, whole.weights) == 0
    assert distance(resumed.optimizer.arrays, whole.optimizer.arrays) == 0


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_resume_in_another_framework_and_size(tmp_path, framework):
    """Two ranks of one framework, then one process of another: the same as one process throughout."""
    other = FRAMEWORKS[(FRAMEWORKS.index(framework) + 1) % 3]
    whole = newest(train(tmp_path, other, "--name", "whole", *RUN, "--max-steps", "12"))
    train(tmp_path, framework, "--name", "part", *RUN, "--max-steps", "8", by="gloo", np=2)
    train(tmp_path, other, "--resume", "runs/part", "--name", "part2", "--max-steps", "12")
    resumed = newest(tmp_path / "runs" / "part2")
    assert resumed.framework == other
    assert distance(resumed.weights, whole.weights) < 1e-4


def test_resume_says_what_does_not_fit(tmp_path):
    folder = train(tmp_path, "torch", "--strategy", "single", "--max-steps", "3")
    for options, sentence in (
        (("--seed", "4"), "--seed is 4 here and 0 in the checkpoint"),
        (("--data", "synthetic"), "the fingerprint of --data"),
    ):
        words = [*RESUME, str(folder), "--max-steps", "5", *options]
        status, output = run(words, tmp_path)
        assert status == 2, output
        assert sentence in output
    shutil.rmtree(folder / "checkpoints")
    status, output = run([*RESUME, str(folder)], tmp_path)
    assert status == 2, output
    assert "no whole checkpoint" in output


def test_optimizer_state_that_cannot_move_is_said_so(tmp_path):
    folder = train(tmp_path, "torch", "--strategy", "single", "--max-steps", "3")
    words = [*RESUME, str(folder), "--optimizer", "adam", "--max-steps", "4"]
    status, output = run(words, tmp_path)
    assert status == 0, output
    assert "starts afresh" in output
    assert len(json.loads((folder / "config.json").read_text())) > 3


def test_predict(tmp_path):
    from PIL import Image

    from hvdtrain.datasets import registry

    folder = train(tmp_path, "torch", "--strategy", "single", "--epochs", "5")
    digits = registry.load_dataset("digits", NETWORKS["lenet"])
    for i in range(4):
        Image.fromarray(digits.test_images[i, 0]).save(tmp_path / f"{i}.png")
    images = [f"{i}.png" for i in range(4)]
    answers = {}
    for framework in FRAMEWORKS:
        words = ["python", "-m", "hvdtrain", "predict", str(folder), *images, "--framework", framework]
        status, output = run(words, tmp_path)
        assert status == 0, output
        answers[framework] = [line.split("\t") for line in output.splitlines() if "\t" in line]
    assert answers["torch"] == answers["mxnet"] == answers["tensorflow"]
    got = [line[1].split()[0] for line in answers["torch"]]
    assert got == [digits.classes[label] for label in digits.test_labels[:4]]
    (tmp_path / "bad.png").write_bytes(b"no image")
    status, output = run(["python", "-m", "hvdtrain", "predict", str(folder), "bad.png"], tmp_path)
    assert status == 2
    assert "bad.png: no image that can be read" in output
