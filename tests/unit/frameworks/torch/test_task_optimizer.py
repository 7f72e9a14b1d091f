"""What a task says of its training: the optimizer, schedules, and parameters that are not used in some steps."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from support import learners
from support.errors import refused
from support.in_process import train_here
from support.jobs import records
from support.schedules import SCHEDULES
from support.user_loop_runs import starter
from torch import nn
from torch.optim import lr_scheduler

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.frameworks.registry import build_learner, check_request
from hvdtrain.frameworks.torch.task_optimizer import check_brought
from hvdtrain.interfaces.learner import Position
from hvdtrain.interfaces.reading import Batch
from hvdtrain.tasks.user import make_task

X, Y = np.ones((8, 4), np.float32), np.zeros(8, np.int64)
OTHER = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
CONFIG = Config(strategy="single", epochs=2, batch_size=8)


class Task:
    def data(self):
        return (X, Y), (X, Y)

    def model(self):
        return nn.Linear(4, 3)


def learner(optimizer=None, schedule=None, config=CONFIG):
    """A learner of a task with these methods."""
    methods = {"optimizer": optimizer, "schedule": schedule}
    own = type("Own", (Task,), {name: method for name, method in methods.items() if method})
    return build_learner(config, make_task("t.py:Own", own), None, RuntimeOptions(device="cpu"))


def sgd(self, parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def train(trained, steps, first=0):
    """Make steps; the rate of each."""
    rates = []
    for step in range(first, first + steps):
        trained.train_step(Batch((X, Y), np.full(8, 1 / 8, np.float32), 0.0, step, np.arange(8)))
        rates.append(trained.learning_rate)
    return rates


def test_a_step_needs_no_argument_closure():
    class WithoutClosure(torch.optim.SGD):
        def step(self):
            super().step()

    found = [learner(optimizer) for optimizer in (lambda self, parameters: WithoutClosure(parameters, lr=0.1), sgd)]
    for one in found:
        train(one, 2)
    for name, value in found[1].weights().items():
        assert found[0].weights()[name].tolist() == value.tolist()


def test_an_optimizer_may_have_numbers_in_its_state():
    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            self.state["calls"] = self.state["calls"] + 1 if "calls" in self.state else 1
            super().step(closure)

    counting = learner(lambda self, parameters: Counting(parameters, lr=0.1, momentum=0.5))
    train(counting, 2)
    again = learner(lambda self, parameters: Counting(parameters, lr=0.1, momentum=0.5))
    again.load_optimizer_state(counting.optimizer_state())
    assert counting.settings() and again._optimizer.state["calls"] == 2


class Slowing(torch.optim.SGD):
    """Keeps its count in an attribute, which its state_dict() does not have."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1, momentum=0.9)
        self.count = self.start()

    def start(self):
        return 0

    def more(self):
        self.count += 1
        return self.count

    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] = 0.1 / self.more()
        super().step(closure)


class SlowingByTensor(Slowing):
    def start(self):
        return torch.zeros(1)


class SlowingByList(Slowing):
    def start(self):
        return []

    def more(self):
        self.count.append(0)
        return len(self.count)


class KeepingMomenta(torch.optim.SGD):
    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.momenta = {}

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for number, parameter in enumerate(group["params"]):
                self.momenta[number] = 0.9 * self.momenta.get(number, 0) + parameter.grad
                parameter.sub_(self.momenta[number], alpha=group["lr"])


class Wrapping(torch.optim.SGD):
    """Lets another optimizer make the updates."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.inner = torch.optim.Adam(self.param_groups, lr=0.1)

    def step(self, closure=None):
        self.inner.step()


class WrappingAndSaving(Wrapping):
    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state):
        self.inner.load_state_dict(state)


class Noisy(torch.optim.SGD):
    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            parameter.grad += torch.randn_like(parameter)
        super().step(closure)


def of(kind):
    return lambda self, parameters: kind([parameter for _, parameter in parameters])


def test_numbers_among_the_attributes_of_an_optimizer_are_saved():
    whole, stopped, resumed = learner(of(Slowing)), learner(of(Slowing)), learner(of(Slowing))
    train(whole, 4)
    train(stopped, 2)
    resumed.load(stopped.weights())
    resumed.load_optimizer_state(stopped.optimizer_state())
    train(resumed, 2, first=2)
    assert resumed._optimizer.count == 4
    for name, value in whole.weights().items():
        assert resumed.weights()[name].tobytes() == value.tobytes()


class Beginning(Slowing):
    """Has no count before its first step."""

    def start(self):
        return None

    def more(self):
        self.count = 1 + (self.count or 0)
        return self.count


def test_only_numbers_that_have_changed_are_saved():
    """So that those of the run, such as its steps, are not those of the run before."""

    class Planning(Slowing):
        def __init__(self, parameters, steps):
            super().__init__(parameters)
            self.steps = steps

    of_four, of_nine = (learner(lambda _, named, n=n: Planning([one for _, one in named], n)) for n in (4, 9))
    train(of_four, 2)
    of_nine.load_optimizer_state(of_four.optimizer_state())
    assert (of_nine._optimizer.count, of_nine._optimizer.steps) == (2, 9)


def test_a_schedule_may_be_made_before_setup(tmp_path):
    """It gives the optimizer a step() of its own."""
    rates = []
    for is_before in (True, False):
        with starter(tmp_path, "torch")(f"run{is_before}", batch_size=8) as run:
            model = nn.Linear(4, 3)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            schedule = lr_scheduler.StepLR(optimizer, 1, 0.5) if is_before else None
            model, optimizer = run.setup(model, optimizer)
            schedule = schedule or lr_scheduler.StepLR(optimizer, 1, 0.5)
            run.register(schedule=schedule)

            def losses(x, y, model=model):
                return nn.functional.cross_entropy(model(x), y, reduction="none")

            for x, y in run.batches((X, Y), (X, Y), losses):
                run.step(losses(x, y))
                schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [0.025, 0.025]


def test_what_is_registered_may_have_a_state_of_any_form(tmp_path):
    class Counter:
        state_dict, load_state_dict = (lambda self: [1, 2]), (lambda self, state: None)

    with starter(tmp_path, "torch")() as run:
        model = nn.Linear(4, 3)
        run.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        run.register(counter=Counter())


def test_a_state_that_cannot_be_saved_is_said_before_the_first_step():
    class Keeping(torch.optim.SGD):
        def step(self, closure=None):
            self.state[self.param_groups[0]["params"][0]]["kept"] = {1, 2}
            super().step(closure)

    refused(lambda: learner(lambda _, named: Keeping([one for _, one in named], lr=0.1)), "it has a set")


@pytest.mark.parametrize("kind", [SlowingByTensor, SlowingByList, KeepingMomenta, Wrapping])
def test_other_state_that_no_checkpoint_would_have_is_refused(kind, tmp_path):
    refused(lambda: learner(of(kind)), kind.__name__, "its state_dict() does not have")
    with starter(tmp_path, "torch")() as run:
        model = nn.Linear(4, 3)
        refused(lambda: run.setup(model, kind(model.parameters())), "setup(): ", kind.__name__)


@pytest.mark.parametrize("kind", [Slowing, Beginning, WrappingAndSaving, Noisy])
def test_an_optimizer_is_tried_without_a_trace(kind):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = kind(model.parameters())
    optimizer.register_step_post_hook(lambda *_: model.weight.data.zero_())
    before, random = [parameter.clone() for parameter in model.parameters()], torch.get_rng_state()
    check_brought(UserError, optimizer, dict(model.named_parameters()), "")
    assert torch.equal(torch.get_rng_state(), random) and not optimizer.state
    assert not getattr(optimizer, "count", 0)
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value) and parameter.grad is None


@pytest.mark.parametrize(
    ("optimizer", "text"),
    [
        (lambda self, parameters: None, "optimizer() returned NoneType; return one torch.optim.Optimizer"),
        (
            lambda self, parameters: OTHER,
            "optimizer() returned one that cannot be used: the optimizer has parameters that are not the model's",
        ),
        (lambda self, parameters: torch.optim.SGD(parameters[:1], lr=0.1), "the optimizer lacks the parameter bias"),
        (lambda self, parameters: torch.optim.LBFGS(parameters), "LBFGS, whose step() needs a closure"),
    ],
)
def test_what_is_no_optimizer(optimizer, text):
    with pytest.raises(UserError) as caught:
        learner(optimizer)
    assert "--model t.py:Own: " in str(caught.value) and text in str(caught.value)


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (lambda self, optimizer, steps, epochs: None, "schedule() returned None; return a scheduler"),
        (lambda self, optimizer, steps, epochs: (lr_scheduler.ExponentialLR(optimizer, 1), "year"), "returned ("),
        (lambda self, optimizer, steps, epochs: lr_scheduler.ExponentialLR(OTHER, 1), "ExponentialLR of another"),
        (lambda self, optimizer, *_: [lr_scheduler.ReduceLROnPlateau(optimizer)], "whose step() needs metrics"),
    ],
)
def test_what_is_no_schedule(schedule, text):
    with pytest.raises(UserError, match=re.escape(text)):
        learner(sgd, schedule).set_length(6, 2)


def test_the_order_of_the_parameters_is_known_and_so_compared_over_ranks():
    reverse = learner(lambda self, parameters: torch.optim.SGD([values for _, values in parameters[::-1]], lr=0.1))
    assert (learner(sgd).optimizer_order, reverse.optimizer_order) == (("weight", "bias"), ("bias", "weight"))


def halved(self, optimizer, steps, epochs):
    assert (steps, epochs) == (6, 2)
    return [lr_scheduler.StepLR(optimizer, 1, 0.5), (lr_scheduler.StepLR(optimizer, 1, 0.1), "epoch")]


def test_schedules_step_after_steps_and_epochs():
    trained = learner(sgd, halved)
    trained.set_length(6, 2)
    assert trained.learning_rate == 0.1
    assert train(trained, 4) == pytest.approx([0.1, 0.05, 0.025, 0.00125])


def test_an_error_of_a_schedule_is_one_sentence():
    def failing(self, optimizer, steps, epochs):
        return lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 - step))

    trained = learner(sgd, failing)
    trained.set_length(6, 2)
    with pytest.raises(UserError, match=r"the step\(\) of LambdaLR failed .*ZeroDivisionError"):
        train(trained, 1)


def test_a_state_belongs_to_an_optimizer_and_schedules_of_these_classes():
    trained, other = learner(sgd, halved), learner(sgd)
    for one in (trained, other):
        one.set_length(6, 2)
    train(trained, 4)
    state = trained.optimizer_state()
    assert trained.accepts_state(state) and not other.accepts_state(state) and not learner().accepts_state(state)
    again = learner(sgd, halved)
    again.set_length(6, 2)
    again.load(trained.weights())
    again.load_optimizer_state(state)
    assert train(again, 2, 4) == train(trained, 2, 4)
    assert all(np.array_equal(value, trained.weights()[name]) for name, value in again.weights().items())


MATRIX = pytest.mark.matrix
LENGTHS = [(12, 3), *(pytest.param(length, marks=MATRIX) for length in [(9, 3), (6, 1), (4, 2)])]
"""Steps and epochs of the second run."""


@pytest.mark.parametrize("is_own", [True, pytest.param(False, marks=MATRIX)])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "plateau"])
def test_a_run_of_another_length_has_the_rates_of_that_length(name, length, is_own):
    """Batch size, ranks or epochs are others after --resume. The first run is left after its first epoch."""

    def schedule(self, *given):
        return SCHEDULES[name](*given)

    def made(steps, epochs):
        optimizer = (lambda self, parameters: torch.optim.SGD(parameters, 0.1, 0.9)) if is_own else None
        trained = learner(optimizer, schedule)
        trained.set_length(steps, epochs)
        return trained

    (steps, epochs), first = length, made(6, 2)
    train(first, 3)
    state, at = first.optimizer_state(), steps // epochs if epochs > 1 else 3
    resumed, whole = made(steps, epochs), made(steps, epochs)
    resumed.resumed = Position(1, step=3), Position(int(epochs > 1), step=at)
    resumed.load_optimizer_state(state)
    momenta = resumed.optimizer_state().arrays["optimizer/0"]
    assert np.array_equal(momenta, state.arrays["optimizer/0"]), "of the run so far"
    rates = train(whole, steps)
    assert train(resumed, steps - at, at) == rates[at:]
    assert resumed._optimizer.param_groups[0]["momentum"] == whole._optimizer.param_groups[0]["momentum"]


def test_a_schedule_of_a_task_is_resumed_with_other_options(tmp_path):
    """After 8 of 16 steps it makes 64 in smaller batches, from another --lr."""
    task = ("--model", f"{learners.TASKS}/own_optimizers.py:OnlyScheduled", "--epochs", "4")
    small = (*task, "--batch-size", "8", "--log-every", "1", "--checkpoint-every", "0s", "--max-steps", "37",
             "--lr", "0.2")  # fmt: skip

    def rates(name, *options):
        folder = train_here(tmp_path, "torch", *options, *(() if "--resume" in options else ("--name", name)))
        return {one["step"]: one["lr"] for one in records(folder, "train")}

    rates("run", *task, "--batch-size", "32", "--max-steps", "8")
    resumed, whole = rates("run", "--resume", "runs/run", *small), rates("whole", *small)
    assert {step: resumed[step] for step in range(33, 38)} == {step: whole[step] for step in range(33, 38)}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lr": 0.5}, "--lr 0.5: the task's optimizer() decides it"),
        ({"strategy": "manual"}, "--strategy manual: in torch, it updates without the task's optimizer()"),
    ],
)
def test_options_that_the_task_decides(options, text):
    task = make_task("t.py:Own", type("Own", (Task,), {"optimizer": sgd}))
    with pytest.raises(UserError, match=re.escape(text)):
        check_request(dataclasses.replace(CONFIG, **options), task, RuntimeOptions())


def test_a_schedule_alone_leaves_the_optimizer_to_the_options():
    task = make_task("t.py:Own", type("Own", (Task,), {"schedule": halved}))
    assert {"schedule", "warmup_epochs"} < {*task.ignored_options} and "lr" not in task.ignored_options
    trained = learner(None, halved, dataclasses.replace(CONFIG, optimizer="adam", lr=0.2))
    trained.set_length(6, 2)
    assert train(trained, 2) == [0.2, 0.1]


NUMBERS = np.array([[0.0, 1.0], [2.0, 1.0]] * 4, np.float32)
WITHOUT = np.arange(0, 8, 2)
"""Rows whose step has no gradient of one layer."""


class Branching(nn.Module):
    """Has a second layer for rows whose first number is positive."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, numbers):
        outputs = self.first(numbers)
        return outputs + self.second(numbers) if (numbers[:, 0] > 0).any() else outputs


class BranchingTask(Task):
    def data(self):
        return (NUMBERS, Y), (NUMBERS, Y)

    def model(self):
        return Branching()


@pytest.fixture
def branching():
    """Makes a learner of a task whose attributes are given."""

    def make(**attributes):
        task = make_task("task.py:Task", type("Task", (BranchingTask,), attributes))
        return learners.learner("torch", task, strategy="ddp", lr=0.1)

    yield make
    torch.distributed.destroy_process_group()


def step(learner, rows):
    return float(
        learner.train_step(Batch((NUMBERS[rows], Y[rows]), np.full(len(rows), 0.25, np.float32), 0.1, 0, rows))
    )


def test_a_task_says_that_parameters_may_be_unused(branching):
    trained = branching(unused_parameters=True)
    before = trained.weights()
    losses = [step(trained, WITHOUT), step(trained, np.arange(4)), step(trained, WITHOUT)]
    assert losses[2] < losses[0]
    assert not np.array_equal(trained.weights()["second.weight"], before["second.weight"])


def test_without_that_the_first_such_step_is_an_error_that_names_the_attribute(branching):
    trained = branching()
    step(trained, np.arange(4))
    with pytest.raises(UserError) as error:
        step(trained, WITHOUT)
    assert "second.weight" in error.value.reason and "unused_parameters = True" in error.value.remedy
