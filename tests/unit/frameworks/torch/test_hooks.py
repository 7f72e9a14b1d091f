"""Hooks of parameters: of each part of a step they make what they make of the mean, or they are refused."""

import numpy as np
import pytest
import torch
from support.errors import refused
from support.user_loop_runs import starter
from torch import nn

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.frameworks.registry import build_learner
from hvdtrain.frameworks.torch.arithmetic import check_gradients
from hvdtrain.tasks.user import make_task

X, Y = np.ones((8, 4), np.float32), np.zeros(8, np.int64)


def hook(change):
    return lambda parameter: parameter.register_hook(change)


def accumulated(change):
    return lambda parameter: parameter.register_post_accumulate_grad_hook(change)


def halve(parameter):
    parameter.grad.mul_(0.5)


def update_as_well(parameter):
    parameter.data.sub_(parameter.grad)


def update(parameter):
    if parameter.grad is not None:
        parameter.data.sub_(parameter.grad)
        parameter.grad = None


SEEN = []
KEEPING_MEANS = {
    "twice": hook(lambda gradient: gradient * 2),
    "half of its columns": hook(lambda gradient: gradient * torch.tensor([1.0, 0.0, 1.0, 0.0])),
    "adds": hook(lambda gradient: gradient + 1),
    "rounds": hook(lambda gradient: gradient.bfloat16().float()),
    "to little": hook(lambda gradient: 1e-4 * gradient),
    "looks": hook(lambda gradient: SEEN.append(gradient.norm())),
    "in place": hook(lambda gradient: gradient.mul_(0.5)),
    "in place, accumulated": accumulated(halve),
}
OTHERS = {
    "clipped": hook(lambda gradient: gradient.clamp(-1, 1)),
    "clipped to little": hook(lambda gradient: gradient.clamp(-1e-2, 1e-2)),
    "clipped in place": hook(lambda gradient: gradient.clamp_(-1, 1)),
    "clipped by its norm": hook(lambda gradient: gradient / gradient.norm().clamp(min=1)),
    "of one sign": hook(lambda gradient: gradient.clamp(min=0)),
    "the greatest": hook(lambda gradient: gradient * (gradient.abs() >= gradient.abs().max())),
    "updates as well": accumulated(update_as_well),
    "of length 1": hook(nn.functional.normalize),
    "sign": hook(torch.sign),
    "noise": hook(lambda gradient: gradient + torch.randn_like(gradient)),
    "accumulated": accumulated(lambda parameter: nn.utils.clip_grad_value_(parameter, 1)),
    "makes updates": accumulated(update),
}


class Task:
    def data(self):
        return (X, Y), (X, Y)

    def model(self):
        model = nn.Linear(4, 3)
        self.hook(model.weight)
        return model


def learner(made, **options):
    task = make_task("t.py:Own", type("Own", (Task,), {"hook": staticmethod(made)}))
    return build_learner(Config(batch_size=8, **options), task, None, RuntimeOptions(device="cpu"))


@pytest.mark.parametrize("made", OTHERS.values(), ids=OTHERS)
def test_of_tasks_they_are_refused_where_a_step_has_parts(made):
    learner(made, strategy="single")
    error = refused(
        lambda: learner(made, strategy="single", shards=2), "a hook of the parameter weight clips its gradient"
    )
    assert "--clip-norm" in error.remedy


@pytest.mark.parametrize("made", KEEPING_MEANS.values(), ids=KEEPING_MEANS)
def test_others_are_fine_and_leave_no_trace(made):
    shards, whole = learner(made, strategy="single", shards=2), learner(made, strategy="single")
    for name, value in shards.weights().items():
        assert value.tobytes() == whole.weights()[name].tobytes()
    assert all(parameter.grad is None for parameter in shards._parameters.values())


def test_of_scripts_they_are_refused_as_well(tmp_path):
    for options, is_refused in (({}, False), ({"shards": 2}, True)):
        with starter(tmp_path, "torch")(f"run{is_refused}", batch_size=8, **options) as run:
            model = nn.Linear(4, 3)
            OTHERS["clipped"](model.weight)

            def set_up(run=run, model=model):
                return run.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))

            if is_refused:
                refused(set_up, "a hook of the parameter weight")
                break
            model, _ = set_up()
            for x, y in run.batches((X, Y), (X, Y), lambda x, y, model=model: nn.functional.cross_entropy(
                model(x), y, reduction="none")):  # fmt: skip
                run.step(nn.functional.cross_entropy(model(x), y, reduction="none"))


def test_of_complex_numbers_and_halves():
    for dtype in (torch.complex64, torch.float16):
        parameter = nn.Parameter(torch.ones(3, dtype=dtype))
        parameter.register_hook(lambda gradient: gradient * 0.01)
        check_gradients({"weight": parameter}, "fp32", 2)
        parameter.register_hook(lambda gradient: gradient / gradient.abs().clamp(min=0.01))
        refused(lambda parameter=parameter: check_gradients({"weight": parameter}, "fp32", 2), "a hook of")
