"""Optimizers with train() and eval(): evaluations, checkpoints and the end have other weights than training."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from support.drawn.of_torch import ScheduleFree
from support.in_process import quickly
from support.jobs import result
from support.user_loop_runs import starter
from torch import nn

import hvdtrain
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.frameworks.averages import check_own_averages
from hvdtrain.runs import checkpoints

X = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


class Swapping(ScheduleFree):
    """Its averages are tensors of its state, which eval() and train() exchange with the weights."""

    @torch.no_grad()
    def _to(self, is_on):
        for group in self.param_groups:
            for parameter in group["params"] if group["is_on"] != is_on else ():
                if "average" in self.state[parameter]:
                    before = parameter.clone()
                    parameter.copy_(self.state[parameter]["average"])
                    self.state[parameter]["average"] = before
            group["is_on"] = is_on

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            assert group["is_on"], "step() in the mode of evaluations"
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"])
                self.state[parameter].setdefault("average", parameter.clone()).lerp_(parameter, 0.25)


class Task:
    optimizer_class, starts_in = ScheduleFree, None

    def data(self):
        return (X, Y), (X[:9], Y[:9])

    def model(self):
        return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))

    def optimizer(self, parameters):
        made = self.optimizer_class([parameter for _, parameter in parameters])
        if self.starts_in:
            getattr(made, self.starts_in)()
        return made


class SwappingTask(Task):
    optimizer_class = Swapping


class LibraryTask(Task):
    def optimizer(self, parameters):
        return pytest.importorskip("schedulefree").AdamWScheduleFree([one for _, one in parameters], warmup_steps=3)


TASKS = (Task, SwappingTask, pytest.param(LibraryTask, id="schedulefree"))


def fit(tmp_path, task, name="run", **options):
    """Train on all rows in a step, unless options say otherwise; the run's folder."""
    own = {"resume": options.pop("resume")} if "resume" in options else {}
    config = Config(**{"strategy": "single", "epochs": 5, "batch_size": len(X), **options})
    with quickly():
        hvdtrain.fit(task(), config, RuntimeOptions(runs=tmp_path, name=name, device="cpu", quiet=True, **own))
    return tmp_path / name


def plain(task, seed, steps):
    """The model of a plain loop, with the weights of training, and those of evaluations."""
    torch.manual_seed(seed)
    model = task().model()
    optimizer = task().optimizer(list(model.named_parameters()))
    optimizer.train()
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.from_numpy(X)), torch.from_numpy(Y)).backward()
        optimizer.step()
    trained = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer.eval()
    return model, trained


@pytest.mark.parametrize("starts_in", [None, "train", "eval"])
@pytest.mark.parametrize("task", TASKS)
def test_evaluations_and_checkpoints_have_the_weights_of_the_mode_of_evaluations(task, starts_in, tmp_path):
    own = type("Own", (task,), {"starts_in": starts_in})
    run = fit(tmp_path, own)
    model, trained = plain(task, 0, 5)
    loaded, (_, saved) = hvdtrain.load(run, task=own), checkpoints.newest(run)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], value)
        torch.testing.assert_close(torch.from_numpy(saved.weights[name]), trained[name])
        assert not torch.equal(value, trained[name])
    with torch.no_grad():
        expected = nn.functional.cross_entropy(model(torch.from_numpy(X[:9])), torch.from_numpy(Y[:9]))
    assert result(run)["loss"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("options", [{}, {"shards": 3}], ids=str)
@pytest.mark.parametrize("task", TASKS)
def test_a_resumed_run_has_the_bits_of_an_undisturbed_one(task, options, tmp_path):
    """Although the one that is stopped within an epoch evaluates and saves once more."""
    options = {"batch_size": 8, "epochs": 3, **options}
    whole = fit(tmp_path, task, "whole", **options)
    stopped = fit(tmp_path, task, "stopped", max_steps=4, **options)
    fit(tmp_path, task, "stopped", resume="auto", **options)
    (_, expected), (_, found) = checkpoints.newest(whole), checkpoints.newest(stopped)
    assert found.position.step == expected.position.step == 9
    for of_found, of_expected in ((found.weights, expected.weights), (found.averages, expected.averages)):
        assert of_found.keys() == of_expected.keys() and of_found
        for name, value in of_expected.items():
            assert of_found[name].tobytes() == value.tobytes(), name
    assert result(stopped)["loss"] == result(whole)["loss"]


MODES = {
    "nothing": lambda optimizer, when: None,
    "its own modes": lambda optimizer, when: optimizer.eval() if when == "before" else optimizer.train(),
    "eval() alone": lambda optimizer, when: optimizer.eval() if when == "before" else None,
    "train() before steps": lambda optimizer, when: optimizer.train() if when == "step" else None,
    "eval() after epochs": lambda optimizer, when: {"step": optimizer.train, "epoch": optimizer.eval}.get(when, int)(),
}


@pytest.mark.parametrize("kind", [ScheduleFree, Swapping])
def test_a_script_may_also_set_the_modes_itself(kind, tmp_path):
    start, found = starter(tmp_path), []
    for number, set_mode in enumerate(MODES.values()):
        losses = []
        with start(f"run{number}", batch_size=8) as run:
            torch.manual_seed(0)
            model, optimizer = run.setup(*made(kind))

            def evaluate(x, y, model=model, optimizer=optimizer, set_mode=set_mode, losses=losses):
                set_mode(optimizer, "before")
                values = nn.functional.cross_entropy(model(x), y, reduction="none")
                set_mode(optimizer, "after")
                losses.append(values.tolist())
                return values

            for x, y in run.batches((X, Y), (X[:9], Y[:9]), evaluate):
                set_mode(optimizer, "step")
                if run.step(nn.functional.cross_entropy(model(x), y, reduction="none")) and run.ends_epoch:
                    set_mode(optimizer, "epoch")
        found.append((losses[-1], {name: value.tolist() for name, value in model.state_dict().items()}))
        averages = checkpoints.newest(run.folder)[1].averages
        assert {name: value.tolist() for name, value in averages.items()} == found[-1][1], "the script ends with them"
    *same, (after_epochs, _) = found
    assert all(one == found[0] for one in same)
    assert after_epochs == pytest.approx(found[0][0], abs=1e-5), "as train() rounds after eval()"


def made(kind):
    model = nn.Linear(4, 2)
    return model, kind(model.parameters())


def test_a_script_that_is_resumed_sets_the_mode_in_the_trial(tmp_path):
    """Which evaluates before the first step, with the state of the checkpoint."""
    start, ends = starter(tmp_path), []
    for name, options in (("whole", [{}]), ("stopped", [{"max_steps": 4}, {"resume": "auto"}])):
        for more in options:
            with start(name, batch_size=8, epochs=3, **more) as run:
                torch.manual_seed(0)
                model, optimizer = run.setup(*made(ScheduleFree))

                def evaluate(x, y, model=model, optimizer=optimizer):
                    optimizer.eval()
                    return nn.functional.cross_entropy(model(x), y, reduction="none")

                for x, y in run.batches((X, Y), (X[:9], Y[:9]), evaluate):
                    run.step(nn.functional.cross_entropy(model(x), y, reduction="none"))
        ends.append([value.tolist() for value in model.state_dict().values()])
    assert ends[0] == ends[1]


class Copying(nn.Linear):
    def state_dict(self, *given, **options):
        return {name: value.clone() for name, value in super().state_dict(*given, **options).items()}


def test_averages_of_weights_that_a_checkpoint_has_as_copies_are_refused(tmp_path):
    """They had no effect, without a word."""
    for options, optimizer in (({"ema": 0.9}, torch.optim.SGD), ({}, ScheduleFree)):
        own = type(
            "Own", (Task,), {"model": lambda _: Copying(4, 2), "optimizer_class": functools.partial(optimizer, lr=0.1)}
        )
        with pytest.raises(UserError, match=r"state_dict\(\) does not return \w+ itself"):
            fit(tmp_path, own, **options)


def test_two_averages_of_the_weights_are_refused(tmp_path):
    with pytest.raises(UserError, match="--ema: the optimizer averages the weights itself"):
        fit(tmp_path, Task, ema=0.9)
    with pytest.raises(UserError, match="--sync-every: the optimizer averages"):
        check_own_averages(dataclasses.replace(Config(), sync_every=4))
