"""The rows of a rank whose shards change while it trains."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from support.fake_learner import numbered

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets import sharding
from hvdtrain.datasets.reader import Reader
from hvdtrain.datasets.weights import Weighting
from hvdtrain.interfaces.learner import Position
from hvdtrain.training.batches import Batches

SHARDS, ROWS, BATCH = 4, 44, 8


class Run(SimpleNamespace):
    """What `Batches` asks of a run, of one rank of two, with shards that a test moves."""

    config, runtime = Config(shards=SHARDS, batch_size=BATCH, remainder="exact"), RuntimeOptions()
    samples, global_batch, remainder = ROWS, BATCH, "exact"
    group, target = SingleProcess(), SimpleNamespace(kind="network")
    in_shards, parts = True, SHARDS
    numbers: tuple[int, ...] = (0, 1)
    weighting = Weighting(config, numbered(ROWS), 1)

    @property
    def assignment(self):
        return sharding.Assignment((self.numbers, tuple(sorted(set(range(SHARDS)) - set(self.numbers)))))

    def learning_rate(self, step):
        return 0.1


@pytest.mark.parametrize("workers", [0, 2])
def test_the_next_step_has_the_new_shards(workers):
    run, dataset = Run(), numbered(ROWS)
    order, numbers = sharding.order(0, 1, ROWS), {0: (0, 1), 2: (0, 3), 3: (), 5: (0, 1, 2, 3)}
    with Reader(dataset, workers) as reader:
        batches = Batches(run, reader).of_epoch(Position(step=6, epoch=1), 6)
        for step in range(6):
            run.numbers = numbers.get(step, run.numbers)
            batch = next(batches)
            parts = sharding.slices_of_step(order, step, BATCH, "exact", run.assignment.cut(0))
            assert batch.step == 6 + step
            assert [shard.part for shard in batch.shards] == list(run.numbers)
            for shard, part in zip(batch.shards, parts, strict=True):
                assert np.array_equal(shard.rows, part.rows) and np.array_equal(shard.arrays[1], part.rows)
        assert next(batches, None) is None


@pytest.mark.parametrize("workers", [0, 2])
def test_a_rank_reads_the_shard_that_it_checks_after_its_own(workers):
    """Every second step; the last batch has 4 rows. A shard that is checked is no row of this rank."""
    run, dataset = Run(), numbered(ROWS)
    run.runtime = RuntimeOptions(audit=2)
    checked = 0
    with Reader(dataset, workers) as reader:
        batches = Batches(run, reader)
        for batch in batches.of_epoch(Position(), 6):
            own = [shard for shard in batch.shards if not shard.is_witness]
            others = [shard for shard in batch.shards if shard.is_witness]
            assert [shard.part for shard in own] == [0, 1] and batch.by_rank == ((0, 1), (2, 3))
            assert (batch.audit is None) == (batch.step % 2 == 0)
            assert bool(others) == bool(batch.audit and batch.audit.by == 0)
            for shard in others:
                checked += 1
                assert shard is batch.shards[-1] and shard.part == batch.audit.shard in (2, 3)
                again = batches.only(batch.step, 0, batch.audit)
                assert again.audit == batch.audit._replace(only=True) and again.by_rank == ()
                (same,) = again.shards
                assert same.is_witness and same.part == shard.part and np.array_equal(same.rows, shard.rows)
                assert np.array_equal(same.arrays[1], shard.arrays[1]) and np.array_equal(same.weights, shard.weights)
    assert checked in (1, 2) and batches.rows == ROWS // 2


def test_who_checks_follows_the_shards_that_move():
    """A shard that moves between two other ranks may change who checks it, so nothing that was read ahead is used."""
    run, dataset = Run(), numbered(ROWS)
    run.runtime = RuntimeOptions(audit=1)
    with Reader(dataset, 2) as reader:
        batches = Batches(run, reader).of_epoch(Position(), 5)
        next(batches)
        moved = sharding.Assignment(((0, 1), (), (2, 3)))
        with mock.patch.object(Run, "assignment", moved):
            for batch in batches:
                owners = [rank for rank, shards in enumerate(moved.by_rank) if batch.audit.shard in shards]
                assert batch.audit.by not in owners
                assert (batch.audit.by == 0) == batch.shards[-1].is_witness
