"""Which steps of a run can be trained again, and with which options."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from support.networks import LENET_RECORD
from support.run_folders import write_changes, write_run

from hvdtrain.errors import UserError
from hvdtrain.interfaces.learner import Checkpoint, Position
from hvdtrain.runs import checkpoints
from hvdtrain.training.replay import choose

HASHES = {10: "a" * 16, 20: "b" * 16, 30: "c" * 16}


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def make(folder: Path, saved=(10, 20), began=1, **options) -> Path:
    """A run of 30 steps, of which each tenth has a hash, and those `saved` still have a checkpoint.

    began: seconds since 1970 at which it started; it makes a step each second.
    """
    write_run(folder, started=stamp(began), **options)
    write_metrics(folder, 1, 30, began)
    for step in saved:
        position = Position(0, 64 * step, step, 64, 0)
        made = Checkpoint(position, "lenet", LENET_RECORD, "torch", "sgd", "f1", 0.5, ("0",))
        made.weights["w"] = np.zeros(3, np.float32)
        checkpoints.save(folder / "checkpoints", made, keep=9)
    return folder


def stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+0000", time.gmtime(seconds))


def write_metrics(folder: Path, first: int, last: int, began: float = 0) -> None:
    with open(folder / "metrics.jsonl", "a") as file:
        for step in range(first, last + 1):
            common = {"step": step, "epoch": step / 100, "time": began + step}
            file.write(json.dumps({"kind": "train", **common, "loss": 1.0}) + "\n")
            if step in HASHES:
                file.write(json.dumps({"kind": "checkpoint", **common, "parameters": HASHES[step]}) + "\n")


def resume(folder: Path, began: float, **options) -> None:
    """Another session of the run."""
    number = 1 + len([*folder.glob("config-*.json")])
    (folder / "config.json").rename(folder / f"config-{number}.json")
    other = write_run(folder / f"session-{number}", started=stamp(began), **options)
    (other / "config.json").rename(folder / "config.json")


@pytest.mark.parametrize(
    ("given", "steps", "hashes"),
    [
        ((None, None), (20, 30), [20, 30]),
        ((None, 20), (10, 20), [10, 20]),
        ((None, 10), (0, 10), [10]),
        ((0, None), (0, 30), [10, 20, 30]),
        ((10, 30), (10, 30), [10, 20, 30]),
    ],
)
def test_steps_are_from_a_checkpoint_to_a_hash(tmp_path, given, steps, hashes):
    segment = choose(make(tmp_path / "run"), *given)
    start = segment.runtime.resume
    assert (int(start.name.partition("-")[2]) if start else 0) == segment.first
    assert (segment.first, segment.config.max_steps) == steps
    assert segment.hashes == {step: HASHES[step] for step in hashes}
    assert segment.config.epochs == 4


@pytest.mark.parametrize("given", [(None, 25), (5, None), (20, 20), (30, None), (25, 20)])
def test_steps_that_cannot_be_are_an_error_with_a_remedy(tmp_path, given):
    with pytest.raises(UserError) as failed:
        choose(make(tmp_path / "run"), *given)
    assert failed.value.remedy.startswith("give ")


def test_options_are_those_of_the_session_that_trained_the_steps(tmp_path):
    """Step 20 was the last of the first session; the second changed the learning rate and the strategy."""
    folder = make(tmp_path / "run", began=1000, lr=0.05, strategy="ring")
    resume(folder, 1021, lr=0.1, strategy="mpi")
    first, second = choose(folder, 10, 20), choose(folder, 20, 30)
    assert (first.config.lr, first.config.strategy) == (0.05, "ring")
    assert (second.config.lr, second.config.strategy) == (0.1, "mpi")
    with pytest.raises(UserError, match=r"--lr 0\.05"):
        choose(folder, 10, 30)
    folder = make(tmp_path / "distributed", began=1000, max_steps=20, strategy="ring")
    resume(folder, 1021, strategy="mpi")
    assert choose(folder, 0, 30).config.strategy == "mpi", "sessions that only distribute otherwise are one"
    assert choose(folder, 0, 30, "single").config.strategy == "single"


def test_a_run_that_continued_another_has_no_beginning(tmp_path):
    folder = make(tmp_path / "run", saved=(20,))
    content = json.loads((folder / "config.json").read_text())
    content["runtime"]["resume"] = "runs/other"
    (folder / "config.json").write_text(json.dumps(content))
    assert [*choose(folder).hashes] == [20, 30]
    with pytest.raises(UserError, match=r"no checkpoint of step 0 .* one of \[20\]"):
        choose(folder, 0)


@pytest.mark.parametrize("model", ["loop.py", "a_task"])
def test_what_only_a_program_of_the_user_can_repeat_is_refused(tmp_path, model):
    folder = make(tmp_path / "run", model=model)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "network": {"task": model, "options": {}}}))
    with pytest.raises(UserError) as failed:
        choose(folder)
    assert model in failed.value.reason
    assert "--max-steps 30" in failed.value.remedy


def test_a_run_whose_ranks_changed_is_one_segment(tmp_path):
    """Records of what happened to ranks are of no session."""
    folder = make(tmp_path / "run", ranks=4, shards=16)
    write_changes(folder, back=True)
    segment = choose(folder, 0)
    assert (segment.runtime.resume, [*segment.hashes]) == (None, [10, 20, 30])
