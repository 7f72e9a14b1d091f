"""The rows of a rank whose shards change while it trains."""

from types import SimpleNamespace

import numpy as np
import pytest
from support.fake_learner import numbered

from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets import sharding
from hvdtrain.datasets.reader import Reader
from hvdtrain.interfaces import Position
from hvdtrain.training.batches import Batches

SHARDS, ROWS, BATCH = 4, 44, 8


class Run(SimpleNamespace):
    """What `Batches` asks of a run, of one rank of two, with shards that a test moves."""

    config, runtime = Config(shards=SHARDS, batch_size=BATCH, remainder="exact"), RuntimeOptions(device_data="off")
    samples, global_batch, remainder = ROWS, BATCH, "exact"
    group, target = SingleProcess(), SimpleNamespace(kind="network")
    numbers: tuple[int, ...] = (0, 1)

    def cut(self, rank):
        return sharding.Cut(SHARDS, self.numbers)

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
            parts = sharding.slices_of_step(order, step, BATCH, "exact", run.cut(0))
            assert batch.step == 6 + step
            assert [shard.part for shard in batch.shards] == list(run.numbers)
            for shard, part in zip(batch.shards, parts, strict=True):
                assert np.array_equal(shard.rows, part.rows) and np.array_equal(shard.arrays[1], part.rows)
        assert next(batches, None) is None
