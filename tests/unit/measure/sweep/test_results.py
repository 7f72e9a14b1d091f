"""The report on a sweep: the best combination first, options that training does not record, trials without a result."""

import csv
import json

import pytest
from support.in_process import command
from support.report import make_run
from support.run_folders import write_task_run

from hvdtrain.measure.sweep.study import SweepStudy
from hvdtrain.measure.sweep.trials import SweepOptions, plan
from hvdtrain.system.run_end import Failure, RunEnd

pytest.importorskip("optuna")


def swept(folder, settings, seeds=1):
    """The trials of a sweep that was begun."""
    trials = plan(settings, seeds)
    SweepStudy(SweepOptions(output=folder, seeds=seeds), ["train"], settings).add(trials, trials)
    return trials


def report_on(folder):
    """What is printed, and the lines of the CSV."""
    status, printed = command(folder, "sweep", "--table", "--output", ".")
    assert status == 0, printed
    return printed, list(csv.DictReader((folder / "report" / "report.csv").open()))


def test_the_best_combination_is_first_and_other_trials_are_named(tmp_path):
    for trial in swept(tmp_path, {"lr": [0.1, 0.2, 0.3, 0.4]}, seeds=2):
        run, lr = tmp_path / trial.name, trial.options["lr"]
        if lr < 0.3:
            make_run(run, lr=lr, seed=trial.seed, accuracy=0.5 + lr + trial.seed / 10)
        elif lr == 0.3:
            run.mkdir()
            RunEnd("pruned", 75, Failure("after evaluation 2: worse")).write(run)
    printed, rows = report_on(tmp_path)
    assert [(row["option:lr"], row["runs"]) for row in rows] == [("0.2", "2"), ("0.1", "2")]
    assert [float(rows[0][f"score_{name}"]) for name in ("mean", "median", "low")] == pytest.approx([0.75, 0.75, 0.7])
    assert float(rows[0]["score_deviation"]) == pytest.approx(0.0707, abs=1e-4)
    assert "without 4 unfinished: lr=0.3,seed=0 (pruned: after evaluation 2: worse)" in printed
    assert "lr=0.4,seed=1 (no result yet)" in printed and "report.md, report.csv, report.html" in printed


@pytest.mark.parametrize(
    ("choice", "order"), [("auto", ["0.2", "0.1"]), ("max:r2", ["0.1", "0.2"]), ("min:error", ["0.2", "0.1"])]
)
def test_trials_are_sorted_by_their_score(tmp_path, choice, order):
    for trial in swept(tmp_path, {"arg.lr": ["0.1", "0.2"]}):
        is_first = trial.options["arg.lr"] == "0.1"
        metrics = {"r2": 0.9, "error": 3.0} if is_first else {"r2": 0.8, "error": 2.0}
        write_task_run(tmp_path / trial.name, metrics, loss=9.0 if is_first else 8.0, score=choice)
    _, rows = report_on(tmp_path)
    assert [row["option:arg.lr"] for row in rows] == order
    assert {row["loss_median"] for row in rows} == {"9.0", "8.0"}


def test_options_that_training_does_not_record_have_rows_of_their_own(tmp_path):
    """Those of a script, and of how a run trains."""
    for trial in swept(tmp_path, {"--hidden": ["8", "16"], "workers": ["0"], "ranks": [1]}, seeds=2):
        make_run(tmp_path / trial.name, seed=trial.seed, accuracy=int(trial.options["--hidden"]) / 32)
    printed, rows = report_on(tmp_path)
    assert [(row["option:--hidden"], row["runs"]) for row in rows] == [("16", "2"), ("8", "2")]
    assert "--hidden" in printed


def test_a_sweep_without_a_result(tmp_path):
    swept(tmp_path, {"lr": [0.1]})
    assert command(tmp_path, "sweep", "--table", "--output", ".") == (
        0,
        "no trial has a result\nlr=0.1,seed=0 (no result yet)\n",
    )
    status, printed = command(tmp_path, "sweep", "--table", "--output", "other")
    assert status == 2 and "holds no sweep" in printed


def test_runs_with_validation_data_are_compared_by_it(tmp_path):
    for number, trial in enumerate(swept(tmp_path, {"arg.lr": ["0.1", "0.2"]})):
        run = write_task_run(tmp_path / trial.name, {"perplexity": 5.0 + number}, score="min:perplexity")
        lines = (run / "metrics.jsonl").read_text().replace('"kind": "test"', '"kind": "validation"')
        (run / "metrics.jsonl").write_text(lines)
        result = json.loads((run / "result.json").read_text())
        best = {"validation": {"metrics": {"perplexity": 3.0 - number}}, "test": {"metrics": {"perplexity": 7.25}}}
        (run / "result.json").write_text(json.dumps({**result, "best": best}))
    _, rows = report_on(tmp_path)
    assert [(row["option:arg.lr"], float(row["score_median"])) for row in rows] == [("0.2", 2.0), ("0.1", 3.0)]
    page = (tmp_path / "report" / "report.md").read_text()
    assert "validation perplexity (minimum to maximum)" in page and "| test perplexity of the best |" in page
    assert page.count("| 7.2500 |") == 2
