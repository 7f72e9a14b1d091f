"""The learning rate at each step."""

import os
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


def test_polynomial_falls_to_zero_by_its_power():
    options = {"epochs": 5, "lr": 1.0, "warmup_epochs": 1, "schedule": "polynomial"}
    assert rates(5, **options) == pytest.approx([1, 1, 0.75, 0.5, 0.25])
    assert rates(5, lr_power=2, **options) == pytest.approx([1, 1, 0.75**2, 0.5**2, 0.25**2])


@pytest.mark.needs("torch")
@pytest.mark.parametrize("rise", [0.25, 0.3, 0.9])
@pytest.mark.parametrize("steps", [10, 97])
@mock.patch.dict(os.environ)  # which PyTorch changes
def test_onecycle_is_that_of_pytorch(rise, steps):
    import torch

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0, momentum=0.9)
    kind = torch.optim.lr_scheduler.OneCycleLR
    schedule = kind(optimizer, 0.4, total_steps=steps, pct_start=rise, cycle_momentum=False)
    expected = []
    for _ in range(steps):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(expected) < steps:
            schedule.step()
    actual = rates(steps, epochs=1, lr=0.4, schedule="onecycle", lr_rise=rise)
    assert actual == pytest.approx(expected, rel=1e-9)


def test_onecycle_without_a_rise_begins_at_its_peak():
    actual = rates(20, epochs=1, lr=0.4, schedule="onecycle", lr_rise=0)
    assert actual[0] == 0.4
    assert actual == sorted(actual, reverse=True)
    assert actual[-1] == pytest.approx(0.4 / 25e4)


def test_onecycle_of_one_step_is_at_its_peak():
    assert rates(1, epochs=1, lr=0.4, schedule="onecycle") == [0.4]


@pytest.mark.parametrize(
    ("rows", "options", "warns"),
    [
        (1000, {"max_steps": 40}, True),  # 100 steps an epoch, and one epoch of warm-up
        (1000, {"max_steps": 40, "schedule": "constant"}, True),
        (1000, {"max_steps": 99}, True),
        (1000, {"max_steps": 40, "schedule": "onecycle"}, True),  # of 1200 steps
        (1000, {"max_steps": 360, "schedule": "onecycle"}, False),
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
