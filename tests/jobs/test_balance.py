"""--balance: shards move away from a rank that takes longer for each, and the bits stay those of one process.

Ranks are processes, as the time of each rank is measured by its own steps; the run that they are compared with is not.
"""

import os
import signal

import pytest
from support.in_process import train_here
from support.jobs import ROOT, finish, launcher, pids_of_ranks, run, start, wait_for
from support.same_bits import assert_same_bits, weights_hash

from hvdtrain.runs import metrics

TASK = f"{ROOT}/tests/support/tasks/unequal.py:Unequal"
OPTIONS = (
    *("--model", TASK, "--shards", "8", "--batch-size", "24", "--lr", "0.02", "--optimizer", "adam", "--device", "cpu"),
    *("--epochs", "1", "--max-steps"),
)
QUICKLY = """
from hvdtrain.cli.train import main
from hvdtrain.training import balance

balance.PART_S = 0.2
main("torch")
"""
"""Training that measures shards over shorter parts than it does for users: their sleeps are longer than all else."""


@pytest.mark.needs("torch")
@pytest.mark.guarantee("same-bits")
def test_shards_of_a_slow_rank_move_and_the_bits_stay(tmp_path):
    options = (*OPTIONS, "32", "--log-every", "2")
    alone = train_here(tmp_path, "torch", *options, "--name", "alone")
    command = [*launcher("local", 2), "python", "-c", QUICKLY, *options, "--name", "run"]
    status, output = run(command, tmp_path, SLOW="1", SHARD_S="0.01")
    assert status == 0, output
    shared = tmp_path / "runs" / "run"
    assert_same_bits(shared, alone)
    records = metrics.read(shared / "metrics.jsonl")
    first, *_ = changes = [record for record in records if record["kind"] == "shards"]
    assert first["moved"] == [[shard, 1, 0] for shard in range(4 + first["counts"][1], 8)]
    assert all(record["counts"][1] < 4 and sum(record["counts"]) == 8 for record in changes)
    assert f"shard(s) move from rank 1 to 0: {first['why']}" in (shared / "logs" / "rank-0.log").read_text()
    trained = [record["compute_s"] for record in records if record["kind"] == "train"]
    compute_s = [seconds for seconds in trained if len(seconds) == 2]
    assert compute_s[-2][1] / compute_s[-2][0] < 0.7 * compute_s[0][1] / compute_s[0][0]


@pytest.mark.matrix
@pytest.mark.needs("torch")
def test_a_rank_is_lost_after_shards_have_moved(tmp_path):
    """The others begin with equal shares."""
    options = (*OPTIONS, "50", "--log-every", "4")
    alone = train_here(tmp_path, "torch", *options, "--name", "alone")
    *launch, end = launcher("local", 3)
    command = [*launch, "--survive", end, "python", "-m", "hvdtrain.torch_lenet", *options, "--name", "run"]
    job, folder = start(command, tmp_path, SLOW="2", SHARD_S="0.03"), tmp_path / "runs" / "run"
    pids = pids_of_ranks(folder, 3)

    def records(kind):
        return [record for record in metrics.read(folder / "metrics.jsonl") if record["kind"] == kind]

    wait_for(lambda: records("shards"), 120)
    os.kill(pids[0], signal.SIGKILL)
    status, output = finish(job)
    assert status == 0, output
    assert weights_hash(folder) == weights_hash(alone)
    assert records("shards")[0]["counts"][2] < 3
    assert [1, 2] in [record["ranks"] for record in records("members")]
