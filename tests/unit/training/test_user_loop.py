"""A script's own loop in this process: what it gets, and what is refused."""

import collections
import contextlib
import itertools
import json
import os
from unittest import mock

import numpy as np
import pytest
import torch
from support.user_loop_runs import CONFIG, NUMBERS, starter
from torch import nn

import hvdtrain
from hvdtrain.__main__ import main
from hvdtrain.collectives.groups import SingleProcess
from hvdtrain.collectives.shard_sums import ShardSums
from hvdtrain.collectives.surviving import RanksChanged
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.errors import UserError
from hvdtrain.runs import checkpoints
from hvdtrain.runs.metrics import MetricsReader
from hvdtrain.system.phases import phases
from hvdtrain.training import evaluation, survival

ROWS = NUMBERS, (NUMBERS[:, 0] > 0).astype(np.int64)


@pytest.fixture
def start(tmp_path):
    """Starts a run with some options."""
    with mock.patch.dict(os.environ):
        yield starter(tmp_path / "runs")


def parts():
    """A model and its optimizer."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    return model, torch.optim.Adam(model.parameters())


def losses(model, rows):
    """The loss of each row."""
    return nn.functional.cross_entropy(model(rows[0]), rows[1], reduction="none")


def train(run, model):
    """The whole loop."""
    for batch in run.batches(ROWS):
        run.step(losses(model, batch))


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
    result = json.loads((run.folder / "result.json").read_text())
    assert (result["steps"], result["metrics"], result["loss"]) == (6, {}, None)
    saved = checkpoints.newest(run.folder)[1]
    assert saved.position.step == 6 and saved.score == 0
    assert all(np.array_equal(saved.weights[name], value) for name, value in model.state_dict().items())


def test_an_evaluation_that_is_not_a_number_leaves_a_checkpoint_that_can_be_read(start):
    with start() as run:
        model, _ = run.setup(*parts())
        for batch in run.batches(ROWS, ROWS, lambda *rows: losses(model, rows) * float("nan")):
            run.step(losses(model, batch))
    assert checkpoints.newest(run.folder)[1].score == 0


def logged(run):
    """What the run's record has of the figures of the script, by step."""
    records = map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines())
    return {record["step"]: record.get("logged") for record in records if record["kind"] == "train"}


def test_figures_of_the_script_are_averaged_over_the_steps_of_a_logging_interval(start):
    with start() as run:
        model, _ = run.setup(*parts())
        total = torch.zeros(1)
        for batch in run.batches(ROWS):
            if run.epoch == 0:
                run.log(step=run.steps, total=total, loss=losses(model, batch).mean())
            total += 2  # later than the value that was logged
            run.step(losses(model, batch))
            run.log(**{"after step()": np.float32(run.steps)} if run.epoch else {})
    first, second = logged(run)[3], logged(run)[6]
    assert (first["step"], first["total"], second) == (1, 2, {"after step()": 4})
    assert first.keys() == {"step", "total", "loss"}
    reader = MetricsReader(run.folder / "metrics.jsonl").read()
    assert reader.logged()["logged total"].points == [(1.0, 2.0)]


def test_no_figures_leave_no_trace_and_those_that_are_not_finite_are_null(start):
    with start() as run:
        model, _ = run.setup(*parts())
        for batch in run.batches(ROWS):
            run.step(losses(model, batch))
            if run.epoch:
                run.log(infinite=float("inf"))
    assert logged(run) == {3: None, 6: {"infinite": None}}


def test_what_follows_the_batches_of_an_epoch_is_in_its_checkpoint_and_knows_the_scores(start):
    def run_on(run, leave_at=0):
        model, optimizer = run.setup(*parts())
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
        run.register(schedule=schedule)

        def evaluate(*rows):
            return losses(model, rows), {"one": torch.ones(len(rows[0]))}

        scores = [run.scores]
        for batches in run.each_epoch(ROWS, ROWS, evaluate):
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
    records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    tested = [(record["loss"], record["one"]) for record in records if record["kind"] == "test"]
    assert scores[0] == {} and [(one["loss"], one["one"]) for one in scores[1:]] == tested and len(tested) == 2
    assert lr == pytest.approx(1e-5)
    with start("left") as run:
        run_on(run, leave_at=1)
    with start("middle", max_steps=4) as run:  # the script's schedule steps once more, but not in the checkpoint
        run_on(run)
    for name in ("left", "middle"):
        options = RuntimeOptions(resume=run.folder.parent / name, device="cpu", quiet=True)
        with hvdtrain.start(Config(**CONFIG), options) as resumed:
            assert run_on(resumed)[0] == lr
        again = checkpoints.newest(resumed.folder)[1].optimizer.arrays
        assert {key for key in state if not np.array_equal(again[key], state[key])} == set(), name


def test_leaving_only_the_batches_of_an_epoch_is_an_error(start):
    with pytest.raises(UserError, match="left the batches of an epoch"), start() as run:
        model, _ = run.setup(*parts())
        for batches in run.each_epoch(ROWS):
            for batch in batches:
                run.step(losses(model, batch))
                break


def test_evaluation_is_in_evaluation_mode_without_gradients(start):
    modes = []
    with start() as run:
        model, _ = run.setup(*parts())

        def evaluate(*rows):
            found = losses(model, rows)
            modes.append((model.training, found.requires_grad))
            return found, {"zero": torch.zeros(len(rows[0]))}

        for batch in run.batches(ROWS, ROWS, evaluate):
            assert model.training
            run.step(losses(model, batch))
    assert set(modes) == {(False, False)}
    assert json.loads((run.folder / "result.json").read_text())["metrics"] == {"zero": 0}


@pytest.mark.parametrize("strategy", ["single", "dataparallel"])
def test_evaluation_has_no_dropout_and_keeps_frozen_modes(strategy, start):
    with start(strategy=strategy) as run:
        inner = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5), nn.BatchNorm1d(2))
        model, _ = run.setup(inner, torch.optim.Adam(inner.parameters()))
        inner[2].eval()
        seen, modes = [], []
        for batch in run.batches(ROWS, ROWS, lambda *rows: seen.append(model(rows[0])) or losses(model, rows)):
            modes.append((inner[1].training, inner[2].training))
            run.step(losses(model, batch))
        assert torch.equal(seen[-1], inner.eval()(torch.from_numpy(NUMBERS)))
        assert set(modes) == {(True, False)}


class Partly(nn.Module):
    """Uses one of its layers."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, numbers):
        return self.used(numbers)


def test_parameters_without_gradients_and_frozen_ones(start):
    with start() as run:
        model = Partly()
        model.used.bias.requires_grad_(False)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        model, _ = run.setup(model, torch.optim.SGD([*model.parameters()], lr=0.1))
        train(run, model)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"used.weight"}


@pytest.mark.parametrize("change", ["freeze", "unfreeze", "add"])
def test_parameters_that_change_after_setup_are_an_error(change, start):
    with pytest.raises(UserError, match="are not those of setup"), start() as run:
        inner, _ = parts()
        inner[0].requires_grad_(change != "unfreeze")
        model, optimizer = run.setup(inner, torch.optim.SGD(inner.parameters(), lr=0.1))
        for batch in run.batches(ROWS):
            run.step(losses(model, batch))
            if change == "add":
                optimizer.add_param_group({"params": nn.Linear(1, 1).parameters()})
            inner[0].requires_grad_(change == "unfreeze")


@pytest.mark.parametrize("batches", [0, 1])
def test_a_run_without_a_step_has_no_result(batches, start):
    with start() as run:
        run.setup(*parts())
        for _ in itertools.islice(run.batches(ROWS), batches):
            break
    assert not (run.folder / "result.json").exists()
    assert not list((run.folder / "checkpoints").glob("*"))


def test_leaving_the_loop_between_epochs_saves_once(start):
    with start() as run:
        model, _ = run.setup(*parts())
        for batch in run.batches(ROWS):
            if run.epoch == 1:
                break
            run.step(losses(model, batch))
    assert [path.name for path in (run.folder / "checkpoints").iterdir()] == ["step-00000003"]
    assert (run.folder / "result.json").exists()


def test_an_infinite_buffer_is_no_error(start):
    with start() as run:
        inner, _ = parts()
        inner.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
        model, _ = run.setup(inner, torch.optim.Adam(inner.parameters()))
        train(run, model)
    assert np.isneginf(checkpoints.newest(run.folder)[1].weights["mask"][0, 1])


class Making(nn.Sequential):
    """Makes a buffer when it is called."""

    def forward(self, numbers):
        self.register_buffer("made", torch.ones(4))
        return super().forward(numbers * self.made)


@pytest.mark.parametrize("is_registered", [True, False])
def test_a_buffer_that_the_model_makes_is_resumed_or_an_error_at_the_first_checkpoint(start, is_registered):
    def run_on(run):
        inner = Making(nn.Linear(4, 2))
        if is_registered:
            inner.register_buffer("made", None)
        model, _ = run.setup(inner, torch.optim.SGD(inner.parameters(), lr=0.01))
        train(run, model)

    with contextlib.nullcontext() if is_registered else pytest.raises(UserError, match=" made "):
        with start(max_steps=3) as run:
            run_on(run)
        with hvdtrain.start(Config(**CONFIG), RuntimeOptions(resume=run.folder, device="cpu", quiet=True)) as run:
            run_on(run)


class OtherTypes(nn.Module):
    """Has parameters in complex numbers and bfloat16, and values that are not finite and stay so."""

    def __init__(self):
        super().__init__()
        self.turning, self.halves = nn.Linear(4, 3, dtype=torch.complex64), nn.Linear(3, 2, dtype=torch.bfloat16)
        self.scale = nn.Parameter(torch.tensor([1.0, -torch.inf]))
        self.frozen = nn.Parameter(torch.tensor([torch.nan]), requires_grad=False)
        self.register_buffer("unknown", torch.full((3,), torch.nan))

    def forward(self, numbers):
        turned = self.turning(numbers.to(torch.complex64))
        return self.halves((turned * turned.conj()).real.bfloat16()).float() * self.scale[0]


def test_parameters_of_other_types_and_not_finite_from_the_start_are_saved_and_resumed(start):
    def run_on(run):
        inner = OtherTypes()
        model, _ = run.setup(inner, torch.optim.Adam(inner.parameters()))
        train(run, model)
        return inner.state_dict(), checkpoints.newest(run.folder)[1].optimizer.arrays

    with start(max_steps=3) as run:
        run_on(run)
        folder = run.folder
    with hvdtrain.start(Config(**CONFIG), RuntimeOptions(resume=folder, device="cpu", quiet=True)) as run:
        resumed, state = run_on(run)
    with start("whole") as run:
        whole, expected = run_on(run)
    assert {name for name in whole if not torch.equal(whole[name].nan_to_num(), resumed[name].nan_to_num())} == set()
    assert all(np.array_equal(state[name], expected[name]) for name in expected)
    assert {"complex64"} < {array.dtype.name for array in expected.values()}


def test_a_buffer_that_becomes_nan_is_an_error_where_it_was_a_number(start):
    with pytest.raises(hvdtrain.errors.NotFiniteError) as error, start() as run:
        inner = OtherTypes()
        inner.unknown[1:] = 0
        model, _ = run.setup(inner, torch.optim.SGD(inner.parameters(), lr=0.01))
        for batch in run.batches(ROWS):
            run.step(losses(model, batch))
            inner.unknown[1] = torch.nan
    assert "unknown" in error.value.reason


def test_a_schedule_of_another_optimizer_is_refused(start):
    with pytest.raises(UserError, match="schedule belongs to another optimizer"), start() as run:
        run.setup(*parts())
        run.register(schedule=torch.optim.lr_scheduler.StepLR(parts()[1], 1))


def test_the_watchdog_knows_a_rank_whose_script_has_left_the_loop(start, monkeypatch):
    is_leaving, gather = [], SingleProcess.gather
    monkeypatch.setattr(SingleProcess, "gather", lambda *given: is_leaving.append(phases.is_leaving) or gather(*given))
    with start() as run:
        model, _ = run.setup(*parts())
        for batch in run.batches(ROWS):
            run.step(losses(model, batch))
            before = len(is_leaving)
            break
    assert set(is_leaving[:before]) == {False} and set(is_leaving[before:]) == {True}


class Unsaveable:
    """Its state is of a class of its own."""

    def state_dict(self):
        return {"own": self}

    def load_state_dict(self, state):
        raise AssertionError


class Stateful(nn.Linear):
    def get_extra_state(self):
        return {}


def made(model):
    """The model and its optimizer."""
    return model, torch.optim.Adam(model.parameters())


def horovods():
    """Parts whose optimizer has a class as Horovod makes it."""
    model, optimizer = parts()
    optimizer.__class__ = type("Adam", (torch.optim.Adam,), {"__module__": "horovod.torch.optimizer"})
    return model, optimizer


def replace(model, _):
    """Setup with the parameters of another model."""
    return model, torch.optim.Adam(nn.Linear(2, 2).parameters())


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda run: run.setup(nn.Linear(2, 2), "adam"), "setup(): got Linear and str"),
        (lambda run: run.setup(*replace(*parts())), "the optimizer has parameters that are not the model's"),
        (lambda run: run.setup(parts()[0], torch.optim.Adam(nn.Linear(1, 1).parameters())), "not the model's"),
        (lambda run: run.setup(m := parts()[0], torch.optim.Adam(m[0].parameters())), "lacks the parameter 2.weight"),
        (lambda run: run.setup(m := parts()[0].requires_grad_(False), torch.optim.Adam(m.parameters())), "nothing"),
        (lambda run: run.setup(*made(nn.Linear(4, 2, dtype=torch.complex128))), "tensor weight is complex128"),
        (lambda run: run.setup(*made(Stateful(4, 2))), "state _extra_state is of type dict"),
        (lambda run: run.setup(m := nn.LazyLinear(2), torch.optim.Adam(m.parameters())), "weight has no values yet"),
        (lambda run: run.setup(*horovods()), "the optimizer is Horovod's DistributedOptimizer"),
        (
            lambda run: run.setup(m := parts()[0], torch.optim.LBFGS(m.parameters())),
            "the step() of LBFGS does not have",
        ),
        (lambda run: (run.setup(*parts()), run.setup(*parts())), "setup() is called twice"),
        (lambda run: run.register(), "register() is called at the wrong time"),
        (lambda run: (run.setup(*parts()), run.register(x=3)), "x has no state_dict()"),
        (lambda run: (run.setup(*parts()), run.register(optimizer=parts()[1])), "optimizer is there already"),
        (lambda run: (run.setup(*parts()), run.register(x=Unsaveable())), "the state of x cannot be saved"),
        (lambda run: run.batches(ROWS), "batches() is called at the wrong time"),
        (lambda run: (run.setup(*parts()), run.batches(ROWS), run.batches(ROWS)), "batches() is called at the wrong"),
        (lambda run: (run.setup(*parts()), run.batches(ROWS, ROWS)), "got rows to evaluate, but no evaluate"),
        (lambda run: (run.setup(*parts()), run.batches((ROWS[0], ROWS[1][:3]))), "arrays of length 3, 30"),
        (lambda run: run.log(x=1), "log() is called outside the loop"),
        (lambda run: run.epoch, "the run has not begun"),
        (lambda run: run.step(torch.zeros(3)), "step() is called twice, or before the first batch"),
    ],
)
def test_mistakes_before_the_first_step(mistake, message, start):
    with pytest.raises(UserError) as error, start() as run:
        mistake(run)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            lambda run, found: run.step(found.mean()),
            "step(): got a tensor of shape (), not a value for each of 12 row(s)",
        ),
        (lambda run, found: run.step(found.detach()), "do not depend on the model's parameters"),
        (lambda run, found: run.step([1.0] * 12), "step(): got list, not"),
        (lambda run, found: run.log(x=found), "log(): x is a tensor of shape (12,)"),
        (lambda run, found: run.log(x="high"), "log(): x is str"),
        (lambda run, found: run.log(**{"a\nb": 1}), "is not a name of a figure"),
        (lambda run, found: run.log(x=torch.ones(1, dtype=torch.complex64)), "log(): x is a tensor of shape (1,)"),
        (lambda run, found: (run.log(**{f"x{i}": i for i in range(51)}), run.step(found)), "51 names of figures"),
        (lambda run, found: None, "step() was not called for the batch of step 0"),
        (lambda run, found: (run.step(found), run.step(found)), "step() is called twice"),
        (lambda run, found: run.step(found * float("nan")), "rank 0: loss is not finite at step 0"),
    ],
)
def test_mistakes_in_the_loop(step, message, start):
    with pytest.raises(hvdtrain.errors.HvdtrainError) as error, start() as run:
        model, _ = run.setup(*parts())
        for batch in run.batches(ROWS):
            step(run, losses(model, batch))
    assert message in str(error.value)


def test_a_renamed_metric_is_said_once(start, monkeypatch):
    said = mock.Mock()
    monkeypatch.setattr(evaluation.log, "info", said)
    with start() as run:
        model, _ = run.setup(*parts())
        for batch in run.batches(ROWS, ROWS, lambda *rows: (found := losses(model, rows), {"step": found})):
            run.step(losses(model, batch))
    assert [call.args[1:] for call in said.call_args_list].count(("step", "step_")) == 1
    assert "step_" in json.loads((run.folder / "result.json").read_text())["metrics"]


class Keeping(torch.optim.SGD):
    """Keeps something of each gradient in its state."""

    def __init__(self, parameters, keep):
        super().__init__(parameters, lr=0.1)
        self.keep = keep

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["kept"] = self.keep(parameter.grad)
        return super().step(closure)


@pytest.mark.parametrize(
    ("keep", "kind"),
    [
        (lambda gradient: collections.deque([1]), "deque"),
        (lambda gradient: gradient.to(torch.float8_e5m2), "tensor of float8_e5m2"),
        (lambda gradient: gradient.to(torch.complex128), "tensor of complex128"),
        (lambda gradient: gradient.to_sparse(), "in layout sparse_coo"),
    ],
)
def test_a_state_that_cannot_be_saved_is_an_error_in_the_first_step(keep, kind, start):
    with pytest.raises(UserError) as error, start() as run:
        model, _ = run.setup(model := nn.Linear(4, 2), Keeping(model.parameters(), keep))
        train(run, model)
    assert "the state of optimizer cannot be saved" in error.value.reason and kind in error.value.reason
    assert run.steps == 0


@pytest.mark.parametrize("keep", [torch.t, lambda gradient: torch.complex(gradient, gradient).conj().imag])
def test_a_state_of_views_is_resumed(keep, start, tmp_path):
    def setup(run):
        model = nn.Linear(4, 2)
        model.register_buffer("shared", torch.ones(1).expand(3))
        return run.setup(model, Keeping(model.parameters(), keep))

    with start() as run:
        model, optimizer = setup(run)
        train(run, model)
    with hvdtrain.start(
        Config(**{**CONFIG, "epochs": 3}), RuntimeOptions(resume=run.folder, device="cpu", quiet=True)
    ) as run:
        model, again = setup(run)
        for batch in run.batches(ROWS):
            if run.steps == 6:
                states = zip(again.state.values(), optimizer.state.values(), strict=True)
                assert all(torch.equal(mine["kept"], its["kept"]) for mine, its in states)
            run.step(losses(model, batch))


def test_a_fused_optimizer_of_a_transposed_weight_is_resumed(start, tmp_path):
    """It reads gradients and state in the order of memory."""

    def trained(run):
        model = nn.Linear(4, 2)
        model.weight = nn.Parameter(model.weight.detach().t().contiguous().t())
        model, _ = run.setup(model, torch.optim.AdamW(model.parameters(), 0.1, fused=True))
        train(run, model)
        return model.weight

    with start("whole", epochs=3) as run:
        expected = trained(run)
    with start("first") as run:
        trained(run)
    resumed = RuntimeOptions(resume=run.folder, device="cpu", quiet=True)
    with hvdtrain.start(Config(**{**CONFIG, "epochs": 3}), resumed) as run:
        assert torch.equal(trained(run), expected)


class Looked(nn.Module):
    """Takes rows of a table of its own, or of an embedding's, with sparse gradients."""

    def __init__(self, is_layer):
        super().__init__()
        self.table = nn.Embedding(2, 2, sparse=True) if is_layer else nn.Parameter(torch.ones(2, 2))

    def forward(self, numbers):
        rows = (numbers[:, 0] > 0).long()
        if isinstance(self.table, nn.Embedding):
            return self.table(rows)
        return nn.functional.embedding(rows, self.table, sparse=True)


@pytest.mark.parametrize("is_layer", [False, True])
@pytest.mark.parametrize("options", [{"strategy": "single"}, {"strategy": "ddp"}, {"strategy": "ring"}, {"shards": 2}])
def test_sparse_gradients_are_trained_or_an_error_in_the_first_step(options, is_layer, start):
    is_trained = options == {"strategy": "single"} or (is_layer and options == {"strategy": "ddp"})
    outcome = contextlib.nullcontext() if is_trained else pytest.raises(UserError, match="is sparse")
    with outcome, start(**options) as run:
        model, _ = run.setup(model := Looked(is_layer), torch.optim.SGD(model.parameters(), lr=0.1))
        train(run, model)
    assert run.steps == (6 if is_trained else 0)


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        (lambda found: found.sum(), "evaluate(): got a tensor of shape (), not a value for each of 30"),
        (lambda found: (found, [found]), "evaluate() returned metrics of type list"),
        (lambda found: (found, {"a": found[1:]}), "evaluate(), a: got a tensor of shape (29,), not"),
    ],
)
def test_mistakes_in_the_evaluation(evaluate, message, start):
    with pytest.raises(UserError) as error, start() as run:
        model, _ = run.setup(*parts())
        for batch in run.batches(ROWS, ROWS, lambda *rows: evaluate(losses(model, rows))):
            run.step(losses(model, batch))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.1}, "--lr: "),
        ({"weight_decay": 0.1}, "--weight-decay: "),
        ({"precision": "bf16"}, "--precision: "),
        ({"model": "mlp"}, "--model mlp: "),
        ({"model": "other.py"}, "the run is of other.py, not of "),
        (
            {"framework": "tensorflow"},
            "--framework tensorflow: a script with its own training loop needs torch or",
        ),
        ({"strategy": "horovod", "op": "adasum"}, "--op adasum: "),
        ({"strategy": "ddpp"}, "--strategy ddpp: "),
    ],
)
def test_options_that_a_script_decides_are_refused(options, message, start):
    with pytest.raises(UserError) as error, start(**options):
        pass
    assert message in str(error.value)


STOPS = [pytest.param(stop, marks=() if stop in (3, 5) else pytest.mark.matrix) for stop in range(1, 12)]
"""Numbers of steps after which a run of four epochs of three steps is left, and resumed: also between two epochs."""


def by_ends_epoch(run, model, schedule, at_start):
    for batch in run.batches(ROWS):
        if run.step(losses(model, batch)) and run.ends_epoch:
            schedule.step()
        yield


def by_comparing(run, model, schedule, at_start):
    epoch = at_start
    for batch in run.batches(ROWS):
        if run.epoch != epoch:
            schedule.step()
            epoch = run.epoch
        run.step(losses(model, batch))
        yield


def scheduled(start, tmp_path, loop, at_start=0, stop=99, resume=None):
    """The learning rates of the steps of a loop with a schedule by epochs, which a run leaves after `stop` steps."""
    options = RuntimeOptions(
        runs=tmp_path / "runs", name=f"to{stop}{bool(resume)}", resume=resume, device="cpu", quiet=True
    )
    rates = []
    with hvdtrain.start(Config(**{**CONFIG, "epochs": 4}), options) as run:
        assert (run.epochs, run.steps_in_epoch(len(ROWS[0]))) == (4, 3)
        model, optimizer = run.setup(*parts())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        run.register(schedule=schedule)
        for _ in loop(run, model, schedule, at_start):
            rates.append(run._learner.learning_rate)
            if run.steps + 1 == stop:
                break
        assert run.steps_per_epoch == run.steps_in_epoch(len(ROWS[0]))
    return rates, run.folder


@pytest.mark.parametrize("stop", STOPS)
def test_a_schedule_by_epochs_is_the_same_after_a_resume_at_any_step(start, tmp_path, stop):
    whole, _ = scheduled(start, tmp_path, by_ends_epoch)
    assert [f"{rate:.0e}" for rate in whole[1::3]] == ["1e-03", "1e-04", "1e-05", "1e-06"]
    first, folder = scheduled(start, tmp_path, by_ends_epoch, stop=stop)
    rest, _ = scheduled(start, tmp_path, by_ends_epoch, resume=folder)
    assert first + rest == whole


@pytest.mark.parametrize("at_start", [0, pytest.param(None, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("stop", STOPS)
def test_a_schedule_that_a_resume_would_step_twice_is_an_error(start, tmp_path, stop, at_start):
    """`if run.epoch != epoch: schedule.step()` forgets the epoch: never other rates, but one error."""
    whole, _ = scheduled(start, tmp_path, by_comparing, at_start)
    first, folder = scheduled(start, tmp_path, by_comparing, at_start, stop)
    try:
        rest, _ = scheduled(start, tmp_path, by_comparing, at_start, resume=folder)
        assert first + rest == whole or stop < 3  # in the first epoch a schedule by steps looks the same
    except UserError as error:
        assert "the schedule schedule" in error.reason and "ends_epoch" in error.remedy
        assert stop % 3 and stop > 3


def test_a_schedule_by_steps_may_step_before_the_update(start, tmp_path):
    def by_steps(run, model, schedule, at_start):
        for batch in run.batches(ROWS):
            schedule.step()
            run.step(losses(model, batch))
            yield

    _, folder = scheduled(start, tmp_path, by_steps, stop=5)
    scheduled(start, tmp_path, by_steps, resume=folder)


def test_a_checkpoint_of_other_registered_objects_is_refused(start, tmp_path):
    with start("first") as run:
        model, _ = run.setup(*parts())
        train(run, model)
    resumed = RuntimeOptions(resume=run.folder, device="cpu", quiet=True)
    with pytest.raises(UserError) as error, hvdtrain.start(Config(**CONFIG), resumed) as run:
        model, optimizer = run.setup(*parts())
        run.register(schedule=torch.optim.lr_scheduler.StepLR(optimizer, 1))
        train(run, model)
    assert "schedule is not in both the script and the checkpoint" in str(error.value)


@pytest.mark.parametrize(("choice", "best"), [("auto", 9), ("min:perplexity", 3), ("max:hits", 6), ("max:missing", 9)])
def test_the_best_checkpoint_by_any_figure_is_kept_marked_and_resumed(start, tmp_path, capfd, choice, best):
    """Of three epochs of three steps, the first has the lowest perplexity, and the second the most hits."""
    figures = {"perplexity": iter([-2.0, 5.0, 4.0, 4.0]), "hits": iter([-7.0, 1.0, 0.5, 0.5])}
    mean_losses = iter([3.0, 2.0, 1.0, 1.0])

    def evaluate(numbers, labels):
        return torch.full((30,), next(mean_losses)), {name: torch.full((30,), next(of)) for name, of in figures.items()}

    runtime = RuntimeOptions(runs=tmp_path, name="run", device="cpu", keep=1, score=choice, quiet=True)
    with hvdtrain.start(Config(**{**CONFIG, "epochs": 3}), runtime) as run:
        model, _ = run.setup(*parts())
        for batch in run.batches(ROWS, ROWS, evaluate):
            run.step(losses(model, batch))
    assert ("no such metric" in (run.folder / "logs" / "rank-0.log").read_text()) == (choice == "max:missing")
    name = f"step-{best:08d}"
    assert json.loads((run.folder / "result.json").read_text())["best_checkpoint"] == name
    assert checkpoints.newest(run.folder / "best")[0].name == name
    assert checkpoints.newest(run.folder)[1].position.step == 9
    main(["show", str(run.folder)])
    assert [line.split()[0] for line in capfd.readouterr().out.splitlines() if line.endswith("the best")] == [name]
    resumed = RuntimeOptions(resume=run.folder / "best", device="cpu", quiet=True)
    with hvdtrain.start(Config(**{**CONFIG, "epochs": 4}), resumed) as again:
        model, _ = again.setup(*parts())
        batches = again.batches(ROWS, ROWS, lambda numbers, labels: torch.ones(len(labels)))
        steps = [again.steps for batch in batches if again.step(losses(model, batch))]
    assert steps[0] == best and again.folder == run.folder


class MapStyle:
    """Rows that only the rank itself can read, or that it may read in threads."""

    def __len__(self):
        return 30

    def __getitem__(self, row):
        return NUMBERS[row], ROWS[1][row]


@pytest.mark.parametrize(("attributes", "workers", "warns"), [
    ({}, 2, True), ({}, 0, False), ({}, "auto", False), ({"background": "threads"}, 2, False),
])  # fmt: skip
def test_workers_that_cannot_be_are_a_warning(tmp_path, attributes, workers, warns):
    options = RuntimeOptions(runs=tmp_path, name="run", workers=workers, device="cpu", quiet=True)
    with mock.patch.dict(os.environ), hvdtrain.start(Config(**CONFIG), options) as run:
        model, _ = run.setup(*parts())
        for batch in run.batches(type("Rows", (MapStyle,), attributes)()):
            run.step(losses(model, batch))
    log = (tmp_path / "run" / "logs" / "rank-0.log").read_text()
    assert ("WARNING --workers 2" in log) == warns and (attributes or "raise --workers" not in log)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_loop_left_after_a_step_that_was_no_update_does_not_count_it(shards, start, monkeypatch):
    renewed = []
    monkeypatch.setattr(survival.Survivors, "renew", lambda survivors, change: renewed.append(change))
    combine = ShardSums.combine

    def cut_off(sums):
        if sums._step.step == 2 and not renewed:
            raise RanksChanged
        return combine(sums)

    monkeypatch.setattr(ShardSums, "combine", cut_off)
    with start(shards=shards) as run:
        model, _ = run.setup(*parts())
        steps = 0
        for batch in run.batches(ROWS):
            steps += run.step(losses(model, batch)) or run._change is not None
            if steps == 3:
                assert run._change is not None
                break
    assert len(renewed) == 1
    assert json.loads((run.folder / "result.json").read_text())["steps"] == 2
