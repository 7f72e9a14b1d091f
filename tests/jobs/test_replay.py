"""`replay`: a part of a run trained again, with other ranks and launchers, gives the bits that the run recorded."""

import re
import shutil

import pytest
from support.jobs import ROOT, launcher, run, train
from support.stack import FASTEST, FRAMEWORKS, cases

from hvdtrain.runs.metrics import MetricsReader

REPLAY = ("python", "-m", "hvdtrain", "replay")
TASK = ROOT / "tests" / "support" / "tasks"
SHARDS = ("--framework", FASTEST, "--shards", "4", "--max-steps", "30", "--checkpoint-every", "10", "--epochs", "2",
          "--keep", "9", "--name", "run", "--quiet")  # fmt: skip
"""Epochs of 23 steps, so that a replay ends and begins in the middle of one."""


def hashes(folder):
    recorded = MetricsReader(folder / "metrics.jsonl").read().hashes()
    return {step: saved.parameters for step, saved in recorded.items()}


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """The folder in which a run of two ranks with --shards is."""
    folder = tmp_path_factory.mktemp("sharded")
    command = [*launcher("local", 2), "python", "-m", "hvdtrain", "train", *SHARDS, "--strategy", "ring"]
    status, output = run(command, folder)
    assert status == 0, output
    return folder


@pytest.mark.parametrize(
    ("by", "np", "options"),
    [
        ("alone", 1, ("--strategy", "single", "--from", "10", "--to", "20")),
        pytest.param("local", 3, (), marks=pytest.mark.matrix),
        pytest.param("gloo", 2, ("--strategy", "horovod", "--from", "0"), marks=pytest.mark.matrix),
        pytest.param("mpirun", 3, ("--strategy", "mpi"), marks=pytest.mark.matrix),
    ],
)
def test_any_ranks_give_the_bits_of_the_run(sharded, by, np, options):
    folder, last = sharded / "runs" / "run", options[-1] if "--to" in options else "30"
    before = content(folder)
    status, output = run([*launcher(by, np), *REPLAY, "runs/run", "--quiet", *options], sharded)
    assert status == 0, output
    assert hashes(folder)[int(last)] in output
    assert content(folder) == before


def test_other_bits_are_named(sharded, tmp_path):
    """One bit of one array of a checkpoint, and one digit of a recorded hash."""
    import numpy as np

    from hvdtrain.runs import checkpoints

    folder = tmp_path / "changed"
    shutil.copytree(sharded / "runs" / "run", folder)
    path, saved = checkpoints.newest(folder)
    saved.weights["conv2.weight"].reshape(-1).view(np.uint32)[7] ^= 1
    shutil.rmtree(path)
    checkpoints.save(folder / "checkpoints", saved, keep=9)
    recorded = hashes(folder)[30]
    text = (folder / "metrics.jsonl").read_text().replace(recorded, "0" * 16)
    (folder / "metrics.jsonl").write_text(text)
    command = [*REPLAY, str(folder), "--strategy", "single", "--quiet", "--from", "23"]
    status, output = run(command, tmp_path)
    assert status == 1, output
    assert {"0" * 16, recorded, "conv2.weight"} <= set(re.findall(r"[\w.]+", output)) and "conv1" not in output
    assert output.count("\n") == 1


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, short={FASTEST}))
def test_one_process_repeats_a_task(tmp_path, framework):
    """With dropout and batch normalization; from the initial weights, and from the middle of an epoch."""
    task = f"{TASK / f'of_{framework}.py'}:Classifier"
    options = ("--strategy", "single", "--batch-size", "16", "--max-steps", "9", "--checkpoint-every", "4", "--quiet")
    folder = train(tmp_path, framework, "--model", task, *options)
    for given in ("--from", "0"), ("--from", "4", "--to", "8"):
        status, output = run([*REPLAY, "runs/run", "--quiet", *given], tmp_path)
        assert status == 0, output
        assert hashes(folder)[int(given[-1]) or 9] in output


def test_invalid_requests_are_one_line(sharded):
    for options in (("--to", "21"), ("--from", "x"), ("--from", "30"), ("--strategy", "dpp")):
        status, output = run([*REPLAY, "runs/run", "--quiet", *options], sharded)
        assert status == 2, output
        assert output.count("\n") == 1 and "; " in output
