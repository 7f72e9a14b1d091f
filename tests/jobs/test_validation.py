"""Validation data and early stopping, also after a resume.

Only the first test has two ranks, which must end at the same step: they are processes. The others have one, in the
process of the test. `test_same_rows.py` compares rows and scores on one rank and on two.
"""

import numpy as np
import pytest
import torch
from support.in_process import command, train_here
from support.jobs import distance, newest, records, result, several, succeed
from support.stack import FASTEST, FRAMEWORKS, cases
from support.user_loop_runs import starter
from torch import nn

from hvdtrain.errors import Stopped, UserError
from hvdtrain.measure.sweep.trials import plan
from hvdtrain.runs.run import RecordedRun
from hvdtrain.system.run_end import RunEnd
from hvdtrain.views.report.content import RunsReport

OPTIONS = ("--epochs", "6", "--split", "0.8/0.2", "--patience", "2", "--device", "cpu", "--lr")
LR = {"mxnet": "0.3"}
"""With which the first epoch is the best one, at step 18, as training diverges. With the rounding errors of others it
need not diverge: there nothing changes, and of checkpoints that are equally good the newest is the best one."""
X = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
PARTS = [(X[rows], (X[rows, 0] > 0).astype(np.int64)) for rows in (slice(0, 120), slice(120, 160), slice(160, 200))]


def assert_same_end(one, other, *also):
    """The same weights, position, scores and reason. also: names of further results."""
    assert newest(one).position == newest(other).position
    assert distance(newest(one).weights, newest(other).weights) == 0
    names = ("metrics", "loss", "validation", "early_stop", "steps", "parameters", *also)
    assert [result(one)[name] for name in names] == [result(other)[name] for name in names]


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, short={FASTEST}))
def test_a_run_stops_early_by_validation_data_also_after_a_resume(framework, tmp_path):
    given = (*OPTIONS, LR.get(framework, "1e-12"))
    trainings = [
        (*given, "--name", "whole"),
        (*given, "--name", "part", "--max-steps", "25"),  # in the middle of an epoch without a better score
        ("--resume", "runs/part", "--max-steps", "0"),
        ("--resume", "runs/part"),
    ]
    output = succeed(several(framework, trainings, "local", 2), tmp_path)
    folder = tmp_path / "runs" / "whole"
    assert_same_end(folder, tmp_path / "runs" / "part")  # whose checkpoint in the middle of an epoch may be the best
    ended = result(folder)
    assert ended["steps"] == 54 and RunEnd.read(folder).status == "finished"
    reason = "stopped early, after epoch 3 of 6: no better validation accuracy than that of epoch 1 (--patience 2)"
    assert ended["early_stop"] == reason and reason in output
    assert "to train further, raise --patience" in output
    scores = records(folder, "validation", "test")
    assert [record["kind"] for record in scores] == ["validation"] * 3 + ["test"]
    best = ended["best"]["validation"]
    expected = "step-00000018" if framework in LR else "step-00000054"
    assert ended["best"]["checkpoint"] == ended["best_checkpoint"] == expected
    difference = best["metrics"]["accuracy"] - ended["validation"]["metrics"]["accuracy"]
    assert difference > 0 if framework in LR else difference == 0
    assert best["rows"] == pytest.approx(0.2 * 1437, abs=5) and best["loss"] == pytest.approx(scores[0]["loss"])
    score = RecordedRun(folder).score
    assert (score.title, score.value) == ("validation accuracy", best["metrics"]["accuracy"])
    status, output = command(tmp_path, "runs", "runs")
    assert status == 0 and "validation" in output


def test_the_best_checkpoint_is_tested_with_its_own_averages(tmp_path):
    options = ("--epochs", "3", "--lr", "0.5", "--split", "0.8/0.2", "--ema", "0.5", "--device", "cpu")
    folder = train_here(tmp_path, "torch", *options)
    losses = {record["step"]: record["loss"] for record in records(folder, "validation")}
    best = result(folder)["best"]
    assert best["step"] < max(losses) and best["validation"]["loss"] == pytest.approx(losses[best["step"]])
    with pytest.raises(UserError, match="the fingerprint of --data"):
        train_here(tmp_path, "torch", "--resume", "runs/run", "--split", "0.7/0.3", "--epochs", "4")


def test_sweeps_go_by_validation_data_and_say_what_the_test_gives(tmp_path):
    short = ("--epochs", "2", "--split", "0.8/0.2", "--patience", "1", "--device", "cpu", "--runs", "swept")
    trials, folder = plan({"lr": [0.05, 0.3]}, 1), tmp_path / "swept"
    for trial in trials:
        train_here(tmp_path, FASTEST, *short, "--lr", str(trial.options["lr"]), "--name", trial.name)
    report = RunsReport([trial.run(folder) for trial in trials], [], by_score=True)
    results = {trial.options["lr"]: result(folder / trial.name)["best"] for trial in trials}
    best = max(results, key=lambda lr: results[lr]["validation"]["metrics"]["accuracy"])
    first = report.rows[0]
    assert (first.run.options["lr"], first.part, first.scored_by) == (best, "validation", "accuracy")
    figure = f"{results[best]['test']['metrics']['accuracy']:.4f}"
    assert report.more(first)["test accuracy of the best"] == figure


def loop(run, evaluated=True, stops=False):
    """A script's loop, which gets worse in each epoch. stops: it is asked to stop at the end of each epoch."""
    model = nn.Linear(4, 2)
    model, _ = run.setup(model, torch.optim.SGD(model.parameters(), lr=1.0, maximize=True))
    losses = nn.CrossEntropyLoss(reduction="none")
    given = (PARTS[2], lambda x, y: losses(model(x), y)) if evaluated else ()
    for x, y in run.batches(PARTS[0], *given, **({"validation": PARTS[1]} if evaluated else {})):
        if stops and run.ends_epoch:
            (run.folder / "STOP").touch()
        run.step(losses(model(x), y))


def test_patience_without_an_evaluation_is_one_line(tmp_path):
    with (
        pytest.raises(UserError, match="--patience 1: the script evaluates nothing, so it has no score"),
        starter(tmp_path)(patience=1) as run,
    ):
        loop(run, evaluated=False)


def test_an_epoch_after_which_a_run_is_stopped_counts(tmp_path):
    start, options = starter(tmp_path), {"epochs": 9, "batch_size": 20, "patience": 2, "resume": "auto"}
    with start("whole", **options) as run:
        loop(run)
    with pytest.raises(Stopped, match="was asked to stop"), start("part", **options) as run:
        loop(run, stops=True)
    with start("part", **options) as run:
        loop(run)
    assert_same_end(tmp_path / "whole", tmp_path / "part", "best")
    assert result(tmp_path / "part")["early_stop"].startswith("stopped early, after epoch 3 of 9")
