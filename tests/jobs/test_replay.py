"""`replay`: a part of a run trained again, with other ranks and launchers, gives the bits that the run recorded.

The run is of two processes, as its ranks are; what one rank does is done in the test's process.
"""

import pytest
from support.in_process import inside, train_here
from support.jobs import ROOT, launcher, run, succeed
from support.stack import FASTEST, FRAMEWORKS, cases

from hvdtrain.runs.history import HistoryReader
from hvdtrain.training import replay

REPLAY = ("python", "-m", "hvdtrain", "replay", "runs/run")
SHARDS = ("--framework", FASTEST, "--shards", "4", "--max-steps", "30", "--checkpoint-every", "10", "--epochs", "2",
          "--keep", "9", "--name", "run", "--quiet")  # fmt: skip
"""Epochs of 23 steps, so that a replay ends and begins in the middle of one."""


def hashes(folder):
    recorded = HistoryReader(folder / "metrics.jsonl").read().hashes()
    return {step: saved.parameters for step, saved in recorded.items()}


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """The folder in which a run of two ranks with --shards is."""
    folder = tmp_path_factory.mktemp("sharded")
    words = [*launcher("local", 2), "python", "-m", "hvdtrain", "train", *SHARDS, "--strategy", "ring"]
    succeed(words, folder)
    return folder


@pytest.mark.parametrize(
    ("by", "ranks", "options"),
    [
        ("alone", 1, ("--strategy", "single", "--from", "10", "--to", "20")),
        pytest.param("local", 3, (), marks=pytest.mark.matrix),
        pytest.param("gloo", 2, ("--strategy", "horovod", "--from", "0"), marks=pytest.mark.matrix),
        pytest.param("mpirun", 3, ("--strategy", "mpi"), marks=pytest.mark.matrix),
    ],
)
def test_any_ranks_give_the_bits_of_the_run(sharded, by, ranks, options):
    folder, last = sharded / "runs" / "run", options[-1] if "--to" in options else "30"
    before = content(folder)
    output = succeed([*launcher(by, ranks), *REPLAY, *options], sharded)
    assert hashes(folder)[int(last)] in output
    assert content(folder) == before


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, short={FASTEST}))
def test_one_process_repeats_a_task(tmp_path, framework):
    """With dropout and batch normalization; from the initial weights, and from the middle of an epoch."""
    task = f"{ROOT}/tests/support/tasks/of_{framework}.py:Classifier"
    options = ("--batch-size", "16", "--max-steps", "9", "--checkpoint-every", "4")
    folder = train_here(tmp_path, framework, "--model", task, *options)
    for first, last in (0, 9), (4, 8):
        with inside(tmp_path):
            found = replay.replay(replay.choose(folder, first, last, "single"))
        assert (found.parameters, found.difference) == (hashes(folder)[last], "")


@pytest.mark.parametrize("options", [("--from", "x"), ("--strategy", "dpp"), ("--quiet",)])
def test_invalid_requests_are_one_line(sharded, options):
    status, output = run([*REPLAY, *options], sharded)
    assert status == 2 and output.count("\n") == 1 and "; " in output, output
