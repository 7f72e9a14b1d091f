"""--balance: shards move away from a rank that takes longer for each, and the bits stay those of one process.

Ranks are processes, as the time of each rank is measured by its own steps; the run that they are compared with is not.
"""

import pytest
from support.in_process import train_here
from support.jobs import ROOT, launcher, records, succeed
from support.same_bits import assert_same_bits

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
    succeed(command, tmp_path, SLOW="1", SHARD_S="0.01")
    shared = tmp_path / "runs" / "run"
    assert_same_bits(shared, alone)
    first, *_ = changes = records(shared, "shards")
    assert first["moved"] == [[shard, 1, 0] for shard in range(4, first["counts"][0])]
    assert all(record["counts"][1] < 4 and sum(record["counts"]) == 8 for record in changes)
    assert f"shard(s) move from rank 1 to 0: {first['why']}" in (shared / "logs" / "rank-0.log").read_text()
    compute_s = [one["compute_s"] for one in records(shared, "train") if len(one["compute_s"]) == 2]
    assert compute_s[-2][1] / compute_s[-2][0] < 0.7 * compute_s[0][1] / compute_s[0][0]
