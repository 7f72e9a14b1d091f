"""The trials of a sweep: options, ranges, names, record and table, and what is rejected before anything starts."""

import itertools
import json
import shlex

import pytest

from hvdtrain.__main__ import main
from hvdtrain.cli import sweep, sweep_options, sweep_programs
from hvdtrain.errors import UserError
from hvdtrain.measure.sweep.ranges import Range
from hvdtrain.measure.sweep.trials import RANKS, SweepRecord, Trial, is_complete, parse_ranks, parse_settings, plan

TRAIN = ["--", "train", "--strategy", "single"]
TASK = ["--", "train", "my task.py:Task", "--arg", "depth=2"]
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
    (["--set", "lr=1,,2", *TRAIN], "--set lr=1,,2: a value is empty"),
    (["--set", "lr=1,x", *TRAIN], "--set lr=1,x: lr = x is not valid; give a number"),
    (["--set", "lr=1", "--set", "lr=2", *TRAIN], "--set lr=2: lr has values already"),
    (["--set", "seed=1,2", *TRAIN], "--set seed=1,2: a sweep sets --seed itself; use --seeds N"),
    (["--set", "momentum=0.5,0", *TRAIN, "--nesterov"], "--nesterov True: requires momentum"),
    (["--set", "width=8,16", *TRAIN], "training has no option 'width'"),
    (["--set", "lrr=0.1", *TASK], "no option 'lrr' (did you mean lr?); hvdtrain train --help lists all; for an arg"),
    (["--set", "arg=width=8,depth=2", *TASK], "is not of one argument; write --set arg.NAME=V1,V2"),
    (["--set", "width=8", *TASK, "--arg", "width=9"], "--arg width has a value already"),
    (["--np", "1,x", *LAUNCH, "x"], "--np 1,x: is invalid; give positive integers"),
    (["--np", "1", *TRAIN], "--np 1: only a command with launch has a number of ranks"),
    (["--np", "1", *LAUNCH, "x"], "--np 1: launch has a number of ranks already; leave out its -n"),
    ([], "no command to run; write -- train OPTIONS, or -- launch local -n 2 --"),
    ([*TRAIN, "--name", "x"], "-- train ... --name: a sweep sets that itself; it names each trial's run"),
    ([*TRAIN, "--epochz", "3"], "the trials' command: unrecognized arguments: --epochz 3; --epochz is not an option"),
    ([*TRAIN, "--help"], "the trials' command prints and trains nothing"),
    (LAUNCH, "-- launch: no program"),
    ([*LAUNCH, "python", "-m", "hvdtrain.torch_lenet", "--seed", "3"], "-- launch ... --seed: a sweep sets that"),
    ([*LAUNCH, "python", "-m", "hvdtrain.torch_lenet", "--framework", "mxnet"], "--framework mxnet: python -m"),
    (["--", "launch", "sbatch", "--nodes", "2", "--ranks-per-node", "1", "--", "x"], "it only submits a job"),
    (["--", "launch", "status"], "-- launch status: it starts no job; give one of local, "),
    (["--set", "--hidden=1,2", *TRAIN], "training has no option 'hidden'"),
    (["--set", "batch-size=1", "--set", "--batch-size=2", *FOREIGN], "has values already"),
    (["--set", "lr=log:1e-3:1", *TRAIN], "--set lr=log:0.001:1: a range is for a search; give --trials N"),
    (["--set", "lr=log:1e-3:1,2", "--trials", "2", *TRAIN], "a range and other values"),
    (["--set", "momentum=float:0.5:1.5", "--trials", "4", *TRAIN], "--momentum 1.5"),
    (["--trials", "2", *TRAIN], "--trials: nothing to draw"),
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
        f"hvdtrain train --strategy single --lr={lr} --seed={seed} --runs=all --name=lr={lr},seed={seed} --resume=auto"
        for seed, lr in itertools.product((0, 1), (0.1, 0.2))
    ]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", ["width=8,a b", "arg=width=8,width=a b", "arg.width=8, a b"])
@pytest.mark.parametrize(
    "command", [TASK, UNKNOWN, [*LAUNCH, "python", "-m", "hvdtrain", *TASK[1:]],
                [*LAUNCH, "python", "-m", "hvdtrain.mxnet_lenet", "--model=t.py:Task", "--arg", "depth=2"]]
)  # fmt: skip
def test_arguments_of_a_task_are_options_of_trials(tmp_path, capsys, given, command):
    main(["sweep", "--set", given, "--set", "lr=0.1", "--dry-run", *command])
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    start = ["hvdtrain", *command[1:], "--lr=0.1"]
    assert [line[: len(start)] for line in lines] == [start, start]
    assert [line[len(start)] for line in lines] == ["--arg=width=8", "--arg=width=a b"]
    options = sweep_options.parse(["--set", given, "--set", "lr=0.1"])
    trials = plan(sweep_options.settings(options, command[1:]), 1)
    assert trials[0].name == "arg.width=8,lr=0.1,seed=0"
    SweepRecord(tmp_path, command[1:]).add(trials)
    assert SweepRecord.read(tmp_path).trials == trials
    (expected,) = sweep_programs.expected(trials[:1], command[1:]).values()
    is_known = command != UNKNOWN
    assert expected.get("arg") == (["depth=2", "width=8"] if is_known else None)


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


def test_arguments_that_the_file_of_the_task_names_need_no_prefix(tmp_path):
    path = tmp_path / "mytask.py"
    path.write_text("class Task:\n    def __init__(self, level=1, lr=2): pass\n")
    command = ["--", "launch", "local", "--", "python", "-m", "hvdtrain", "train", f"{path}:Task"]
    trials, _ = planned("--set", "level=3,4", "--set", "lr=0.5", *command)
    assert [trial.options for trial in trials] == [{"lr": 0.5, "arg.level": "3"}, {"lr": 0.5, "arg.level": "4"}], (
        "an option of training is one, also where an argument of the task has its name"
    )
    with pytest.raises(UserError, match="no option 'labl'"):
        planned("--set", "labl=3", *command)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("log:1e-4:1e-1", Range("log", 1e-4, 0.1)),
        ("float:0:0.5:0.1", Range("float", 0.0, 0.5, 0.1)),
        ("int:8:64:8", Range("int", 8.0, 64.0, 8.0)),
        ("logint:1:512", Range("logint", 1.0, 512.0)),
    ],
)
def test_forms_of_ranges(text, expected):
    found = Range.parse(text, "--set x")
    assert found == expected
    assert Range.parse(str(found), "") == expected


@pytest.mark.parametrize("text", ["0.1", "adam", "max:accuracy", "./a:b", "Log:1:2", "http://host", ""])
def test_texts_that_are_no_ranges_are_values(text):
    assert Range.parse(text, "--set x") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("log:0:1", "no logarithm"),
        ("log:1e-4", "no range of numbers"),
        ("float:1:1", "ends at or below its beginning"),
        ("float:0:inf", "not finite"),
        ("int:1:3:0", "a step that is not possible"),
        ("int:1:3:1:1", "a step that is not possible"),
        ("log:1:2:1", "a step that is not possible"),
    ],
)
def test_impossible_ranges(text, reason):
    with pytest.raises(UserError, match=reason) as raised:
        Range.parse(text, "--set lr")
    assert raised.value.reason.startswith("--set lr: ") and "log:1e-4:1e-1" in raised.value.remedy


def test_drawn_numbers_are_short_and_within_the_range():
    drawn = Range("log", 1e-4, 0.123456789)
    assert drawn.text(0.0012345678) == "0.00123457"
    assert drawn.text(0.123456789) == "0.123456789", "rounded it would be above the range"
    assert Range("logint", 4, 9).text(7.0) == "7"
    assert drawn.ends == ("0.0001", "0.123456789")


SETTINGS = ["--set", "lr=0.1,0.2", "--seeds", "2"]
ARRAY_TASK = {"SLURM_ARRAY_TASK_ID": "2"}


@pytest.mark.parametrize(
    ("given", "environment", "number"),
    [([], {}, None), (["--trial", "3"], ARRAY_TASK, 3), ([], ARRAY_TASK, 2), (["--dry-run"], ARRAY_TASK, None)],
)
def test_the_trial_is_that_of_the_task_of_an_array(given, environment, number):
    assert sweep_options.trial_number(sweep_options.parse([*SETTINGS, *given]), 4, environment) == number


def test_numbers_without_a_trial():
    options = sweep_options.parse([*SETTINGS, "--trial", "4"])
    with pytest.raises(UserError, match=r"--trial 4: the sweep has 4 trials, 0 to 3; .* --array 0-3"):
        sweep_options.trial_number(options, 4, {})
    with pytest.raises(UserError, match="SLURM_ARRAY_TASK_ID=2: the sweep has only trial 0"):
        sweep_options.trial_number(sweep_options.parse([]), 1, ARRAY_TASK)


def write(folder, name, file, content):
    (folder / name).mkdir(exist_ok=True)
    (folder / name / file).write_text(json.dumps(content))


def test_the_table_shows_trials_of_others_and_why_they_failed(tmp_path, capsys):
    trials = [{"options": {"lr": lr}, "seed": 0} for lr in (0.1, 0.2, 0.3)]
    (tmp_path / "sweep.json").write_text(json.dumps({"command": ["train"], "trials": trials}))
    write(tmp_path, "lr=0.1,seed=0", "result.json", {"accuracy": 0.5, "loss": 1.0, "images_per_s": 10.0})
    write(tmp_path, "lr=0.2,seed=0", "end.json", {"status": "failed", "reason": "rank 1\n was killed"})
    write(tmp_path, "lr=0.3,seed=0", "end.json", {"status": "stopped", "reason": "asked to stop"})
    sweep.main(["--table", "--output", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "lr 0.1" in printed and "0.5000" in printed and "sweep.md, sweep.csv" in printed
    page = (tmp_path / "sweep.md").read_text()
    assert "- lr=0.2,seed=0: rank 1" in page and "lr=0.3,seed=0:" not in page
    (tmp_path / "lr=0.3,seed=0" / "sweep.json").write_text('{"command": ["train"], "trials": []}')
    for folder in ("lr=0.1,seed=0", "lr=0.3,seed=0"):
        with pytest.raises(SystemExit) as ended:
            sweep.main(["--table", "--output", str(tmp_path / folder)])
        assert (ended.value.code, "holds no sweep" in capsys.readouterr().err) == (2, True)
