"""How the combinations of a sweep compare: averages over seeds, order, tables and plot."""

import csv
import io
import json
import sys

import pytest
from support.in_process import command
from support.run_folders import write_task_run

from hvdtrain.measure.sweep.comparison import SweepResults
from hvdtrain.measure.sweep.study import SweepStudy
from hvdtrain.measure.sweep.trials import SweepOptions, Trial, plan
from hvdtrain.system.run_end import RunEnd

COMMAND = ["train", "--data", "a b"]


def write(folder, trial, accuracy, loss=1.0, speed=100.0, parameters="ab", **options):
    run = folder / trial.name
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"config": options, "runtime": {"devices": 2}, "ranks": 3}))
    result = {"accuracy": accuracy, "loss": loss, "images_per_s": speed, "parameters": parameters}
    (run / "result.json").write_text(json.dumps(result))


def test_best_accuracy_is_first_then_lowest_loss(tmp_path, monkeypatch):
    trials = plan({"lr": [0.1, 0.2, 0.3, 0.4]}, 2)
    scores = {0.1: (0.8, 0.5), 0.2: (0.9, 0.7), 0.3: (0.9, 0.6)}
    for trial in trials:
        if trial.options["lr"] in scores and (trial.seed, trial.options["lr"]) != (1, 0.3):
            write(tmp_path, trial, *scores[trial.options["lr"]])
    found = SweepResults(trials, tmp_path)
    assert [one.options["lr"] for one in found.rows] == ["0.3", "0.2", "0.1", "0.4"]
    assert [one.cells([])[1] for one in found.rows] == ["1 of 2", "2", "2", "0 of 2"]
    monkeypatch.setenv("COLUMNS", "60")
    text = found.terminal()
    assert text.index("\n0.3 ") < text.index("\n0.2 ")
    assert "0.9000 (0.9000 to 0.9000)" in text and max(map(len, text.splitlines())) <= 60


def test_missing_figures_and_special_characters(tmp_path):
    """A loss that is not finite is null, and a run shorter than an interval has a speed of 0."""
    trials = [Trial({"data": "=a|b\x1b$"}, seed) for seed in (0, 1)]
    write(tmp_path, trials[0], 0.5, None, 0.0)
    write(tmp_path, trials[1], 0.7, None, 0.0)
    found = SweepResults(trials, tmp_path)
    page = found.markdown(COMMAND, {"name_": "<why>"})
    assert "| =a\\|b\\\\x1b\\$ | 2 | 0.6000 (0.5000 to 0.7000) | – | – | ab |\n" in page
    assert "    hvdtrain train --data 'a b'\n" in page
    assert "## Failed trials\n\n- name\\_: &lt;why&gt;\n" in page
    (row,) = csv.DictReader(io.StringIO(found.csv()))
    assert (row["data"], row["seeds"], row["loss_mean"]) == ("'=a|b\\x1b$", "2", "")
    assert float(row["accuracy_mean"]) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("choice", "order", "column"),
    [
        ("auto", ["0.2", "0.1"], "test loss"),
        ("max:r2", ["0.1", "0.2"], "test r2"),
        ("min:error", ["0.2", "0.1"], "test error"),
    ],
)
def test_a_regression_is_sorted_by_its_score(tmp_path, choice, order, column):
    trials = plan({"lr": [0.1, 0.2]}, 2)
    for trial in trials:
        write_task_run(tmp_path / trial.name, {"r2": 0.9, "error": 3.0} if trial.options["lr"] == 0.1 else
                       {"r2": 0.8, "error": 2.0}, loss=10 * (1 - trial.options["lr"]), score=choice)  # fmt: skip
    found = SweepResults(trials, tmp_path)
    assert [one.options["lr"] for one in found.rows] == order
    page = found.markdown(COMMAND, {})
    (header,) = (line for line in page.splitlines() if line.startswith("| lr"))
    assert header.split(" | ")[2] == column and "rows/s" in header and "accuracy" not in page
    (best, other) = csv.DictReader(io.StringIO(found.csv()))
    assert (best["lr"], other["lr"]) == tuple(order) and float(best["r2_mean"]) in (0.8, 0.9)
    figure = found.plot()
    assert figure.startswith(b"\x89PNG") and figure == found.plot()


def test_runs_with_validation_data_are_compared_by_it(tmp_path):
    trials = plan({"lr": [0.1, 0.2]}, 1)
    for number, trial in enumerate(trials):
        run = write_task_run(tmp_path / trial.name, {"perplexity": 5.0 + number}, score="min:perplexity")
        lines = (run / "metrics.jsonl").read_text().replace('"kind": "test"', '"kind": "validation"')
        (run / "metrics.jsonl").write_text(lines)
        result = json.loads((run / "result.json").read_text())
        validation = {"loss": 0.25, "metrics": {"perplexity": 3.0 - number}}
        (run / "result.json").write_text(json.dumps({**result, "best": {"validation": validation}}))
    found = SweepResults(trials, tmp_path)
    assert [(one.options["lr"], *one.rank) for one in found.rows] == [("0.2", 2.0, 0.25), ("0.1", 3.0, 0.25)]
    page = found.markdown(COMMAND, {})
    assert "lowest validation perplexity first" in page
    assert "| lr | seeds | validation perplexity | validation loss | rows/s | hash of weights |" in page


def test_the_table_shows_trials_of_others_and_why_they_failed(tmp_path, monkeypatch):
    trials = plan({"lr": [0.1, 0.2, 0.3]}, 1)
    write(tmp_path, trials[0], 0.5)
    for trial, status, reason in (
        (trials[1], "failed", "rank 1\n was killed"),
        (trials[2], "stopped", "asked to stop"),
    ):
        (tmp_path / trial.name).mkdir()
        (tmp_path / trial.name / "end.json").write_text(json.dumps({"status": status, "failure": {"reason": reason}}))
    SweepStudy(SweepOptions(output=tmp_path), COMMAND, {"lr": [0.1, 0.2, 0.3]}).add(trials, trials)
    table = ("sweep", "--table", "--output")
    printed = command(tmp_path, *table, ".")[1]
    assert "\n0.1 " in printed and "0.5000" in printed and "sweep.md, sweep.csv, sweep.png" in printed
    page = (tmp_path / "sweep.md").read_text()
    assert "- lr=0.2,seed=0: rank 1" in page and "lr=0.3,seed=0:" not in page
    (tmp_path / "sweep.png").unlink()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    printed = command(tmp_path, *table, ".")[1]
    assert "0.5000" in printed and "sweep.md, sweep.csv\n" in printed
    assert "no sweep.png: a chart needs matplotlib; pip install 'hvdtrain[plots]'\n" in printed
    status, printed = command(tmp_path, *table, "lr=0.1,seed=0")
    assert status == 2 and "holds no sweep" in printed


def test_hashes_of_a_combination_are_those_of_its_seeds(tmp_path):
    trials = plan({"lr": [0.1, 0.2, 0.3], "ranks": [1]}, 2)
    for trial in trials:
        if trial.options["lr"] < 0.3:
            parameters = f"{trial.options['lr']}-{trial.seed if trial.options['lr'] == 0.1 else 'same'}"
            write(tmp_path, trial, trial.options["lr"], parameters=parameters)
    found = SweepResults([*trials, Trial({"lr": 0.2}, 0)], tmp_path)
    rows = list(csv.DictReader(io.StringIO(found.csv())))[:3]
    assert [row["parameters"] for row in rows] == ["0.2-same", "0.1-0 0.1-1", ""]
    text = found.markdown(COMMAND, {})
    assert "| 0.2-same |" in text and "| 2 hashes |" in text


def test_trials_that_ended_early_are_last(tmp_path):
    trials = plan({"lr": [0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]}, 1)
    for number, trial in enumerate(trials):
        write_task_run(tmp_path / trial.name, {"perplexity": 9.0 - number}, score="min:perplexity")
        if number >= 6:
            (tmp_path / trial.name / "result.json").unlink()
            RunEnd("pruned", 75).write(tmp_path / trial.name)
    found = SweepResults(trials, tmp_path)
    assert [one.options["lr"] for one in found.rows] == ["0.2", "0.1", "0.05", "0.02", "0.01", "0.001", "0.5", "1.0"]
    assert [one.cells([])[1] for one in found.rows] == ["1"] * 6 + ["pruned"] * 2
    page = found.markdown(COMMAND, {})
    assert "| 0.5 | pruned | – | – | – | – |" in page and "2 of 8 combinations ended early (pruned)." in page
    rows = list(csv.DictReader(io.StringIO(found.csv())))
    assert [row["pruned"] for row in rows] == ["0"] * 6 + ["1"] * 2
    assert "pruned" in SweepResults(trials[6:], tmp_path).terminal()
