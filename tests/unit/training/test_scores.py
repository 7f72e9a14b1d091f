"""Figures of evaluations: of any size, of the rows that have them, and what they decide."""

import contextlib
import dataclasses
import importlib
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from support.in_process import inside
from support.jobs import result
from support.rank_threads import on_all_ranks
from support.user_loop_runs import NUMBERS, starter

import hvdtrain
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.datasets.sharding import Assignment
from hvdtrain.errors import NotFiniteError, UserError
from hvdtrain.interfaces.learner import Evaluated
from hvdtrain.runs import checkpoints
from hvdtrain.system.checkpoint_folder import entries
from hvdtrain.training import train
from hvdtrain.training.evaluation import Sums, eval_pieces

torch = pytest.importorskip("torch")
for framework in ("tensorflow", "mxnet"):  # before a test, as they set variables of the environment
    with contextlib.suppress(ImportError):
        importlib.import_module(framework)
nn = torch.nn
NAN = float("nan")
ROWS = NUMBERS, (NUMBERS[:, 0] > 0).astype(np.int64)
WARNED = "no checkpoint is the best: no test q was finite, the last is nan"


@pytest.fixture
def start(tmp_path):
    return starter(tmp_path / "runs")


def log(run):
    return (run / "logs" / "rank-0.log").read_text()


def scored(start, losses=(1.0,), metrics=None, **options):
    """The folder of a run of three steps an epoch, whose evaluations find these values at the end of each epoch."""
    with start(**{"epochs": len(losses), **options}) as run:
        model, _ = run.setup(module := nn.Linear(4, 2), torch.optim.SGD(module.parameters(), 0.1))

        def evaluate(numbers, labels):
            epoch = run._training.at.epoch - 1 if run._training else 0
            figures = {name: torch.full(labels.shape, of[epoch]) for name, of in (metrics or {}).items()}
            return torch.full(labels.shape, losses[epoch], dtype=torch.float64), figures

        for numbers, labels in run.batches(ROWS, ROWS, evaluate):
            run.step(nn.functional.cross_entropy(model(numbers), labels, reduction="none"))
    return run.folder


@pytest.mark.parametrize("unit", [1e-300, 1e-17, 1e-4, 1.0, 1e19, 1e300])
def test_losses_of_any_size_are_compared_and_shown(start, unit):
    losses = [unit * loss for loss in (4.35, 3.75, 3.25, 3.255, 3.25, 3.0)]
    folder = scored(start, losses, patience=2)
    assert result(folder)["early_stop"].endswith("no better test loss than that of epoch 3 (--patience 2)")
    equal = "step-00000015"  # of equal ones, the newest is the best
    assert result(folder)["best_checkpoint"] == equal == checkpoints.newest(folder / "best")[0].name
    shown = [float(text) for text in re.findall(r"test loss ([^,\n]+),", log(folder))]
    assert shown == pytest.approx([*losses[:5], losses[4]], rel=1e-2)


def test_no_accuracy_at_all_is_a_score(start):
    folder = scored(start, [1.0] * 3, {"accuracy": [0.0] * 3}, patience=1)
    assert result(folder)["best_checkpoint"] == "step-00000006" and result(folder)["early_stop"]


def test_checkpoints_of_earlier_versions_are_compared_with_later_ones(start, monkeypatch):
    """These have a number between 0 and 1 in place of a loss."""
    folder = scored(start, [0.5, 0.25, 0.75], epochs=3)
    known = entries(folder / "checkpoints")
    old = [dataclasses.replace(entry, score=entry.score[:1]) for entry in known]
    for mixed in (known, old, [*old[:2], known[2]], [*old[:1], *known[1:]]):
        best = checkpoints.checkpoint_folder.best_first(mixed)
        assert [entry.step for entry in best] == [6, 3, 9]


def test_a_metric_that_was_not_a_number_is_named_at_the_end(start):
    options = {"score": "max:q", "epochs": 4}
    first = scored(start, [1.0] * 4, {"q": [NAN, NAN, 1.0, 1.0]}, patience=2, **options)
    later = scored(start, [1.0] * 4, {"q": [1.0, NAN, NAN, 1.0]}, patience=2, name="later", **options)
    ends = [result(folder)["early_stop"].partition(": ")[2] for folder in (first, later)]
    assert ends[0] == "no finite test q, which was nan at the end (--patience 2)"
    assert ends[1] == "no better test q than that of epoch 1, which was nan at the end (--patience 2)"
    never, once = (
        scored(start, [1.0] * 2, {"q": of}, name=name, score="max:q")
        for name, of in (("never", [NAN, NAN]), ("once", [1.0, NAN]))
    )
    assert WARNED in log(never) and WARNED not in log(once)


def test_a_run_that_has_waited_goes_on_by_another_score(start):
    metrics = {"q": [4.0, 3.0, 2.0, 1.0, 0.0]}
    ended = scored(start, [1.0] * 5, metrics, patience=2)
    assert result(ended)["steps"] == 9 and json.loads((ended / "config.json").read_text())["config"]["score"] == "auto"
    assert scored(start, [1.0] * 5, metrics, patience=2, resume=ended) == ended and result(ended)["steps"] == 9
    assert scored(start, [1.0] * 5, metrics, patience=2, resume=ended, score="min:q") == ended
    assert (result(ended)["steps"], result(ended)["early_stop"]) == (15, None)
    assert json.loads((ended / "config.json").read_text())["config"]["score"] == "min:q"


def test_the_train_loss_of_an_epoch_that_was_resumed_says_of_which_steps_it_is(start):
    part = scored(start, [1.0, 1.0], max_steps=4)
    scored(start, [1.0] * 3, resume=part, max_steps=0, epochs=3)
    assert re.findall(r"epoch (\d)/\d.*?: train loss [^ ,]+( \(since step \d\))?,", log(part)) == [
        *(("1", ""), ("2", ""), ("2", " (since step 4)"), ("3", ""))
    ]


def test_a_metric_is_divided_by_the_rows_of_the_steps_that_have_it():
    """Also one that only another rank has."""
    steps = [(2, {"a": 2.0}), (3, {}), (5, {"a": 10.0, "b": 5.0}), (1, {})]

    def join(group):
        sums = Sums(0)
        for rows, metrics in steps[group.rank :: group.size]:
            sums.add(Evaluated(float(rows), metrics), (np.zeros(rows),))
        return sums.join(group)

    for size in (1, 2, 3, 4):
        assert {(found.loss, *found.metrics.items()) for found in on_all_ranks(size, join)} == {
            (1.0, ("a", 12 / 7), ("b", 1.0))
        }


def task(framework, **methods):
    """A task of a small network, with these methods."""

    def model(self):
        if framework == "tensorflow":
            layers = pytest.importorskip("tensorflow").keras.layers
            return pytest.importorskip("tensorflow").keras.Sequential([layers.Input((4,)), layers.Dense(2, "tanh")])
        if framework == "mxnet":
            return pytest.importorskip("mxnet").gluon.nn.Dense(2, activation="tanh", in_units=4)
        return nn.Sequential(nn.Linear(4, 2), nn.Tanh())

    return type("Task", (), {"data": lambda self: (ROWS, ROWS), "model": model, **methods})()


def fit(folder, framework, given, name="run", resume=None, **options):
    pytest.importorskip(framework)
    config = Config(**{"framework": framework, "strategy": "single", "batch_size": 12, "epochs": 1} | options)
    runtime = RuntimeOptions(runs=folder, name=name, resume=resume, device="cpu", quiet=True)
    with inside(folder):
        return hvdtrain.fit(given, config, runtime).folder


@pytest.mark.parametrize("more", [{}, {"epochs": 9, "patience": 1}])
def test_a_run_that_is_over_makes_no_other_one(more, tmp_path):
    given = task("torch", losses=lambda self, outputs, labels: outputs.sum(1) * 0)
    ended = fit(tmp_path, "torch", given, epochs=2)
    with pytest.raises(UserError, match=r"has step 6 of .* a new run makes none; raise --epochs, --max-steps or"):
        fit(tmp_path, "torch", given, "new", ended, **{"epochs": 2, **more})
    assert not (tmp_path / "new").exists()
    assert result(fit(tmp_path, "torch", given, "new", ended, epochs=3))["steps"] == 9


FRAMEWORKS = ["torch", *(pytest.param(name, marks=pytest.mark.matrix) for name in ("tensorflow", "mxnet"))]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_task_may_have_no_metrics(framework, tmp_path):
    folder = fit(tmp_path, framework, task(framework, metrics=lambda self, outputs, labels: {}))
    assert result(folder)["metrics"] == {} and re.search(r"test loss [\d.]+ \(worst class \d: ", log(folder))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("options", [{}, {"on_nan": "skip"}, {"accumulate": 2}])
def test_a_row_whose_loss_is_not_finite_is_named(framework, options, tmp_path):
    numbers = NUMBERS.copy()
    numbers[7, 1] = NAN
    given = task(framework, data=lambda self: ((numbers, ROWS[1]), ROWS))
    if options.get("on_nan") == "skip":
        assert "in training rows 7; 1 step(s) skipped" in log(fit(tmp_path, framework, given, **options))
        return
    with pytest.raises(NotFiniteError, match=r"at step \d, in training rows 7; .*check these rows"):
        fit(tmp_path, framework, given, **options)


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ({"batch_size": 2}, {2}),
        ({"batch_size": 16, "accumulate": 4}, {4, 2}),
        ({"batch_size": 64}, {30}),
        ({"batch_size": 12, "shards": 3}, {4, 2}),
    ],
)
def test_an_evaluation_takes_no_more_rows_than_a_pass_of_training_and_the_trial_takes_them(
    given, rows, tmp_path, monkeypatch
):
    seen, tried = [], []

    class Noted(nn.Linear):
        def forward(self, numbers):
            seen.extend([] if self.training else [len(numbers)])
            return super().forward(numbers)

    def try_out(run):
        trial(run)
        tried.extend(seen)
        seen.clear()

    trial = train.try_out
    monkeypatch.setattr(train, "try_out", try_out)
    fit(tmp_path, "torch", task("torch", model=lambda self: Noted(4, 2)), **given)
    assert {*seen} == rows <= {*tried}


@pytest.mark.parametrize(
    ("flops", "needed", "rows"), [(None, 0, 2), (1e12, 0, 2), (1e7, 0, 50), (1, 0, 256), (None, 8, 8)]
)
def test_pieces_of_networks_whose_memory_is_known_and_small_are_larger(flops, needed, rows):
    """Else evaluations would take ten times as long with batches of a row or two."""
    target = SimpleNamespace(flops_per_row=flops, needed_rows=needed)
    run = SimpleNamespace(rows_of_pass=2, target=target, dataset=SimpleNamespace(parts={"test": range(300)}))
    run.assignment = Assignment.contiguous(2)
    pieces = [piece for rank in range(2) for piece in eval_pieces(run, "test", rank)]
    assert np.concatenate(pieces).tolist() == [*range(300)] and max(map(len, pieces)) == min(rows, 150)


@pytest.mark.parametrize("batch_size", [1, 12, 29, 30])
def test_rows_that_depend_on_others_are_found_however_small_the_pieces_are(batch_size, tmp_path):
    """Also where some rows have no metric."""

    class Mixing(nn.Linear):
        def forward(self, numbers):
            return super().forward(numbers if self.training else numbers - numbers.mean(0))

    given = task(
        "torch",
        model=lambda self: Mixing(4, 2),
        metrics=lambda self, outputs, labels: {"seen": labels * 1.0} if labels.any() else {},
    )
    with pytest.raises(UserError, match="in an evaluation, the loss"):
        fit(tmp_path, "torch", given, batch_size=batch_size)
