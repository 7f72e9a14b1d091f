"""A script's own loop in Gluon, in this process: what it trains, and what is refused."""

import functools
import math
import re

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from support.options import parse
from support.user_loop_runs import NUMBERS, cut_off_in_step_2, starter

from hvdtrain.errors import HvdtrainError, UserError
from hvdtrain.runs import checkpoints

ROWS = NUMBERS, (NUMBERS[:, 0] > 0).astype(np.float32)


@pytest.fixture
def start(tmp_path):
    """Starts a run with some options."""
    return starter(tmp_path / "runs", "mxnet")


def initialized(*layers):
    """A block of these layers."""
    block = gluon.nn.HybridSequential()
    block.add(*layers)
    block.initialize()
    return block


def block(units=2):
    return initialized(gluon.nn.Dense(3, in_units=4, activation="relu"), gluon.nn.Dense(units, in_units=3))


def parts(model=None, **options):
    """A model and its trainer."""
    model = model or block()
    return model, gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.1, **options})


def losses(model, rows):
    """The loss of each row, recorded."""
    with autograd.record():
        return gluon.loss.SoftmaxCrossEntropyLoss()(model(rows[0]), rows[1])


def train(run, model, trainer):
    """The whole loop; the parameters at its end."""
    model, _ = run.setup(model, trainer)
    for batch in run.batches(ROWS):
        run.step(losses(model, batch))
    return [parameter.data().asnumpy() for parameter in model.collect_params().values()]


def test_rows_have_weights(start):
    """A row of weight 2 counts as two rows: in the second run, the batch has it twice."""
    kernels = []
    for weights, rows in (([2.0] + [1.0] * 11, range(12)), ([1.0] * 13, (0, *range(12)))):
        with start(f"run{len(rows)}", epochs=1, batch_size=13) as run:
            mx.random.seed(0)
            model, _ = run.setup(*parts())
            taken = tuple(array[list(rows)] for array in ROWS)
            for batch in run.batches(taken, weights=weights):
                run.step(losses(model, batch))
            kernels.append([parameter.data().asnumpy() for parameter in model.collect_params().values()])
    for one, other in zip(*kernels, strict=True):
        assert one == pytest.approx(other, abs=1e-6)


def test_steps_are_those_of_a_loop_by_hand(start):
    with start(epochs=1, clip_norm=0.1) as run:
        model, trainer = run.setup(*parts(momentum=0.9, wd=0.01))
        before = [parameter.data().asnumpy() for parameter in model.collect_params().values()]
        taken = []
        for batch in run.batches(ROWS):
            taken.append([array.copy() for array in batch])
            run.step(losses(model, batch))
            assert trainer.learning_rate == 0.1
    found = list(run._learner.weights().values())
    model, trainer = parts(momentum=0.9, wd=0.01)
    for parameter, value in zip(model.collect_params().values(), before, strict=True):
        parameter.set_data(mx.nd.array(value))
    for batch in taken:
        losses(model, batch).backward()
        gradients = [parameter.grad() for parameter in model.collect_params().values()]
        for gradient in gradients:
            gradient /= len(batch[0])
        gluon.utils.clip_global_norm(gradients, 0.1)
        trainer.step(1)
    for own, parameter in zip(found, model.collect_params().values(), strict=True):
        assert np.allclose(own, parameter.data().asnumpy(), rtol=1e-4, atol=1e-6)


def test_parameters_without_gradients_and_frozen_ones(start):
    model = initialized(gluon.nn.Dense(2, in_units=4))[0]
    model.unused = block()
    model.weight.grad_req = "null"
    with start() as run:
        frozen = model.weight.data().asnumpy()
        train(run, *parts(model))
    saved = checkpoints.newest(run.folder)[1]
    assert np.array_equal(saved.weights["weight"], frozen)
    assert saved.position.step == 6 and saved.optimizer.extra["updates"]["unused.0.weight"] == 6


def test_a_step_that_was_no_update_is_done_again(start, monkeypatch):
    """Its gradients are not taken for those of a backward pass of the script itself."""
    renewed = cut_off_in_step_2(monkeypatch)
    with start(shards=2) as run:
        train(run, *parts())
    assert len(renewed) == 1
    assert run.steps == 6


class Halving(gluon.Trainer):
    def step(self, batch_size, ignore_stale_grad=False):
        super().step(2 * batch_size, ignore_stale_grad)


def stepped():
    model, trainer = parts(momentum=0.9)
    losses(model, [mx.nd.array(array) for array in ROWS]).backward()
    trainer.step(30)
    return model, trainer


def adding():
    model = block()
    model.collect_params().setattr("grad_req", "add")
    return model


def not_finite(found):
    with autograd.record():
        return found * float("nan")


class Counting(mx.optimizer.SGD):
    """Its state is not an array."""

    def create_state(self, index, weight):
        return {"count": weight}


def stepping(step):
    """A loop in which the run gets what the function makes of the losses of each batch."""

    def loop(run):
        model, _ = run.setup(*parts())
        for batch in run.batches(ROWS):
            run.step(step(losses(model, batch)))

    return loop


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda run: run.setup(block(), "sgd"), "setup(): got HybridSequential and str"),
        (lambda run: run.setup(*parts(initialized(gluon.nn.Dense(2)))), "the parameter 0.weight has no values yet"),
        (lambda run: run.setup(block(), parts()[1]), "the trainer has parameters that are not the model's"),
        (lambda run: run.setup(m := block(), parts(m[0])[1]), "the trainer lacks the parameter 1.weight"),
        (lambda run: run.setup(m := block(), Halving(m.collect_params(), "sgd")), "Halving has a step() or update()"),
        (lambda run: run.setup(*stepped()), "the trainer has already made steps"),
        (lambda run: run.setup(*parts(adding())), "the parameter 0.weight adds up the gradients"),
        (lambda run: run.setup(*parts(initialized(gluon.nn.Embedding(4, 4, sparse_grad=True)))), "0.weight is sparse"),
        (lambda run: (run.setup(*parts()), run.register(x=3)), "a script in MXNet has nothing to register"),
        (stepping(lambda found: found.mean()), "step(): got a tensor of shape (1,), not a value for each of 12"),
        (stepping(lambda found: found.detach()), "compute them with the model inside `with autograd.record():`"),
        (stepping(lambda found: [1.0] * 12), "step(): got list, not"),
        (stepping(lambda found: found * 2), "compute them with the model inside `with autograd.record():`"),
        (stepping(not_finite), "rank 0: loss is not finite at step 0"),
        (
            lambda run: train(run, model := block(), gluon.Trainer(model.collect_params(), Counting())),
            "the optimizer's state has a dict",
        ),
    ],
)
def test_mistakes(mistake, message, start):
    with pytest.raises(HvdtrainError, match=re.escape(message)), start() as run:
        mistake(run)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "module"}, "--strategy module: it trains networks as data only"),
        ({"strategy": "ddp"}, "--strategy ddp"),
        ({"strategy": "kvstore-local"}, "--devices 2: a script with its own loop has one"),
    ],
)
def test_options_that_cannot_be(options, message, start):
    with pytest.raises(UserError) as error, start(devices=2, **options):
        pass
    assert message in str(error.value)


def test_the_framework_of_a_script_is_its_own():
    with pytest.raises(UserError, match=r"--framework torch: a.py trains in mxnet; leave it out"):
        parse(["--framework", "torch"], "a.py", "mxnet")


def test_another_optimizer_does_not_resume(start):
    with start("first") as run:
        train(run, *parts(momentum=0.9))
    with pytest.raises(UserError) as error, start(resume=run.folder, epochs=3) as run:
        model = block()
        train(run, model, gluon.Trainer(model.collect_params(), "adam"))
    assert "is not in both the optimizer and the checkpoint" in str(error.value)


class Plateau(mx.lr_scheduler.LRScheduler):
    """Has a number that is None, and one that is infinite, until it was called."""

    def __init__(self):
        super().__init__(0.1)
        self.latest, self.least = None, math.inf

    def __call__(self, updates):
        self.latest, self.least = updates, min(updates, self.least)
        return self.base_lr / (1 + self.least)


@pytest.mark.parametrize("optimizer", ["lars", "sgd"])
def test_an_optimizer_whose_numbers_come_later_is_resumed(optimizer, start):
    def trained(run):
        schedule = {"lr_scheduler": Plateau()} if optimizer == "sgd" else {}
        model = block()
        return train(run, model, gluon.Trainer(model.collect_params(), optimizer, {"learning_rate": 0.1, **schedule}))

    with start("whole", epochs=3) as run:
        expected = trained(run)
    with start("first") as run:
        trained(run)
    with start(resume=run.folder, epochs=3) as run:
        assert all(map(np.array_equal, trained(run), expected))


SCHEDULES = {
    "cosine": lambda updates: mx.lr_scheduler.CosineScheduler(updates, 0.1, 0.01),
    "polynomial": lambda updates: mx.lr_scheduler.PolyScheduler(updates, 0.1, pwr=2),
    "factors": lambda updates: mx.lr_scheduler.MultiFactorScheduler([updates // 2, updates - 2], 0.1, 0.1),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_of_a_run_of_more_epochs_has_its_rates(name, start):
    """With other batches, the updates that it counts are not the steps of the run."""

    def rates(run):
        model, updates = block(), run.epochs * run.steps_in_epoch(len(ROWS[0]))
        options = {"learning_rate": 0.1, "lr_scheduler": SCHEDULES[name](updates)}
        model, trainer = run.setup(model, gluon.Trainer(model.collect_params(), "sgd", options))
        found = {}
        for batch in run.batches(ROWS):
            run.step(losses(model, batch))
            found[run.steps] = trainer.learning_rate
        return found

    with start("whole", epochs=4) as run:
        whole = rates(run)
    with start("first") as run:
        rates(run)
    with start("more", resume=run.folder, epochs=4) as again:
        rest = rates(again)
    assert rest and rest == {step: whole[step] for step in rest}
    expected = pytest.raises(UserError, match="the lr_scheduler counts updates; resume with its batch size")
    with expected, start("other", resume=run.folder, epochs=9, batch_size=5) as other:
        rates(other)


OWN_STEPS = {
    "backward": lambda run, trainer, values, more: values.backward(),
    "trainer's step": lambda run, trainer, values, more: (values.backward(), trainer.step(12)),
    "step after": lambda run, trainer, values, more: (run.step(values), more().backward(), trainer.step(12)),
    "step of another": lambda run, trainer, values, more: (
        run.step(values),
        more().backward(),
        gluon.Trainer(trainer._params, "adam").step(12),
    ),
    "update after": lambda run, trainer, values, more: (run.step(values), more().backward(), trainer.update(12)),
}


MATRIX = pytest.mark.matrix


@pytest.mark.parametrize("options", [{}, pytest.param({"shards": 2}, marks=MATRIX)])
@pytest.mark.parametrize("is_given", [True, pytest.param(False, marks=MATRIX)])
@pytest.mark.parametrize("name", OWN_STEPS)
def test_steps_of_a_script_itself_are_an_error(start, name, is_given, options):
    """Those of the trainer that it gave, or of the one that it got."""
    model, given = parts()
    call = "backward" if name == "backward" else "the trainer's step"
    with pytest.raises(UserError, match=rf"the script calls {call}\(\), which"), start(**options) as run:
        _, trainer = run.setup(model, given)
        for batch in run.batches(ROWS):
            values = losses(model, batch)
            OWN_STEPS[name](run, given if is_given else trainer, values, functools.partial(losses, model, batch))
            if "after" not in name:
                run.step(values)
            assert run.steps == 0
    assert gluon.Trainer._update.__name__ == "_update", "after the run, trainers are as they were"


def test_settings_of_a_trainer_are_what_a_script_may_change(start):
    schedule = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.1)
    schedule.calls = 0  # of which rank 0 may make more
    with start() as run:
        model, _ = run.setup(*parts(lr_scheduler=schedule, wd=0.3))
        before = run._learner.settings()
        for batch in run.batches(ROWS):
            run.step(losses(model, batch))
        after = run._learner.settings()
    assert (before["wd"], before["lr_mult"], after["num_update"]) == (0.3, [1.0] * 4, 6)
    assert after["learning rate"] < before["learning rate"] and not any("calls" in name for name in after)
