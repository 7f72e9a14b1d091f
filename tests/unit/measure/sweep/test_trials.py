"""The trials of a sweep: their options, names and record, and what is rejected before anything starts."""

import itertools
import json
import shlex

import pytest
from support.options import parse

from hvdtrain.__main__ import main
from hvdtrain.cli import sweep_options, sweep_programs
from hvdtrain.errors import UserError
from hvdtrain.measure.sweep.trials import RANKS, SweepRecord, Trial, is_complete, parse_ranks, parse_settings, plan

TRAIN = ["--", "train", "--strategy", "single"]
TASK = ["--", "train", "my task.py:Task", "--set", "depth=2"]
LAUNCH = ["--", "launch", "local", "-n", "2", "--"]
UNKNOWN = [*LAUNCH, "./train.sh", "my task.py:Task"]
FOREIGN = [*LAUNCH, "python", "script.py", "--epochs", "2"]


def test_trials_are_all_combinations_with_all_seeds():
    settings = parse_settings(["nesterov=true,false", "lr=0.1, 0.10,1e-2", "groups=auto,2"])
    assert settings == {"nesterov": [True, False], "lr": [0.1, 0.01], "groups": ["auto", 2]}
    trials = plan(settings, 2)
    assert len({trial.name for trial in trials}) == len(trials) == 16
    assert {trial.seed for trial in trials[:8]} == {0}
    first = Trial({"groups": "auto", "lr": 0.1, "nesterov": True}, 0)
    assert (trials[0], first.name) == (first, "groups=auto,lr=0.1,nesterov=true,seed=0")
    assert plan(parse_settings(["groups=auto,2", "lr=0.1,0.01", "nesterov=true,false"]), 2) == sorted(
        trials, key=lambda one: (one.seed, list(settings["groups"]).index(one.options["groups"]), -one.options["lr"])
    )
    assert plan({}, 2) == [Trial({}, 0), Trial({}, 1)]


def test_training_accepts_what_a_trial_adds(tmp_path):
    trial = Trial({"data": "my data", "lr": 0.5, "nesterov": False}, 3)
    config, runtime = parse(["--nesterov", *trial.arguments(tmp_path)], "p", None)
    assert (config.data, config.lr, config.nesterov, config.seed) == ("my data", 0.5, False, 3)
    assert (runtime.runs, runtime.name, runtime.auto_resume) == (tmp_path, trial.name, True)


def test_ranks_are_launched_and_are_no_option_of_training(tmp_path):
    command = ["launch", "local", "--start-timeout", "9", "--", "python", "-m", "hvdtrain.torch_lenet", "--", "x"]
    first, second = plan({"lr": [0.1], **{RANKS: parse_ranks("2,1,2", command)}}, 1)
    assert (first.name, second.name) == ("lr=0.1,ranks=2,seed=0", "lr=0.1,ranks=1,seed=0")
    assert first.launched(command) == [*command[:4], "-n", "2", *command[4:]]
    assert first.command(command, tmp_path) == [*first.launched(command), *first.arguments(tmp_path)]
    assert not any(word.startswith("--ranks") for word in first.arguments(tmp_path))
    SweepRecord(tmp_path, command).add([first, second])
    assert SweepRecord.read(tmp_path).trials == [first, second]


def test_names_of_runs_are_names_of_files():
    values = ["a/b", "a-b", "a\\b", "../..", "é", "x" * 300, "x" * 301, "\udcff"]
    names = [Trial({"data": value}, 0).name for value in values]
    assert len(set(names)) == len(values)
    assert all(name.isascii() and "/" not in name and len(name) < 200 for name in names)


def test_record_collects_the_trials_of_one_command(tmp_path):
    first, second = plan({"lr": [0.1, 0.2]}, 1)
    SweepRecord(tmp_path, ["train"]).add([first])
    record = SweepRecord(tmp_path, ["train"])
    record.add([first, second])
    assert record.trials == SweepRecord(tmp_path, ["train"]).trials == [first, second]
    with pytest.raises(UserError, match="holds a sweep of another command: train; repeat that command, or"):
        SweepRecord(tmp_path, ["train", "--epochs", "1"])


@pytest.mark.parametrize(
    "content",
    [
        "{", "[]", "null", '{"command": ["train"]}', '{"command": ["train"], "trials": [1]}',
        '{"command": ["train"], "trials": [{"options": {"lr": "x"}, "seed": 0}]}',
        '{"command": ["train"], "trials": [{"options": {"x": 1}, "seed": 0}]}',
        '{"command": ["train"], "trials": [{"options": {}, "seed": "0"}]}', "[" * 100_000,
        '{"command": ["train"], "trials": [{"options": {"ranks": "2"}, "seed": 0}]}',
    ],
)  # fmt: skip
def test_damaged_record(tmp_path, content):
    (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(UserError, match=r"sweep.json"):
        SweepRecord(tmp_path, ["train"])


def test_a_run_with_other_options_is_not_the_trial(tmp_path):
    """As after a change of the file that --config names."""
    trial = Trial({"lr": 0.1}, 0)
    run = tmp_path / trial.name
    run.mkdir()
    assert not is_complete(trial, tmp_path, {"lr": 0.1, "epochs": 3})
    (run / "config.json").write_text(json.dumps({"config": {"lr": 0.1, "epochs": 2}, "runtime": {"keep": 3}}))
    assert not is_complete(trial, tmp_path, {"lr": 0.1, "epochs": 2, "keep": 3, "new": 1})
    (run / "result.json").write_text("{}")
    assert is_complete(trial, tmp_path, {"lr": 0.1, "epochs": 2})
    with pytest.raises(UserError, match=r"was run with --epochs 2, not 3; give another --output"):
        is_complete(trial, tmp_path, {"lr": 0.1, "epochs": 3})
    (run / "config.json").write_text(json.dumps({"config": {"compression": "bf16"}}))
    assert is_complete(trial, tmp_path, {"compression": "auto"})
    (run / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"no valid config\.json"):
        is_complete(trial, tmp_path, {})
    (tmp_path / "run.toml").write_text('remainder = "drop"\n')
    (expected,) = sweep_programs.expected([trial], ["train", "--config", str(tmp_path / "run.toml")]).values()
    assert (expected["remainder"], expected["lr"], expected["seed"]) == ("drop", 0.1, 0)


INVALID = [
    (["--set", "lrr=1", *TRAIN], "--set lrr=1: training has no option 'lrr' (did you mean lr?)"),
    (["--set", "lr", *TRAIN], "--set lr: no values; write --set NAME=VALUE,VALUE"),
    (["--set", "lr=", *TRAIN], "--set lr=: a value is empty"),
    (["--set", "lr=1,,2", *TRAIN], "--set lr=1,,2: a value is empty"),
    (["--set", "lr=1,x", *TRAIN], "--set lr=1,x: lr = x is not valid; give a number"),
    (["--set", "lr=nan", *TRAIN], "--set lr=nan: lr = nan is not valid; give a number"),
    (["--set", "epochs=1.5", *TRAIN], "epochs = 1.5 is not valid; give an integer"),
    (["--set", "nesterov=1", *TRAIN], "nesterov = 1 is not valid; give true or false"),
    (["--set", "groups=3,x", *TRAIN], 'groups = x is not valid; give an integer or "auto"'),
    (["--set", "optimizer=sgd,adm", *TRAIN], "optimizer = adm is not valid (did you mean adam?); give one of"),
    (["--set", "lr=1", "--set", "lr=2", *TRAIN], "--set lr=2: lr has values already"),
    (["--set", "seed=1,2", *TRAIN], "--set seed=1,2: a sweep sets --seed itself; use --seeds N"),
    (["--set", "auto-resume=true", *TRAIN], "a sweep sets --auto-resume itself"),
    (["--set", "momentum=0.5,2", *TRAIN], "--momentum 2.0: must be below 1"),
    (["--set", "momentum=0.5,0", *TRAIN, "--nesterov"], "--nesterov True: requires momentum"),
    (["--set", "momentum=0.9,0", *TRAIN, "--nesterov"], "the trials with momentum 0.0: --nesterov True: requires"),
    (["--set", "width=8,16", *TRAIN], "training has no option 'width'"),
    (["--set", "lrr=0.1", *TASK], "no option 'lrr' (did you mean lr?); hvdtrain train --help lists all; for an arg"),
    (["--set", "set=width=8,depth=2", *TASK], "is not of one argument; write --set set.NAME=V1,V2"),
    (["--set", "set=8,16", *TASK], "is not of one argument"),
    (["--set", "width=8,", *TASK], "a value is empty"),
    (["--set", "width=8", "--set", "set=width=9", *TASK], "set.width has values already"),
    (["--set", "width=8", *TASK, "--set", "width=9"], "--set width has a value already"),
    (["--seeds", "0", *TRAIN], "--seeds 0 is too small; give 1 or more"),
    (["--seed", "3", *TRAIN], "--seed is not an option (did you mean --seeds?)"),
    (["--output=--", *TRAIN], "expected one argument"),
    (["--np", "1,x", *LAUNCH, "x"], "--np 1,x: is invalid; give positive integers"),
    (["--np", "0", *LAUNCH, "x"], "--np 0: is invalid"),
    (["--np", "1", *TRAIN], "--np 1: only a command with launch has a number of ranks"),
    (["--np", "1", "--", "launch", "local", "x"], "--np 1: only a command with launch has a number of ranks"),
    (["--np", "1", *LAUNCH, "x"], "--np 1: launch has a number of ranks already; leave out its -n"),
    ([], "no command to run; write -- train OPTIONS, or -- launch local -n 2 --"),
    (["--set", "lr=1"], "no command to run"),
    (["--", "trian"], "-- trian: a sweep runs train or launch (did you mean train?)"),
    ([*TRAIN, "--name", "x"], "-- train ... --name: a sweep sets that itself; it names each trial's run"),
    ([*TRAIN, "--runs=x"], "-- train ... --runs: a sweep sets that itself"),
    ([*TRAIN, "--epochz", "3"], "the trials' command: unrecognized arguments: --epochz 3; --epochz is not an option"),
    ([*TRAIN, "--help"], "the trials' command prints and trains nothing"),
    ([*TRAIN, "--config", "nowhere"], "--config nowhere: cannot be read"),
    (LAUNCH, "-- launch: no program"),
    ([*LAUNCH, "python", "-m", "hvdtrain.torch_lenet", "--seed", "3"], "-- launch ... --seed: a sweep sets that"),
    ([*LAUNCH, "python", "-m", "hvdtrain.torch_lenet", "--framework", "mxnet"], "--framework mxnet: python -m"),
    (["--", "launch", "sbatch", "--nodes", "2", "--ranks-per-node", "1", "--", "x"], "it only submits a job"),
    (["--", "launch", "status"], "-- launch status: it starts no job; give one of local, "),
    (["--", "launch", "cancel", "--all"], "-- launch cancel: it starts no job"),
    (["--", "launch", "lokal"], "(did you mean local?)"),
    (["--set", "--hidden=1,2", *TRAIN], "training has no option 'hidden'"),
    (["--set", "--seed=1,2", *FOREIGN], "a sweep sets --seed itself"),
    (["--set", "batch-size=1", "--set", "--batch-size=2", *FOREIGN], "has values already"),
    (["--set", "lr=log:1e-3:1", *TRAIN], "--set lr=log:0.001:1: a range is for a search; give --trials N"),
    (["--set", "lr=log:1e-3:1,2", "--trials", "2", *TRAIN], "a range and other values"),
    (["--set", "optimizer=log:1e-3:1", "--trials", "2", *TRAIN], "optimizer"),
    (["--set", "momentum=float:0.5:1.5", "--trials", "4", *TRAIN], "--momentum 1.5"),
    (["--trials", "2", *TRAIN], "--trials: nothing to draw"),
    (["--trials", "0", "--set", "lr=0.1", *TRAIN], "--trials 0 is too small"),
    (["--trials", "3", "--trial", "1", "--set", "lr=0.1", *TRAIN], "drawn one after the other"),
    (["--sampler", "random", "--set", "lr=0.1", *TRAIN], "--sampler: belongs to a search"),
]


@pytest.mark.parametrize(("argv", "error"), INVALID, ids=range(len(INVALID)))
def test_invalid_input_starts_nothing(tmp_path, monkeypatch, capsys, argv, error):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["sweep", *argv])
    printed = capsys.readouterr().err
    assert ended.value.code == 2, printed
    assert error in printed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command", [TRAIN, ["--", "hvdtrain", *TRAIN[1:]], ["--", "python", "-m", "hvdtrain", *TRAIN[1:]]]
)
def test_dry_run_prints_a_command_line_for_each_trial(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    main(["sweep", "--set", "lr=0.1,0.2", "--seeds", "2", "--out", "all", "--dry-run", *command])
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"hvdtrain train --strategy single --lr={lr} --seed={seed} --runs=all --name=lr={lr},seed={seed} --auto-resume"
        for seed, lr in itertools.product((0, 1), (0.1, 0.2))
    ]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", ["width=8,a b", "set=width=8,width=a b", "set.width=8, a b"])
@pytest.mark.parametrize(
    "command", [TASK, UNKNOWN, [*LAUNCH, "python", "-m", "hvdtrain", *TASK[1:]],
                [*LAUNCH, "python", "-m", "hvdtrain.mxnet_lenet", "--model=t.py:Task", "--set", "depth=2"]]
)  # fmt: skip
def test_arguments_of_a_task_are_options_of_trials(tmp_path, capsys, given, command):
    main(["sweep", "--set", given, "--set", "lr=0.1", "--dry-run", *command])
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    start = ["hvdtrain", *command[1:], "--lr=0.1"]
    assert [line[: len(start)] for line in lines] == [start, start]
    assert [line[len(start)] for line in lines] == ["--set=width=8", "--set=width=a b"]
    options = sweep_options.parse(["--set", given, "--set", "lr=0.1"])
    trials = plan(sweep_options.settings(options, command[1:]), 1)
    assert trials[0].name == "lr=0.1,set.width=8,seed=0"
    SweepRecord(tmp_path, command[1:]).add(trials)
    assert SweepRecord.read(tmp_path).trials == trials
    (expected,) = sweep_programs.expected(trials[:1], command[1:]).values()
    is_known = command != UNKNOWN
    assert expected.get("set") == (["depth=2", "width=8"] if is_known else None)


def planned(*words):
    given, command = sweep_options.split([*words])
    options = sweep_options.parse(given)
    return plan(sweep_options.settings(options, command), options.seeds), command


def test_options_of_a_script_are_given_as_they_are_written(tmp_path):
    trials, command = planned("--set", "--hidden=4,8", "--set", "batch-size=16", *FOREIGN)
    assert [trial.name for trial in trials] == ["hidden=4,batch-size=16,seed=0", "hidden=8,batch-size=16,seed=0"]
    line = trials[1].command(command, tmp_path)
    assert line[: len(command)] == command and line[len(command)] == "--hidden=8" and "--batch-size=16" in line
    record = SweepRecord(tmp_path, command)
    record.add(trials)
    assert SweepRecord.read(tmp_path).trials == trials
    recorded = json.loads((tmp_path / "sweep.json").read_text())["trials"][1]["command_line"]
    assert shlex.split(recorded) == ["hvdtrain", *line]


def test_dashes_before_an_option_of_training_change_nothing():
    assert parse_settings(["--lr=0.1"]) == parse_settings(["lr=0.1"]) == {"lr": [0.1]}


def test_a_search_has_no_tasks_of_an_array():
    words = ["--set", "lr=log:1e-3:1", "--trials", "4"]
    sweep_options.check_trials(words, ["train"], "")
    with pytest.raises(UserError, match="--array 0-3: the trials of a search"):
        sweep_options.check_trials(words, ["train"], "0-3")


def test_arguments_that_the_file_of_the_task_names_need_no_prefix(tmp_path):
    path = tmp_path / "mytask.py"
    path.write_text("class Task:\n    def __init__(self, level=1, lr=2): pass\n")
    command = ["--", "launch", "local", "--", "python", "-m", "hvdtrain", "train", f"{path}:Task"]
    trials, _ = planned("--set", "level=3,4", "--set", "lr=0.5", *command)
    assert [trial.options for trial in trials] == [{"lr": 0.5, "set.level": "3"}, {"lr": 0.5, "set.level": "4"}], (
        "an option of training is one, also where an argument of the task has its name"
    )
    with pytest.raises(UserError, match="no option 'labl'"):
        planned("--set", "labl=3", *command)
