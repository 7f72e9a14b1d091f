"""A script's own loop in this process: what it gets, and what is refused."""

import collections
import contextlib
import copy
import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.jobs import records, result
from support.schedules import SCHEDULES
from support.user_loop_runs import NUMBERS, cut_off_in_step_2, starter
from torch import nn
from torch.optim import lr_scheduler

import hvdtrain
from hvdtrain.__main__ import main
from hvdtrain.collectives.combining import MeanOfRanks
from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.errors import HvdtrainError, UserError
from hvdtrain.frameworks.torch.optimizer import settings_of
from hvdtrain.runs import checkpoints
from hvdtrain.runs.history import HistoryReader
from hvdtrain.system.phases import phases
from hvdtrain.training import consistency

ROWS = NUMBERS, (NUMBERS[:, 0] > 0).astype(np.int64)
"""Three steps an epoch."""


@pytest.fixture
def start(tmp_path):
    """Starts a run with some options."""
    return starter(tmp_path / "runs")


def parts():
    """A model and its optimizer."""
    return made(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))


def made(model, kind=torch.optim.Adam, **options):
    """The model and its optimizer."""
    return model, kind(model.parameters(), **options)


def losses(model, rows):
    """The loss of each row."""
    return nn.functional.cross_entropy(model(rows[0]), rows[1], reduction="none")


def steps(run, model=None, optimizer=None, evaluate=None):
    """The whole loop, of the model and optimizer of `parts` if none are given; both, after each step."""
    model, optimizer = run.setup(*((model, optimizer) if optimizer else parts()))
    test = (ROWS, lambda *rows: evaluate(model, rows)) if evaluate else ()
    for batch in run.batches(ROWS, *test):
        run.step(losses(model, batch))
        yield model, optimizer


def train(run, *setup, **evaluate):
    """The whole loop; model and optimizer."""
    return collections.deque(steps(run, *setup, **evaluate), maxlen=1)[0]


def test_the_script_gets_each_row_once_an_epoch_and_leaves_a_record(start):
    with start() as run:
        model, _ = run.setup(*parts())
        rows = []
        for batch in run.batches(ROWS):
            rows.append((run.epoch, *batch[0].numpy()[:, 0]))
            run.step(losses(model, batch))
        assert (run.steps, run.epoch, run.steps_per_epoch, run.rank, run.size) == (6, 2, 3, 0, 1)
    for epoch in (0, 1):
        taken = [number for at, *numbers in rows if at == epoch for number in numbers]
        assert sorted(taken) == sorted(NUMBERS[:, 0])
    assert (result(run.folder)["steps"], result(run.folder)["metrics"], result(run.folder)["loss"]) == (6, {}, None)
    saved = checkpoints.newest(run.folder)[1]
    assert saved.position.step == 6 and saved.score == ()
    assert all(np.array_equal(saved.weights[name], value) for name, value in model.state_dict().items())


def test_rows_have_weights_in_training_and_evaluation(start):
    weights = np.arange(30) % 4
    test = hvdtrain.Weighted(ROWS, weights), lambda *rows: losses(model, rows)
    with start(epochs=1, class_weights="1=3") as run:
        model, _ = run.setup(*made(nn.Linear(4, 2), torch.optim.SGD, lr=0.1))
        expected = copy.deepcopy(model.state_dict())
        for batch in run.batches(ROWS, *test, weights=weights):
            by_hand = nn.Linear(4, 2)
            by_hand.load_state_dict(expected)
            of_rows = [int(np.flatnonzero((row == NUMBERS).all(1))[0]) for row in batch[0].numpy()]
            of_batch = torch.tensor(weights[of_rows] * np.where(ROWS[1][of_rows] == 1, 3, 1))
            ((losses(by_hand, batch) * of_batch).sum() / of_batch.sum()).backward()
            expected = {name: value.detach() - 0.1 * value.grad for name, value in by_hand.named_parameters()}
            run.step(losses(model, batch))
    for name, value in model.state_dict().items():
        assert value.numpy() == pytest.approx(expected[name].numpy(), abs=1e-6)
    of_rows = weights * np.where(ROWS[1] == 1, 3, 1)
    with torch.no_grad():
        mean = np.average(losses(model, tuple(map(torch.tensor, ROWS))).numpy(), weights=of_rows)
    assert result(run.folder)["metrics"] == {"weighted_loss": pytest.approx(mean, rel=1e-6)}


def test_an_evaluation_that_is_not_a_number_leaves_a_checkpoint_that_can_be_read(start):
    with start() as run:
        train(run, evaluate=lambda model, rows: losses(model, rows) * float("nan"))
    assert checkpoints.newest(run.folder)[1].score == ()


def test_figures_of_the_script_are_averaged_over_the_steps_of_a_logging_interval(start):
    with start(epochs=4) as run:
        total = torch.zeros(1)
        model, _ = run.setup(*parts())
        for batch in run.batches(ROWS):
            if run.epoch == 0:
                run.log(step=run.steps, total=total, loss=losses(model, batch).mean())
            total += 2  # later than the value that was logged
            run.step(losses(model, batch))
            run.log(**({}, {"after step()": np.float32(run.steps)}, {"infinite": float("inf")}, {})[run.epoch])
    first, *others = (record.get("logged") for record in records(run.folder, "train"))
    assert (first["step"], first["total"]) == (1, 2) and first.keys() == {"step", "total", "loss"}
    assert others == [{"after step()": 4}, {"infinite": None}, None], "no figures leave no trace"
    reader = HistoryReader(run.folder / "metrics.jsonl").read()
    assert reader.curves()["logged total"][::2] == ([1.0], [2.0])


def test_what_follows_the_batches_of_an_epoch_is_in_its_checkpoint_and_knows_the_scores(start):
    def run_on(run, leave_at=0):
        model, optimizer = run.setup(*parts())
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
        run.register(schedule=schedule)
        scores = [run.scores]
        for batches in run.each_epoch(ROWS, ROWS, lambda *rows: (losses(model, rows), {"one": rows[1] * 0})):
            for batch in batches:
                run.step(losses(model, batch))
            schedule.step()
            scores.append(run.scores)
            if leave_at == run.epoch:
                break
        return optimizer.param_groups[0]["lr"], scores

    with start() as run:
        lr, scores = run_on(run)
    state = checkpoints.newest(run.folder)[1].optimizer.arrays
    tested = [(record["loss"], record["one"]) for record in records(run.folder, "test")]
    assert scores[0] == {} and [(one["loss"], one["one"]) for one in scores[1:]] == tested and len(tested) == 2
    assert lr == pytest.approx(1e-5)
    with start("left") as run:
        run_on(run, leave_at=1)
    with start("middle", max_steps=4) as run:  # the script's schedule steps once more, but not in the checkpoint
        run_on(run)
    for name in ("left", "middle"):
        with start(resume=run.folder.parent / name) as resumed:
            assert run_on(resumed)[0] == lr
        again = checkpoints.newest(resumed.folder)[1].optimizer.arrays
        assert {key for key in state if not np.array_equal(again[key], state[key])} == set(), name


@pytest.mark.parametrize("strategy", ["single", "dataparallel"])
def test_evaluation_has_no_dropout_and_no_gradients_and_keeps_frozen_modes(strategy, start):
    def evaluate(model, rows):
        found = losses(model, rows)
        seen.append(model(rows[0]))
        modes.append((model.training, found.requires_grad))
        return found, {"zero": torch.zeros(len(rows[0]))}

    seen, modes = [], []
    inner = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5), nn.BatchNorm1d(2))
    with start(strategy=strategy) as run:
        inner[2].eval()
        trained = {(inner[1].training, inner[2].training) for _ in steps(run, *made(inner), evaluate=evaluate)}
        assert torch.equal(seen[-1], inner.eval()(torch.from_numpy(NUMBERS[-len(seen[-1]) :])))
    assert set(modes) == {(False, False)} and trained == {(True, False)}
    assert result(run.folder)["metrics"] == {"zero": 0}


@pytest.mark.parametrize("change", ["freeze", "unfreeze", "add"])
def test_parameters_that_change_after_setup_are_an_error(change, start):
    with pytest.raises(UserError, match="are not those of setup"), start() as run:
        inner, _ = parts()
        inner[0].requires_grad_(change != "unfreeze")
        for _, optimizer in steps(run, *made(inner, torch.optim.SGD, lr=0.1)):
            if change == "add":
                optimizer.add_param_group({"params": nn.Linear(1, 1).parameters()})
            inner[0].requires_grad_(change == "unfreeze")


@pytest.mark.parametrize(("batches", "saved"), [(0, []), (1, []), (4, ["step-00000003"])])
def test_a_loop_left_without_a_step_has_no_result_and_between_epochs_saves_once(batches, saved, start):
    with start() as run:
        model, _ = run.setup(*parts())
        for number, batch in enumerate(itertools.islice(run.batches(ROWS), batches), 1):
            if number == batches:
                break
            run.step(losses(model, batch))
    assert [path.name for path in (run.folder / "checkpoints").glob("*")] == saved
    assert (run.folder / "result.json").exists() == bool(saved)


@pytest.mark.parametrize("steps_shard", [True, False])
def test_a_loop_left_between_two_shards_is_an_error(steps_shard, start):
    with pytest.raises(UserError, match="left its loop between two shards of step 0"), start(shards=2) as run:
        model, _ = run.setup(*parts())
        for number, batch in enumerate(run.batches(ROWS)):
            if number and not steps_shard:
                break
            run.step(losses(model, batch))
            if steps_shard:
                break


def test_an_error_that_ends_the_loop_ends_the_run_also_where_the_script_catches_it(start):
    """Without it, a run without a result ended as a finished one."""
    expected = pytest.raises(UserError, match="the script caught an error that has ended its loop")
    with expected, start() as run, contextlib.suppress(UserError):
        model, _ = run.setup(*parts())
        for number, batch in enumerate(run.batches(ROWS)):
            if number == 0:
                run.step(losses(model, batch))
    assert not (run.folder / "result.json").exists()


def test_figures_may_be_logged_before_the_first_batch(start):
    """As on a rank that joins others at the end of an epoch."""
    with start() as run:
        model, _ = run.setup(*parts())
        batches = run.batches(ROWS)
        run.log(first=1)
        for batch in batches:
            run.step(losses(model, batch))
    assert records(run.folder, "train")[0]["logged"] == {"first": 1}


def test_what_combines_gradients_on_the_host_begins_each_step(start, monkeypatch):
    begun = []
    monkeypatch.setattr(MeanOfRanks, "begin", lambda combiner, step, statistics: begun.append(step.step))
    with start(strategy="ring") as run:
        train(run)
    assert begun == [*range(6)]


def test_ranks_whose_optimizers_have_another_order_are_an_error(start):
    """They would add up gradients of different parameters; here two runs stand for two ranks."""
    shared = []
    for order in (1, -1):
        with start(f"run{order}") as run:
            model, _ = parts()
            train(run, model, torch.optim.SGD([*model.parameters()][::order], lr=0.1))
            shared.append(run._training.run.shared_values | {"--name": ""})
    with pytest.raises(UserError, match="a set has another order on each rank") as raised:
        consistency.check_same_options(SimpleNamespace(gather=lambda _: shared), {})
    assert "rank 1 has the optimizer's parameters in the order 2.bias, 2.weight, 0.bias, ..." in raised.value.reason


def test_settings_of_an_optimizer_are_what_a_script_may_change(start):
    """Also rates that are tensors, of several groups, and how often schedules made a step."""
    with start() as run:
        inner = parts()[0]
        groups = [{"params": inner[0].parameters(), "lr": 0.5}, {"params": inner[2].parameters()}]
        model, optimizer = run.setup(inner, torch.optim.SGD(groups, lr=0.1, weight_decay=0.2))
        run.register(decay=(schedule := torch.optim.lr_scheduler.StepLR(optimizer, 2)))
        before = consistency.settings(run._learner)
        for batch in run.batches(ROWS):
            run.step(losses(model, batch))
            schedule.step()
        after = consistency.settings(run._learner)
    assert before["the optimizer's lr"] == "[0.5, 0.1]" and before["the optimizer's weight_decay"] == "[0.2, 0.2]"
    changed = {name for name, value in after.items() if value != before.get(name)}
    assert changed == {f"the optimizer's {name}" for name in ("lr", "steps of decay")}
    group = {"params": parts()[0].parameters(), "function": lambda rate: rate}
    settings = settings_of(torch.optim.SGD([group], torch.tensor(0.5)))
    assert settings["lr"] == 0.5 and "function" not in settings


class Making(nn.Sequential):
    """Makes a buffer when it is called."""

    def forward(self, numbers):
        self.register_buffer("made", torch.ones(4))
        return super().forward(numbers * self.made)


class OtherTypes(nn.Module):
    """Has parameters in complex numbers and bfloat16, and values that are not finite and stay so."""

    def __init__(self):
        super().__init__()
        self.turning, self.halves = nn.Linear(4, 3, dtype=torch.complex64), nn.Linear(3, 2, dtype=torch.bfloat16)
        self.scale = nn.Parameter(torch.tensor([1.0, -torch.inf]))
        self.frozen = nn.Parameter(torch.tensor([torch.nan]), requires_grad=False)
        self.register_buffer("unknown", torch.full((3,), torch.nan))
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))

    def forward(self, numbers):
        turned = self.turning(numbers.to(torch.complex64))
        return self.halves((turned * turned.conj()).real.bfloat16()).float() * self.scale[0]


class Keeping(torch.optim.SGD):
    """Keeps something of each gradient in its state, and adds it to the next one."""

    def __init__(self, parameters, keep):
        super().__init__(parameters, lr=0.1)
        self.keep = keep

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            state, now = self.state[parameter], self.keep(parameter.grad)
            if "kept" in state:
                parameter.grad.add_(state["kept"].reshape(parameter.shape))
            state["kept"] = now
        return super().step(closure)


def of_views(keep):
    model = nn.Linear(4, 2)
    model.register_buffer("shared", torch.ones(1).expand(3))
    return made(model, Keeping, keep=keep)


class Halves(nn.Linear):
    """Has parameters in bfloat16."""

    def forward(self, numbers):
        return super().forward(numbers.bfloat16()).float()


class Summing(torch.optim.SGD):
    """Has the sum of a third of each gradient in its state, in float32: bfloat16 would round it."""

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["sum"] = state.get("sum", torch.zeros(())) + parameter.grad.float() / 3
        return super().step(closure)


def of_made_buffer(is_registered=True):
    model = Making(nn.Linear(4, 2))
    if is_registered:
        model.register_buffer("made", None)
    return made(model)


def of_transposed_weight():
    """A fused optimizer reads gradients and state in the order of memory."""
    model = nn.Linear(4, 2)
    model.weight = nn.Parameter(model.weight.detach().t().contiguous().t())
    return made(model, torch.optim.AdamW, lr=0.1, fused=True)


RESUMED = {
    "types and values": lambda: made(OtherTypes()),
    "buffer made later": of_made_buffer,
    "transposed state": lambda: of_views(torch.t),
    "state of complex numbers": lambda: of_views(lambda gradient: torch.complex(gradient, gradient).conj().imag),
    "state of more precision": lambda: made(Halves(4, 2, dtype=torch.bfloat16), Summing, lr=0.1),
    "fused": of_transposed_weight,
}


@pytest.mark.parametrize("parts_of", RESUMED.values(), ids=RESUMED)
def test_models_and_optimizers_of_all_kinds_are_resumed(parts_of, start):
    def trained(run):
        train(run, *parts_of())
        saved = checkpoints.newest(run.folder)[1]
        return {name: array.tobytes() for name, array in (saved.weights | saved.optimizer.arrays).items()}

    with start("whole", epochs=3) as run:
        expected = trained(run)
    with start("first") as run:
        trained(run)
    with start(resume=run.folder, epochs=3) as run:
        assert trained(run) == expected


def test_the_watchdog_knows_a_rank_whose_script_has_left_the_loop(start, monkeypatch):
    is_leaving, gather = [], SingleProcess.gather
    monkeypatch.setattr(SingleProcess, "gather", lambda *given: is_leaving.append(phases.is_leaving) or gather(*given))
    with start() as run:
        for _ in steps(run):
            before = len(is_leaving)
            break
    assert set(is_leaving[:before]) == {False} and set(is_leaving[before:]) == {True}
    assert not phases.is_leaving, "what this process does next is not the end of a run"


class Unsaveable:
    """Its state is of a class of its own."""

    def state_dict(self):
        return {"own": self}

    def load_state_dict(self, state):
        raise AssertionError


class Stateful(nn.Linear):
    def get_extra_state(self):
        return {}


def horovods():
    """Parts whose optimizer has a class as Horovod makes it."""
    model, optimizer = parts()
    optimizer.__class__ = type("Adam", (torch.optim.Adam,), {"__module__": "horovod.torch.optimizer"})
    return model, optimizer


MANY = {f"x{number}": number for number in range(51)}


def of_other_optimizer():
    return torch.optim.lr_scheduler.StepLR(parts()[1], 1)


def leave_an_epoch(run):
    run.setup(*parts())
    for batches in run.each_epoch(ROWS):
        for _ in batches:
            break


def evaluating(evaluate):
    """A loop whose evaluation returns what the function makes of its losses."""
    return lambda run: train(run, evaluate=lambda model, rows: evaluate(losses(model, rows)))


def stepping(step):
    """A loop in which the function gets the losses of each batch."""

    def loop(run):
        model, _ = run.setup(*parts())
        for batch in run.batches(ROWS):
            step(run, losses(model, batch))

    return loop


def becomes_nan(run):
    """A buffer of which a part has been a number."""
    inner = OtherTypes()
    inner.unknown[1:] = 0
    for _ in steps(run, *made(inner, torch.optim.SGD, lr=0.01)):
        inner.unknown[1] = torch.nan


def keeping(keep):
    """A loop whose optimizer keeps what the function makes of a gradient."""
    return lambda run: train(run, *made(nn.Linear(4, 2), Keeping, keep=keep))


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda run: train(run, *of_made_buffer(is_registered=False)), "the model makes its buffer made"),
        (becomes_nan, "parameter unknown is not finite after step"),
        (keeping(lambda gradient: collections.deque([1])), "the state of optimizer cannot be saved"),
        (keeping(lambda gradient: gradient.to(torch.float8_e5m2)), "tensor of float8_e5m2"),
        (keeping(lambda gradient: gradient.to_sparse()), "in layout sparse_coo"),
        (lambda run: run.setup(nn.Linear(2, 2), "adam"), "setup(): got Linear and str"),
        (lambda run: run.setup(parts()[0], made(nn.Linear(1, 1))[1]), "has parameters that are not the model's"),
        (lambda run: run.setup(m := parts()[0], made(m[0])[1]), "lacks the parameter 2.weight"),
        (lambda run: run.setup(*made(parts()[0].requires_grad_(False))), "nothing"),
        (lambda run: run.setup(*made(nn.Linear(4, 2, dtype=torch.complex128))), "tensor weight is complex128"),
        (lambda run: run.setup(*made(Stateful(4, 2))), "state _extra_state is of type dict"),
        (lambda run: run.setup(*made(nn.LazyLinear(2))), "weight has no values yet"),
        (lambda run: run.setup(*horovods()), "the optimizer is Horovod's DistributedOptimizer"),
        (lambda run: run.setup(*made(parts()[0], torch.optim.LBFGS)), "LBFGS, whose step() needs a closure"),
        (lambda run: (run.setup(*parts()), run.setup(*parts())), "setup() is called at the wrong time"),
        (lambda run: (run.setup(*parts()), run.register(x=3)), "x has no state_dict()"),
        (lambda run: (run.setup(*parts()), run.register(optimizer=parts()[1])), "optimizer is there already"),
        (lambda run: (run.setup(*parts()), run.register(x=of_other_optimizer())), "x belongs to another optimizer"),
        (lambda run: (run.setup(*parts()), run.register(x=Unsaveable())), "the state of x cannot be saved"),
        (lambda run: run.batches(ROWS), "batches() is called at the wrong time"),
        (lambda run: (train(run, *parts()), run.batches(ROWS)), "it gives all --epochs: call it once"),
        (lambda run: (run.setup(*parts()), run.batches(ROWS, ROWS)), "got rows to evaluate, but no evaluate"),
        (lambda run: (run.setup(*parts()), run.batches((ROWS[0], ROWS[1][:3]))), "arrays of length 3, 30"),
        (lambda run: run.epoch, "the run has not begun"),
        (lambda run: run.step(torch.zeros(3)), "step() is called at the wrong time"),
        (leave_an_epoch, "left the batches of an epoch"),
        (evaluating(lambda found: found.sum()), "evaluate(): got a tensor of shape (), not a value for each of 6"),
        (evaluating(lambda found: (found, [found])), "evaluate() returned metrics of type list"),
        (evaluating(lambda found: (found, {"a": found[1:]})), "evaluate(), a: got a tensor of shape (5,), not"),
        (stepping(lambda run, found: run.step(found.mean())), "got a tensor of shape (), not a value for each of 12"),
        (stepping(lambda run, found: run.step(found.detach())), "do not depend on the model's parameters"),
        (stepping(lambda run, found: run.step([1.0] * 12)), "step(): got list, not"),
        (stepping(lambda run, found: run.log(x=found)), "log(): x is a tensor of shape (12,)"),
        (stepping(lambda run, found: run.log(**{"a\nb": 1})), "is not a name of a figure"),
        (stepping(lambda run, found: run.log(x=found[0] * 1j)), "log(): x is a tensor of shape ()"),
        (stepping(lambda run, found: (run.log(**MANY), run.step(found))), "51 names of figures"),
        (stepping(lambda run, found: None), "step() was not called for the batch of step 0"),
        (stepping(lambda run, found: (run.step(found), run.step(found))), "step() is called at the wrong time"),
        (stepping(lambda run, found: run.step(found * float("nan"))), "rank 0: loss is not finite at step 0"),
    ],
)
def test_mistakes(mistake, message, start):
    with pytest.raises(HvdtrainError, match=re.escape(message)), start() as run:
        mistake(run)


class Looked(nn.Embedding):
    """Takes rows of its table, with sparse gradients; is_layer: as an embedding does, else by a function."""

    def __init__(self, is_layer):
        super().__init__(2, 2, sparse=is_layer)

    def forward(self, numbers):
        rows = (numbers[:, 0] > 0).long()
        return super().forward(rows) if self.sparse else nn.functional.embedding(rows, self.weight, sparse=True)


@pytest.mark.parametrize("is_layer", [False, True])
@pytest.mark.parametrize("options", [{"strategy": "single"}, {"strategy": "ddp"}, {"strategy": "ring"}, {"shards": 2}])
def test_sparse_gradients_are_trained_or_an_error_in_the_first_step(options, is_layer, start):
    is_trained = options == {"strategy": "single"} or (is_layer and options == {"strategy": "ddp"})
    outcome = contextlib.nullcontext() if is_trained else pytest.raises(UserError, match="is sparse")
    with outcome, start(**options) as run:
        train(run, *made(Looked(is_layer), torch.optim.SGD, lr=0.1))
    assert run.steps == (6 if is_trained else 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.1}, "--lr 0.1: "),
        ({"model": "mlp"}, "--model mlp: "),
        ({"model": "other.py"}, "--model other.py: "),
        ({"framework": "tensorflow"}, "--framework tensorflow: a script with its own training loop needs torch or"),
        ({"strategy": "ddpp"}, "--strategy ddpp: "),
    ],
)
def test_options_that_a_script_decides_are_refused(options, message, start):
    with pytest.raises(UserError, match=re.escape(message)), start(**options):
        pass


STOPS = [pytest.param(stop, marks=() if stop in (3, 5) else pytest.mark.matrix) for stop in range(1, 12)]
"""Numbers of steps after which a run of four epochs of three steps is left, and resumed: also between two epochs."""


def scheduled(start, steps_schedule, stop=99, **resume):
    """The learning rates of the steps of a loop with a schedule by epochs, which a run leaves after `stop` steps.

    steps_schedule: "after" the last step of an epoch; when the script sees "another" epoch than in the step before;
    "before" each step.
    """
    rates, epoch = [], 0
    with start(f"to{stop}", epochs=4, **resume) as run:
        assert (run.epochs, run.steps_in_epoch(len(ROWS[0]))) == (4, 3)
        model, optimizer = run.setup(*parts())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        run.register(schedule=schedule)
        for batch in run.batches(ROWS):
            if steps_schedule == "before" or (steps_schedule == "another" and run.epoch != epoch):
                schedule.step()
                epoch = run.epoch
            if run.step(losses(model, batch)) and run.ends_epoch and steps_schedule == "after":
                schedule.step()
            rates.append(run._learner.learning_rate)
            if run.steps + 1 == stop:
                break
        assert run.steps_per_epoch == run.steps_in_epoch(len(ROWS[0]))
    return rates, run.folder


@pytest.mark.parametrize("steps_schedule", ["after", "another"])
@pytest.mark.parametrize("stop", STOPS)
def test_a_schedule_by_epochs_is_the_same_after_a_resume_or_an_error(start, stop, steps_schedule):
    """`if run.epoch != epoch: schedule.step()` forgets the epoch: never other rates, but one error."""
    whole, _ = scheduled(start, steps_schedule)
    assert [f"{rate:.0e}" for rate in whole[1::3]] == ["1e-03", "1e-04", "1e-05", "1e-06"]
    first, folder = scheduled(start, steps_schedule, stop)
    is_lost = steps_schedule == "another" and stop % 3 and stop > 3
    try:
        rest, _ = scheduled(start, steps_schedule, resume=folder)
        in_first_epoch = steps_schedule == "another" and stop < 3  # there a schedule by steps looks the same
        assert not is_lost and (first + rest == whole or in_first_epoch)
    except UserError as error:
        assert "the schedule schedule" in error.reason and "ends_epoch" in error.remedy
        assert is_lost


def rates_of(run, make, every, leave_at=99):
    """By step, the learning rates of a loop; make: its schedules from the optimizer, steps and epochs."""
    model, optimizer = run.setup(*parts())
    epochs, steps = run.epochs, run.epochs * run.steps_in_epoch(len(ROWS[0]))
    schedules = dict(zip(("first", "second"), make(optimizer, steps, epochs), strict=False))
    run.register(**schedules)
    rates = {}
    for batch in run.batches(ROWS):
        rates[run.steps] = optimizer.param_groups[0]["lr"]
        run.step(losses(model, batch))
        if every == "step" or run.ends_epoch:
            for schedule in schedules.values():
                schedule.step(*[0.5] * isinstance(schedule, lr_scheduler.ReduceLROnPlateau))
        if run.steps + 1 == leave_at:
            break
    return rates


REGISTERED = ["cosine", *(pytest.param(name, marks=pytest.mark.matrix) for name in ("one cycle", "chained", "two"))]


def with_one_by_a_score(optimizer, *_):
    """What a plateau has reduced is in no step of the other schedule."""
    return [lr_scheduler.LinearLR(optimizer), lr_scheduler.ReduceLROnPlateau(optimizer)]


MATRIX = pytest.mark.matrix
OTHERS = [
    {"epochs": 5, "batch_size": 5},
    *(pytest.param(other, marks=MATRIX) for other in ({"epochs": 5}, {"batch_size": 5, "remainder": "drop"})),
]


@pytest.mark.parametrize("options", OTHERS)
@pytest.mark.parametrize("every", ["step", "epoch"])
@pytest.mark.parametrize("name", REGISTERED)
def test_registered_schedules_of_a_run_of_another_length_step_to_where_it_is(start, name, every, options):
    """As a run that had those options from the beginning, also where it is left in the middle of an epoch."""

    def make(optimizer, steps, epochs):
        length = (steps if every == "step" else epochs) + 1  # it is not stepped beyond its end
        if name == "two":
            return [lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / length) for _ in range(2)]
        return [SCHEDULES[name](optimizer, length, epochs)]

    with start("whole", **{"epochs": 4, **options}) as run:
        whole = rates_of(run, make, every)
    for stop in (6, 8):
        with start(f"to{stop}", epochs=4) as run:
            rates_of(run, make, every, stop)
        with start(f"more{stop}", resume=run.folder, **{"epochs": 4, **options}) as run:
            rest = rates_of(run, make, every)
        assert rest == {step: pytest.approx(whole[step]) for step in rest} and max(rest) == max(whole)


@pytest.mark.parametrize(
    ("make", "every", "options"),
    [
        (lambda optimizer, *_: [lr_scheduler.StepLR(optimizer, 1)], "other", {"batch_size": 5}),
        (lambda optimizer, *_: [WithEpoch(optimizer)], "step", {"epochs": 5}),
        (with_one_by_a_score, "step", {"epochs": 5}),
    ],
)
def test_a_registered_schedule_whose_step_is_not_known_is_an_error(start, make, every, options):
    with start("first", epochs=4) as run:
        model, optimizer = run.setup(*parts())
        schedule, *others = make(optimizer)
        run.register(first=schedule, **dict(zip(["second"], others, strict=False)))
        for batch in run.batches(ROWS):
            run.step(losses(model, batch))
            schedule.step(*[run.steps] * (every == "step"))
            schedule.step(*[run.steps] * (every == "step"))
            if run.steps == 6:
                break
    expected = pytest.raises(
        UserError, match="and thus those of first, are not the checkpoint's; resume with its batch size"
    )
    with expected, start("more", resume=run.folder, **{"epochs": 4, **options}) as run:
        rates_of(run, make, "step")


def penalty(model):
    return sum((parameter**2).sum() for parameter in model.parameters())


def backward_twice(run, model, optimizer, batch):
    values = losses(model, batch)
    values.mean().backward(retain_graph=True)
    values.sum().backward()


OWN_STEPS = {
    "penalty": lambda run, model, optimizer, batch: penalty(model).backward(),
    "twice": backward_twice,
    "after": lambda run, model, optimizer, batch: (run.step(losses(model, batch)), penalty(model).backward()),
    "update": lambda run, model, optimizer, batch: (run.step(losses(model, batch)), optimizer.step()),
    "before": lambda run, model, optimizer, batch: optimizer.step(),
    "update by another": lambda run, model, optimizer, batch: (
        run.step(losses(model, batch)),
        made(model, torch.optim.SGD)[1].step(),
    ),
}


STRATEGIES = [{}, {"strategy": "horovod"}]
STRATEGIES += [pytest.param(options, marks=MATRIX) for options in ({"strategy": "ddp"}, {"shards": 2})]


@pytest.mark.parametrize("options", STRATEGIES)
@pytest.mark.parametrize("name", OWN_STEPS)
def test_backward_passes_and_updates_of_a_script_itself_are_an_error_at_once(start, name, options):
    """Without it, gradients were dropped, or each step was made twice."""
    call = "the optimizer's step" if name in ("update", "before", "update by another") else "backward"
    expected = pytest.raises(UserError, match=rf"the script calls {call}\(\), which run.step\(losses\) does; give run")
    with expected, start(**options) as run:
        model, optimizer = run.setup(*parts())
        for batch in run.batches(ROWS):
            OWN_STEPS[name](run, model, optimizer, batch)
            assert run.steps == 0
            run.step(losses(model, batch))


def test_other_gradients_are_the_scripts(start):
    """Of inputs, by torch.autograd.grad(), of another model with its optimizer; and all of them after the run."""
    other, of_other = made(nn.Linear(2, 1))
    with start() as run:
        model, optimizer = run.setup(*parts())
        for batch in run.batches(ROWS):
            inputs = batch[0].requires_grad_()
            (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
            torch.autograd.grad(penalty(model), list(model.parameters()))
            optimizer.zero_grad()
            other(model(inputs).detach()).sum().backward()
            other(model(inputs)).sum().backward(inputs=[*other.parameters()])
            of_other.step()
            assert run.step(losses(model, batch) + slope.square().sum(1) + 0.1 * penalty(model))
    penalty(model).backward()
    optimizer.step()


def test_a_run_that_does_not_begin_leaves_the_model_to_the_next_one(start):
    model, optimizer = parts()
    with pytest.raises(UserError, match="arrays of length"), start("first") as run:
        run.batches((ROWS[0], ROWS[1][:3])) if run.setup(model, optimizer) else None
    with start("second") as run:
        train(run, model, optimizer)


class WithEpoch:
    """A schedule as in timm: its step() needs a number."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, epoch):
        pass

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_a_schedule_by_steps_may_step_before_the_update(start):
    _, folder = scheduled(start, "before", stop=5)
    scheduled(start, "before", resume=folder)
    with start("other") as run:
        train(run)
    with pytest.raises(UserError, match="schedule is not in both the script and the checkpoint"):
        scheduled(start, "before", resume=run.folder)


@pytest.mark.parametrize(("choice", "best"), [("auto", 9), ("min:perplexity", 3), ("max:hits", 6)])
def test_the_best_checkpoint_by_any_figure_is_kept_marked_and_resumed(start, capfd, choice, best):
    """Of three epochs of three steps, the first has the lowest perplexity, and the second the most hits."""
    figures = {"loss": (0.0, 3.0, 2.0, 1.0), "perplexity": (0.0, -2.0, 5.0, 4.0), "hits": (0.0, -7.0, 1.0, 0.5)}

    def evaluate(model, rows):
        epoch = hvdtrain.progress().epoch
        metrics = {name: torch.full(rows[1].shape, of[epoch]) for name, of in figures.items()}
        return metrics.pop("loss"), metrics

    with start(epochs=3, keep=1, score=choice) as run:
        train(run, evaluate=evaluate)
    name = f"step-{best:08d}"
    assert result(run.folder)["best_checkpoint"] == checkpoints.newest(run.folder / "best")[0].name == name
    assert checkpoints.newest(run.folder)[1].position.step == 9
    main(["show", str(run.folder)])
    assert [line.split()[0] for line in capfd.readouterr().out.splitlines() if line.endswith("the best")] == [name]
    with start(resume=run.folder / "best", epochs=4) as again:
        counts = [again.steps for _ in steps(again, evaluate=lambda model, rows: rows[1] * 1.0)]
    assert counts[0] == best and (again.folder == run.folder) == (best == 9), "an older one begins a new run"


@pytest.mark.parametrize("evaluated", [True, False])
def test_a_score_of_nothing_is_an_error_before_the_first_step(start, evaluated):
    message = r"--score max:hit: no such metric \(did you mean hits\?\); give max: or min: with one of hits, loss"
    with pytest.raises(UserError, match=message if evaluated else "evaluates nothing"), start(score="max:hit") as run:
        evaluate = {"evaluate": lambda model, rows: (rows[1] * 1.0, {"hits": rows[1] * 1.0})}
        train(run, **evaluate if evaluated else {})
    assert not run._turn


class Mixing(nn.Linear):
    def forward(self, numbers):
        return super().forward(numbers - numbers.mean(0))


MIXED = {
    "broadcast": lambda model, rows: ((model(rows[0])[:, :1] - rows[1]) ** 2).mean(1),
    "parts of a mean": lambda model, rows: losses(model, rows) / len(rows[1]),
    "metric": lambda model, rows: (losses(model, rows), {"m": losses(model, rows) - losses(model, rows).max()}),
}


@pytest.mark.parametrize("name", [*MIXED, "model"])
@pytest.mark.parametrize("mixes_rows", [False, True])
def test_an_evaluation_that_mixes_rows_is_an_error_unless_the_script_says_so(start, name, mixes_rows):
    is_error = pytest.raises(UserError, match="of a row depends on the other rows of its batch")
    with contextlib.nullcontext() if mixes_rows else is_error, start() as run:
        model, _ = run.setup(*(made(Mixing(4, 2)) if name == "model" else parts()), mixes_rows=mixes_rows)
        for batch in run.batches(ROWS, ROWS, lambda *rows: MIXED.get(name, losses)(model, rows)):
            run.step(losses(model, batch))


def test_a_random_evaluation_says_nothing_about_rows(start):
    with start() as run:
        train(run, evaluate=lambda model, rows: losses(model, rows) + torch.rand(len(rows[1])).mean())


@pytest.mark.parametrize("ends_in_softmax", [True, False])
def test_a_softmax_before_a_cross_entropy_of_logits_is_told(start, ends_in_softmax):
    with start() as run:
        model = nn.Sequential(nn.Linear(4, 2), *[nn.Softmax(1)] * ends_in_softmax)
        model, _ = train(run, *made(model))
    assert ("ends in a softmax" in (run.folder / "logs" / "rank-0.log").read_text()) == ends_in_softmax
    assert not model._forward_hooks


class MapStyle:
    """Rows that only the rank itself can read, or that it may read in threads."""

    def __len__(self):
        return 30

    def __getitem__(self, row):
        return NUMBERS[row], ROWS[1][row]


@pytest.mark.parametrize(
    ("attributes", "workers", "warns"),
    [({}, 2, True), ({}, 0, False), ({}, "auto", False), ({"background": "threads"}, 2, False)],
)
def test_workers_that_cannot_be_are_a_warning(start, attributes, workers, warns):
    with start(workers=workers) as run:
        model, _ = run.setup(*parts())
        for batch in run.batches(type("Rows", (MapStyle,), attributes)()):
            run.step(losses(model, batch))
    log = (run.folder / "logs" / "rank-0.log").read_text()
    assert ("WARNING --workers 2" in log) == warns and (attributes or "raise --workers" not in log)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_loop_left_after_a_step_that_was_no_update_does_not_count_it(shards, start, monkeypatch):
    renewed = cut_off_in_step_2(monkeypatch)
    with start(shards=shards) as run:
        model, _ = run.setup(*parts())
        counted = 0
        for batch in run.batches(ROWS):
            counted += run.step(losses(model, batch)) or run._turn.change is not None
            if counted == 3:
                assert run._turn.change is not None
                break
    assert len(renewed) == 1
    assert result(run.folder)["steps"] == 2


class Model(nn.Linear):
    """With a method and attributes of its own."""

    kind = "linear"

    def __init__(self):
        super().__init__(4, 2)
        self.calls = 0

    def generate(self, rows):
        self.calls += 1
        return self(rows)


CALLS = {
    "model": lambda model: model,
    "method": lambda model: model.generate,
    "inner": lambda model: getattr(model, "module", model),
}


@pytest.mark.parametrize("strategy", ["ddp", "dataparallel", "single"])
@pytest.mark.parametrize("call", CALLS)
def test_a_wrapped_model_has_the_methods_of_the_own_one_and_is_the_one_to_call(start, strategy, call):
    """Losses of another call are an error where ranks would not combine their gradients."""
    wraps = False
    try:
        with start(strategy=strategy) as run:
            model, _ = run.setup(*made(inner := Model(), torch.optim.SGD, lr=0.1))
            with torch.no_grad():
                assert torch.equal(model.generate(torch.zeros(1, 4)), inner(torch.zeros(1, 4)))
            assert (model.kind, model.calls, model.in_features) == ("linear", 1, 4) and not hasattr(model, "nothing")
            wraps = isinstance(model, nn.parallel.DistributedDataParallel)
            for batch in run.batches(ROWS):
                run.step(losses(CALLS[call](model), batch))
        assert not wraps or call == "model"
    except UserError as error:
        assert wraps and call != "model" and "horovod" in error.remedy
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
