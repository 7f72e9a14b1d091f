"""The studies of sweeps, over folders of runs that are made up: what they draw, for which process, what ends early."""

import json
import math
import sys

import pytest
from support.in_process import command
from support.run_folders import write_task_run

from hvdtrain.cli.sweep_settings import parse_settings
from hvdtrain.errors import UserError
from hvdtrain.measure.sweep.study import EarlyEnd, SweepStudy
from hvdtrain.measure.sweep.trials import SweepOptions, plan
from hvdtrain.runs.metrics import MetricsWriter
from hvdtrain.system.run_end import RunEnd

optuna = pytest.importorskip("optuna")

SEARCH = ("lr=log:1e-3:1", "optimizer=sgd,adam", "arg.width=int:4:64:4")
COMMAND = ["train", "my task.py:Task"]


def train(folder, trial, perplexity):
    return write_task_run(folder / trial.name, {"perplexity": perplexity}, loss=1.0, score="min:perplexity")


def loss_of(options):
    return abs(math.log10(options["lr"]) + 2) + 1


def finish(study, most=99):
    """Train the next trials of a search; returns their options."""
    drawn = []
    for proposal in study.proposals():
        drawn.append(proposal.trials[0].options)
        train(study.folder, proposal.trials[0], loss_of(drawn[-1]))
        study.ended(proposal)
        if len(drawn) == most:
            break
    return drawn


def opened(folder, given=SEARCH, command=COMMAND, **options):
    folder.mkdir(exist_ok=True)
    found = SweepOptions(set=given, output=folder, **options)
    return SweepStudy(found, command, parse_settings(found, command))


def grid(folder, *given, number=None, **options):
    """A grid of which this process trains one trial, or all."""
    study = opened(folder, given, **options)
    planned = plan(parse_settings(study.options, COMMAND), study.options.seeds)
    study.add(planned, planned if number is None else [planned[number]])
    return study


def names(study):
    return [trial.name for proposal in study.proposals() for trial in proposal.trials]


def test_a_grid_is_trained_in_its_order_by_several_processes(tmp_path):
    one, two = grid(tmp_path, "lr=0.2,0.1", "nesterov=true,false", seeds=2), grid(tmp_path, "lr=0.2,0.1", seeds=1)
    expected = [
        f"lr={lr},nesterov={text},seed={seed}" for seed in (0, 1) for lr in (0.2, 0.1) for text in ("true", "false")
    ]
    assert names(one) == expected
    assert [trial.name for trial in two.trials] == [*expected, "lr=0.2,seed=0", "lr=0.1,seed=0"]


def test_a_task_of_an_array_trains_the_trial_of_its_number_and_no_other(tmp_path):
    last, first = (grid(tmp_path, "lr=0.2,0.1,0.3", number=number) for number in (2, 0))
    assert [(study.left(), names(study)) for study in (last, first)] == [(1, ["lr=0.3,seed=0"]), (1, ["lr=0.2,seed=0"])]
    proposal = next(last.proposals(), None)
    assert proposal is None, "each trial once"
    busy = next(grid(tmp_path, "lr=0.2,0.1,0.3").proposals())
    again = next(grid(tmp_path, "lr=0.2,0.1,0.3", number=0).proposals())
    assert busy.trials == again.trials, "its job waits until the other process has ended"


def test_a_grid_goes_on_and_may_grow(tmp_path):
    study = grid(tmp_path, "optimizer=sgd,adam")
    for number, proposal in enumerate(study.proposals()):
        if number == 0:
            train(tmp_path, proposal.trials[0], 2.0)
        study.ended(proposal)
    assert names(grid(tmp_path, "optimizer=sgd,adam")) == ["optimizer=adam,seed=0"]
    larger = grid(tmp_path, "optimizer=sgd,adamw", seeds=2)
    assert (larger.left(), len(larger.trials)) == (3, 5)
    assert names(larger) == ["optimizer=adamw,seed=0", "optimizer=sgd,seed=1", "optimizer=adamw,seed=1"]
    (tmp_path / "optimizer=sgd,seed=0" / "result.json").unlink()
    assert names(grid(tmp_path, "optimizer=sgd")) == ["optimizer=sgd,seed=0"], "its result is gone"


@pytest.mark.parametrize("content", ["{\n{\n", "[]\n", "null\n", '{"op_code": 1}\n', "", "[" * 100_000 + "\n\n"])
def test_damaged_record(tmp_path, content):
    (tmp_path / "study.jsonl").write_text(content)
    with pytest.raises(UserError, match=r"study.jsonl: no valid record of a sweep"):
        SweepStudy(SweepOptions(output=tmp_path), [], {})


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_an_interrupted_search_draws_what_an_undisturbed_one_draws(tmp_path, sampler):
    search = {"trials": 14, "sampler": sampler}  # TPE draws the first ten at random
    whole = finish(opened(tmp_path / "a", **search))
    parts = finish(opened(tmp_path / "b", **search), most=5)
    assert opened(tmp_path / "b", **search).left() == 9
    parts += finish(opened(tmp_path / "b", **search))
    assert parts == whole and len(whole) == 14
    assert len({options["lr"] for options in whole}) == 14, "each trial has numbers of its own"
    for options in whole:
        assert 1e-3 <= options["lr"] <= 1 and options["optimizer"] in ("sgd", "adam")
        assert int(options["arg.width"]) % 4 == 0
    assert finish(opened(tmp_path / "a", **search)) == []
    assert len(finish(opened(tmp_path / "a", **{**search, "trials": 16}))) == 2


def test_the_value_is_the_median_over_seeds_and_a_run_that_diverged_is_the_worst(tmp_path):
    """The best is the least perplexity."""
    search = opened(tmp_path, seeds=3, trials=14)
    for number, proposal in enumerate(search.proposals()):
        values = {0: [5.0, 1.0, 2.0], 1: [9.0, 9.0, 9.0]}.get(number, [3.0] * 3)
        runs = [train(tmp_path, trial, value) for trial, value in zip(proposal.trials, values, strict=True)]
        for result in (run / "result.json" for run in runs if number == 2):
            result.write_text(json.dumps({**json.loads(result.read_text()), "metrics": {}, "loss": None}))
        search.ended(proposal)
    assert [trial.value for trial in search.frozen] == [-2.0, -9.0, -math.inf, *[-3.0] * 11]


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
    search = opened(tmp_path, trials=8)
    for number, proposal in enumerate(search.proposals()):
        run = evaluate(tmp_path / proposal.trials[0].name, 5.0, 9.0 if number == 4 else 3.0, 2.0)
        early = EarlyEnd(proposal.trial, run)
        early.look()
        assert (run / "STOP").exists() == (number == 4)
        if number == 4:
            RunEnd("stopped", 75).write(run)
            assert early.excuse() == "pruned after evaluation 2: test perplexity 9 is worse than that of other trials"
            end = RunEnd.read(run)
            assert (end.status, end.exit_status) == ("pruned", 75) and not (run / "STOP").exists()
        else:
            assert early.excuse() == ""
            (run / "result.json").write_text(json.dumps({"loss": 1.0, "metrics": {"perplexity": 2.0}}))
        search.ended(proposal)
    states = [trial.state.name for trial in search.frozen]
    assert states == ["COMPLETE"] * 4 + ["PRUNED"] + ["COMPLETE"] * 3
    assert search.left() == 0


def test_a_run_that_was_only_asked_to_stop_is_not_pruned(tmp_path):
    proposal = next(opened(tmp_path, trials=2).proposals())
    early = EarlyEnd(proposal.trial, evaluate(tmp_path / "run", 5.0))
    early.look()
    RunEnd("stopped", 75).write(tmp_path / "run")
    assert early.excuse() == "" and RunEnd.read(tmp_path / "run").status == "stopped"


def test_another_sweep_needs_another_folder(tmp_path):
    opened(tmp_path, trials=6)
    for changed in ({"given": ("lr=log:1e-3:2",)}, {"seeds": 2}, {"command": ["train"]}, {"trials": None, "given": ()}):
        with pytest.raises(UserError, match=r"holds another sweep: .*--set lr=log:1e-3:1 --set .* -- train 'my task"):
            opened(tmp_path, **{"trials": 6, **changed})
    grid(tmp_path / "grid", "lr=1")
    with pytest.raises(UserError, match=r"holds another sweep: all combinations -- train 'my task.py:Task'; repeat"):
        opened(tmp_path / "grid", trials=3)


def test_without_optuna_it_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    needed = "hvdtrain: a sweep needs optuna; pip install 'hvdtrain[sweep]'\n"
    assert command(tmp_path, "sweep", "--set", "lr=0.1", "--", "train") == (2, needed)


def test_values_are_recorded_as_they_are(tmp_path):
    given = ("nesterov=true,false", "lr=0.1,1e-05", "groups=auto,2", "arg.width=3.0, a b", "data=a/b,\u00e9")
    study = grid(tmp_path, *given)
    assert study.trials == plan(parse_settings(study.options, COMMAND), 1)
    read = SweepStudy(SweepOptions(output=tmp_path), [], {})
    assert (read.trials, read.command) == (study.trials, COMMAND)


def test_a_trial_without_a_result_stays_open(tmp_path):
    search = opened(tmp_path, trials=6)
    (first, second) = (proposal for proposal, _ in zip(search.proposals(), range(2), strict=False))
    train(tmp_path, second.trials[0], 2.0)
    search.ended(second)
    search.ended(first)
    assert search.left() == 5
    assert next(opened(tmp_path, trials=6).proposals()).trials == first.trials
