"""The learning rate at each step, and the best score so far, with the epochs that have passed since."""

import dataclasses
import os
from unittest import mock

import pytest

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.config.score import figure_of
from hvdtrain.interfaces.learner import Position
from hvdtrain.training.run import RunContext, learning_rate


def rates(steps, size=1, **options):
    config = Config(**options)
    return [learning_rate(config, step, steps // config.epochs, size) for step in range(steps)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"epochs": 2, "lr": 0.4, "warmup_epochs": 1, "schedule": "constant"}, [0.1, 0.2, 0.3] + [0.4] * 5),
        ({"epochs": 4, "schedule": "step:0.5:2"}, [1] * 4 + [0.5] * 4),
        ({"epochs": 5, "warmup_epochs": 1, "schedule": "polynomial"}, [1, 1, 0.75, 0.5, 0.25]),
        ({"epochs": 4, "schedule": "polynomial:2"}, [1, 0.75**2, 0.5**2, 0.25**2]),
        ({"epochs": 1, "schedule": "onecycle"}, [1]),  # of one step, at its peak
        ({"epochs": 1}, [1]),
        ({"epochs": 1, "size": 4}, [1]),
        ({"epochs": 1, "size": 4, "batch_scope": "per-rank"}, [4]),
    ],
)
def test_rates(options, expected):
    assert rates(len(expected), **{"lr": 1.0, "warmup_epochs": 0, **options}) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "last"),
    [({"schedule": "cosine", "epochs": 10}, 0.0002467), ({"schedule": "onecycle:0", "epochs": 1}, 1 / 25e4)],
)
def test_rates_that_fall_to_nearly_zero(options, last):
    actual = rates(100, lr=1.0, warmup_epochs=0, **options)
    assert actual[0] == 1 and actual[50] == pytest.approx(0.5, abs=0.02) and actual[-1] == pytest.approx(last, rel=0.01)
    assert actual == sorted(actual, reverse=True)


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
    actual = rates(steps, epochs=1, lr=0.4, schedule=f"onecycle:{rise}")
    assert actual == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("rows", "options", "warns"),
    [
        (1000, {"max_steps": 40}, True),  # 100 steps an epoch, and one epoch of warm-up
        (1000, {"max_steps": 99}, True),
        (1000, {"max_steps": 40, "schedule": "onecycle"}, True),  # of 1200 steps
        (1000, {"max_steps": 100}, False),
        (1000, {"max_steps": 40, "warmup_epochs": 0.1}, False),
        (1000, {"epochs": 1}, False),
        (1000, {"epochs": 3, "warmup_epochs": 5}, True),
        (15, {"max_steps": 1, "batch_scope": "per-rank"}, True),
    ],
)
def test_a_run_that_ends_in_its_warm_up_says_so(rows, options, warns):
    config = Config(**{"batch_size": 10, "strategy": "single", **options})
    learner = mock.Mock(learning_rate=None, devices=1, group=mock.Mock(size=1, rank=0))
    run = RunContext(config, RuntimeOptions(), mock.Mock(unit="rows"), learner, mock.Mock(train=range(rows)))
    assert bool(run.schedule_problem) == warns
    assert (max(map(run.learning_rate, range(run.last_step))) < 0.999 * config.lr) == warns
    learner.learning_rate = 0.1  # of a script's own loop
    assert not run.schedule_problem


def trained(losses, patience, at=None):
    """The position at which a run with these losses ends."""
    at = at or Position()
    for loss in losses[at.epoch :]:
        at = dataclasses.replace(at, epoch=at.epoch + 1)
        for _ in range(2):  # ranks that change evaluate again
            score = figure_of(loss, {}).finite
            at = at.scored(score.order if score else (), "")
        if at.has_waited(patience, ""):
            break
    return at


@pytest.mark.parametrize(
    ("losses", "patience", "ends", "best"),
    [
        ([3, 2, 1, 2, 2, 2], 3, 6, 3),
        ([3, 2, 1, 2, 0.5, 2], 3, 6, 5),
        ([1, 1, 1, 1], 2, 3, 1),  # an equal score is not better
        ([float("nan")] * 4, 2, 2, 0),
        ([3, 2, 1, 2, 2, 2], 0, 6, 3),
        ([4.35e-17, 3.73e-17, 3.2e-17, 3.1e-17], 2, 4, 4),
        ([4.35e19, 3.73e19, 3.2e19, 3.1e19], 2, 4, 4),
    ],
)
def test_a_run_ends_when_no_epoch_was_better_for_so_long(losses, patience, ends, best):
    at = trained(losses, patience)
    assert (at.epoch, at.best_epoch) == (ends, best)
    for part in range(1, ends):
        assert trained(losses, patience, trained(losses[:part], patience)) == at


def test_another_score_begins_anew():
    at = dataclasses.replace(Position().scored((0.9,), ""), epoch=4)
    score = figure_of(5.0, {"perplexity": 30.0}, "min:perplexity").finite
    assert at.has_waited(4, "") and not at.has_waited(4, score.choice), "a run that has ended goes on"
    assert not at.scored(score.order, score.choice).has_waited(4, score.choice)
    assert not at.scored((), score.choice).has_waited(4, score.choice), "also where that is not finite at first"
