"""Searches with Optuna, over folders of runs that are made up: what is drawn, when, and which trials end early."""

import json
import math
import sys

import pytest
from support.run_folders import write_task_run

from hvdtrain.errors import UserError
from hvdtrain.measure.sweep.search import EarlyEnd, Rules, Search, corners
from hvdtrain.measure.sweep.trials import Trial, parse_settings
from hvdtrain.runs.metrics import MetricsWriter
from hvdtrain.runs.run import Run
from hvdtrain.system.run_end import RunEnd

optuna = pytest.importorskip("optuna")

SETTINGS = parse_settings(["lr=log:1e-3:1", "optimizer=sgd,adam", "arg.width=int:4:64:4"])
RULES = Rules(trials=6, sampler="tpe", pruner="median", seeds=1)


def train(folder, proposal, perplexity, seed=0):
    """The run of a trial, as training leaves it."""
    path = folder / Trial(proposal.options, seed).name
    write_task_run(path, {"perplexity": perplexity}, loss=1.0, score="min:perplexity")
    return Run(path)


def loss_of(options):
    return abs(math.log10(options["lr"]) + 2) + 1


def finish(folder, search, most=99):
    """Train the next trials; returns their options."""
    drawn = []
    for proposal in search.proposals():
        drawn.append(proposal.options)
        search.ended(proposal, [train(folder, proposal, loss_of(proposal.options))])
        if len(drawn) == most:
            break
    return drawn


def opened(folder, rules=RULES, settings=SETTINGS):
    folder.mkdir(exist_ok=True)
    return Search(folder, settings, rules)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_an_interrupted_search_draws_what_an_undisturbed_one_draws(tmp_path, sampler):
    rules = RULES._replace(trials=14, sampler=sampler)  # TPE draws the first ten at random
    whole = finish(tmp_path / "a", opened(tmp_path / "a", rules))
    parts = finish(tmp_path / "b", opened(tmp_path / "b", rules), most=5)
    assert opened(tmp_path / "b", rules).left() == 9
    parts += finish(tmp_path / "b", opened(tmp_path / "b", rules))
    assert parts == whole and len(whole) == 14
    assert len({options["lr"] for options in whole}) == 14, "each trial has numbers of its own"
    other = finish(tmp_path / "c", opened(tmp_path / "c", rules._replace(sampler_seed=1)), most=1)
    assert other[0] != whole[0]
    for options in whole:
        assert 1e-3 <= options["lr"] <= 1 and options["optimizer"] in ("sgd", "adam")
        assert int(options["arg.width"]) % 4 == 0
    assert finish(tmp_path / "a", opened(tmp_path / "a", rules)) == []
    assert len(finish(tmp_path / "a", opened(tmp_path / "a", rules._replace(trials=16)))) == 2


def test_a_trial_without_a_result_stays_open(tmp_path):
    search = opened(tmp_path)
    (first, second) = (proposal for proposal, _ in zip(search.proposals(), range(2), strict=False))
    search.ended(second, [train(tmp_path, second, 2.0)])
    search.ended(first, [])
    assert search.left() == 5
    again = next(opened(tmp_path).proposals())
    assert (again.number, again.options) == (first.number, first.options)


def test_processes_that_search_together_have_different_trials(tmp_path):
    one, two = opened(tmp_path).proposals(), opened(tmp_path).proposals()
    assert [next(one).number, next(two).number, next(one).number, next(two).number] == [0, 1, 2, 0], (
        "a trial whose process has left it may be taken by another"
    )


def test_the_value_is_the_median_over_seeds_and_a_run_that_diverged_is_the_worst(tmp_path):
    """The best is the least perplexity."""
    search = opened(tmp_path, RULES._replace(seeds=3, trials=14))
    for proposal in search.proposals():
        values = {0: [5.0, 1.0, 2.0], 1: [9.0, 9.0, 9.0]}.get(proposal.number, [3.0] * 3)
        runs = [train(tmp_path, proposal, value, seed) for seed, value in enumerate(values)]
        for result in (run.folder / "result.json" for run in runs if proposal.number == 2):
            result.write_text(json.dumps({**json.loads(result.read_text()), "metrics": {}, "loss": None}))
        search.ended(proposal, [Run(run.folder) for run in runs])
    study = optuna.load_study(study_name="sweep", storage=search._study._storage)
    assert [trial.value for trial in study.trials] == [-2.0, -9.0, -math.inf, *[-3.0] * 11]
    assert study.best_trial.number == 0


def evaluate(folder, *perplexities):
    """A run that trains, with these evaluations."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"runtime": {"score": "min:perplexity"}}))
    writer = MetricsWriter(folder)
    for epoch, value in enumerate(perplexities, 1):
        writer.write("test", epoch * 10, epoch=float(epoch), loss=1.0, perplexity=value)
    writer.close()
    return folder


def test_a_trial_below_the_median_ends_early(tmp_path):
    search = opened(tmp_path, RULES._replace(trials=8))
    for number, proposal in enumerate(search.proposals()):
        run = evaluate(tmp_path / Trial(proposal.options, 0).name, 5.0, 9.0 if number == 4 else 3.0, 2.0)
        early = search.early_end(proposal, run)
        early.look()
        assert (run / "STOP").exists() == (number == 4)
        if number == 4:
            RunEnd("stopped", 75).write(run)
            assert early.excuse() == "pruned after evaluation 2: test perplexity 9 is worse than that of other trials"
            end = RunEnd.read(run)
            assert (end.status, end.exit_status) == ("pruned", 75) and not (run / "STOP").exists()
        else:
            assert early.excuse() == ""
            write_task_run(tmp_path / f"result-{number}", {"perplexity": 2.0}, loss=1.0, score="min:perplexity")
            run = tmp_path / f"result-{number}"
        search.ended(proposal, [Run(run)])
    states = [trial.state.name for trial in search._study.trials]
    assert states == ["COMPLETE"] * 4 + ["PRUNED"] + ["COMPLETE"] * 3
    assert search.left() == 0


def test_a_run_that_was_only_asked_to_stop_is_not_pruned(tmp_path):
    search = opened(tmp_path)
    proposal = next(search.proposals())
    early = EarlyEnd(proposal, evaluate(tmp_path / "run", 5.0), 0)
    early.look()
    RunEnd("stopped", 75).write(tmp_path / "run")
    assert early.excuse() == "" and RunEnd.read(tmp_path / "run").status == "stopped"
    assert opened(tmp_path / "b", RULES._replace(pruner="none")).early_end(proposal, tmp_path) is None


def test_another_search_needs_another_folder(tmp_path):
    opened(tmp_path)
    with pytest.raises(
        UserError, match=r"with other settings: --set arg.width=.* --set lr=log:0.001:1 --set optimizer"
    ):
        opened(tmp_path, settings=parse_settings(["lr=log:1e-3:2"]))
    with pytest.raises(UserError, match="other seeds: 1"):
        opened(tmp_path, RULES._replace(seeds=2))


def test_without_optuna_it_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match="a search needs Optuna") as raised:
        opened(tmp_path)
    assert "hvdtrain[sweep]" in raised.value.remedy


def test_corners_have_the_ends_of_all_ranges():
    assert corners(SETTINGS) == [
        Trial({"lr": 0.001, "optimizer": "sgd", "arg.width": "4"}, 0),
        Trial({"lr": 1.0, "optimizer": "adam", "arg.width": "64"}, 0),
    ]
