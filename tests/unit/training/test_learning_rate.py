"""The learning rate at each step."""

from pathlib import Path
from unittest import mock

import pytest

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.training.run import Run, learning_rate


def rates(steps, size=1, **options):
    config = Config(**options)
    return [learning_rate(config, step, steps // config.epochs, size) for step in range(steps)]


def test_warm_up_rises_linearly_to_the_peak():
    assert rates(8, epochs=2, lr=0.4, warmup_epochs=1, schedule="constant") == pytest.approx(
        [0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4, 0.4]
    )


def test_step_schedule():
    actual = rates(8, epochs=4, lr=1.0, warmup_epochs=0, schedule="step", lr_step_epochs=2, lr_gamma=0.5)
    assert actual == pytest.approx([1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5])


def test_cosine_falls_to_nearly_zero():
    actual = rates(100, epochs=10, lr=1.0, warmup_epochs=0, schedule="cosine")
    assert actual[0] == 1
    assert actual[50] == pytest.approx(0.5)
    assert 0 < actual[-1] < 0.001
    assert actual == sorted(actual, reverse=True)


@pytest.mark.parametrize(
    ("rows", "options", "warns"),
    [
        (1000, {"max_steps": 40}, True),  # 100 steps an epoch, and one epoch of warm-up
        (1000, {"max_steps": 40, "schedule": "constant"}, True),
        (1000, {"max_steps": 99}, True),
        (1000, {"max_steps": 100}, False),
        (1000, {"max_steps": 40, "warmup_epochs": 0.1}, False),
        (1000, {"max_steps": 40, "warmup_epochs": 0}, False),
        (1000, {"epochs": 1}, False),
        (1000, {"epochs": 3, "warmup_epochs": 5}, True),
        (15, {"max_steps": 1, "batch_scope": "per-rank"}, True),
    ],
)
def test_a_run_that_ends_in_its_warm_up_says_so(rows, options, warns):
    config = Config(**{"batch_size": 10, "strategy": "single", **options})
    learner = mock.Mock(learning_rate=None, devices=1, group=mock.Mock(size=1, rank=0))
    run = Run(config, RuntimeOptions(), mock.Mock(unit="rows"), learner, mock.Mock(train=range(rows)), Path())
    assert bool(run.schedule_problem) == warns
    assert (max(map(run.learning_rate, range(run.last_step))) < 0.999 * config.lr) == warns
    learner.learning_rate = 0.1  # of a script's own loop
    assert not run.schedule_problem


def test_batch_scope_per_rank_scales_learning_rate_and_batch():
    assert rates(1, size=4, epochs=1, lr=0.1, warmup_epochs=0, batch_scope="per-rank") == [pytest.approx(0.4)]
    assert rates(1, size=4, epochs=1, lr=0.1, warmup_epochs=0) == [0.1]
    assert Config(batch_scope="per-rank", batch_size=32).global_batch(4) == 128
    assert Config(batch_size=32).global_batch(4) == 32
