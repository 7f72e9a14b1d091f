"""The trials of a sweep: options, ranges and names, and what is rejected before anything starts."""

import itertools
import json
import shlex

import pytest
from support import in_process

from hvdtrain.cli import launch_options
from hvdtrain.cli.sweep_settings import check_trial, expected, parse, parse_settings, trial_number
from hvdtrain.errors import UserError
from hvdtrain.measure.sweep.trials import SweepOptions, Trial, ends, parse_range, plan, text_of

TRAIN = ["--", "train", "--strategy", "single"]
TASK = ["--", "train", "my task.py:Task", "--arg", "depth=2"]
LAUNCH = ["--", "launch", "local", "-n", "2", "--"]
UNKNOWN = [*LAUNCH, "./train.sh", "my task.py:Task"]
FOREIGN = [*LAUNCH, "python", "script.py", "--epochs", "2"]


def settings_of(*texts, command=(), **options):
    return parse_settings(SweepOptions(set=texts, **options), [*command])


def test_trials_are_all_combinations_with_all_seeds():
    settings = settings_of("nesterov=true,false", "lr=0.1, 0.10,1e-2", "groups=auto,2")
    assert settings == {"nesterov": [True, False], "lr": [0.1, 0.01], "groups": ["auto", 2]}
    trials = plan(settings, 2)
    assert len({trial.name for trial in trials}) == len(trials) == 16
    assert {trial.seed for trial in trials[:8]} == {0}
    first = Trial({"groups": "auto", "lr": 0.1, "nesterov": True}, 0)
    assert (trials[0], first.name) == (first, "groups=auto,lr=0.1,nesterov=true,seed=0")
    assert plan(settings_of("groups=auto,2", "lr=0.1,0.01", "nesterov=true,false"), 2) == sorted(
        trials, key=lambda one: (one.seed, list(settings["groups"]).index(one.options["groups"]), -one.options["lr"])
    )
    assert plan({}, 2) == [Trial({}, 0), Trial({}, 1)]


def test_ranks_are_launched_and_are_no_option_of_training(tmp_path):
    command = ["launch", "local", "-n", "9", "--", "python", "-m", "hvdtrain.torch_lenet"]
    first, second = plan(settings_of("lr=0.1", "ranks=2,1,2", command=command), 1)
    assert (first.name, second.name) == ("lr=0.1,ranks=2,seed=0", "lr=0.1,ranks=1,seed=0")
    assert first.launched(command) == [*command[:4], "-n", "2", *command[4:]]
    line = first.command(command, tmp_path)
    assert line[: len(command) + 2] == first.launched(command)
    assert not any(word.startswith("--ranks") for word in line)
    assert launch_options.parse(line[1:]).ranks == 2, "the last number of several"
    line = first.command(["train", "-n", "9"], tmp_path)
    assert line[:5] == ["train", "-n", "9", "-n", "2"]
    assert launch_options.parse(launch_options.of_training(line[1:], ["x"])).ranks == 2


def test_names_of_runs_are_names_of_files():
    values = ["a/b", "a-b", "a\\b", "../..", "é", "x" * 300, "x" * 301, "\udcff"]
    names = [Trial({"data": value}, 0).name for value in values]
    assert len(set(names)) == len(values)
    assert all(name.isascii() and "/" not in name and len(name) < 200 for name in names)


def test_a_run_with_other_options_is_not_the_trial(tmp_path):
    """As after a change of the file that --config names."""
    trial, options = Trial({"lr": 0.1}, 0), tmp_path / "run.toml"
    run = tmp_path / trial.name
    run.mkdir()
    options.write_text('remainder = "drop"\nepochs = 3\n')
    command = ["train", "--config", str(options)]
    recorded = expected(trial, command)
    assert (recorded["remainder"], recorded["lr"], recorded["seed"]) == ("drop", 0.1, 0)
    check_trial(trial, command, tmp_path)
    for same in ({"lr": 0.1}, {"lr": 0.1, "epochs": 3, "new": 1}):
        (run / "config.json").write_text(json.dumps({"config": same, "runtime": {"keep": 3}}))
        check_trial(trial, command, tmp_path)
    (run / "config.json").write_text(json.dumps({"config": {"lr": 0.1, "epochs": 2}}))
    with pytest.raises(UserError, match=r"was run with --epochs 2, not 3; give another --output"):
        check_trial(trial, command, tmp_path)
    (run / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"no valid config\.json"):
        check_trial(trial, command, tmp_path)


VALUES = [
    ("arg.widths=[8,16],[32]", ["[8,16]", "[32]"]),
    ("arg.shape=(1,(2,3)),{4:[5,6]}", ["(1,(2,3))", "{4:[5,6]}"]),
    ("arg.names=['a', \"b, c\"], c", ["['a', \"b, c\"]", "c"]),
    ("arg.text='8','a,b'", ["'8'", "'a,b'"]),
    ("arg.smile=:),O'Brien", [":)", "O'Brien"]),
    ("--layers='8,16','32'", ["8,16", "32"]),
    ("--layers=[8,16],3", ["[8,16]", "3"]),
    ("class-weights=scab=3,rot=10", ["scab=3,rot=10"]),
    ("class-weights='scab=3,rot=10',balanced", ["scab=3,rot=10", "balanced"]),
    ("columns=width,height", ["width,height"]),
    ('columns="width,height","width"', ["width,height", "width"]),
    ('data="a,b.csv",c.csv', ["a,b.csv", "c.csv"]),
    ("betas=0.9:0.99,0.8:0.9", ["0.9:0.99", "0.8:0.9"]),
    ("freeze='conv1,*',fc", [("conv1,*",), ("fc",)]),
]
"""Of --set, with the values that trials get."""


@pytest.mark.parametrize(("text", "values"), VALUES)
def test_commas_within_a_value_do_not_divide_it(text, values):
    settings = settings_of(text, "lr=0.1", command=FOREIGN[1:] if text.startswith("--") else ["train"])
    assert settings.pop("lr") == [0.1]
    assert [*settings.values()] == [values]
    assert len({trial.name for trial in plan(settings, 1)}) == len(values)


INVALID = [
    (["--set", "arg.x=[1,2", *TASK], "--set arg.x=[1,2: a bracket or quote is not closed"),
    (["--set", "columns='a,b", *TRAIN], "--set columns='a,b: a bracket or quote is not closed"),
    (["--set", "class-weights=", *TRAIN], "a value is empty"),
    (["--set", "class-weights=a=1,b", *TRAIN], "with class-weights a=1,b: --class-weights a=1,b: is neither"),
    (["--set", "lr=1,,2", *TRAIN], "--set lr=1,,2: a value is empty"),
    (["--set", "lr=1,x", *TRAIN], "--set lr=1,x: lr = x is not valid; give a number"),
    (["--set", "lr=1", "--set", "lr=2", *TRAIN], "--set lr=2: lr has values already"),
    (["--set", "seed=1,2", *TRAIN], "--set seed=1,2: a sweep sets --seed itself; use --seeds N"),
    (["--set", "momentum=0.5,0", *TRAIN, "--nesterov"], "--nesterov with --momentum 0.0: it requires"),
    (["--set", "width=8", *TASK], "no option 'width'; hvdtrain train --help all lists all; for an argument of the"),
    (["--set", "lrr=0.1", *TASK], "no option 'lrr' (did you mean lr?); hvdtrain train --help all lists all; for"),
    (["--set", "arg=width=8,depth=2", *TASK], "names no argument; for an argument of the task write --set"),
    (["--set", "ranks=1,x", *LAUNCH, "x"], "--set ranks=1,x: x is no number of ranks; give positive integers"),
    (["--set", "ranks=1", "--", "launch", "local"], "--set ranks: the command has no launch with -- before its prog"),
    ([*TRAIN, "-n", "x"], "argument -n/-np/--ranks: invalid int value: 'x'"),
    ([*TRAIN, "-n", "2", "--seed", "1"], "-- train ... --seed: a sweep sets that"),
    ([], "no command to run; write -- train OPTIONS, or -- launch local -n 2 --"),
    ([*TRAIN, "--name", "x"], "-- train ... --name: a sweep sets that itself; it names each trial's run"),
    ([*TRAIN, "--epochz", "3"], "the trials' command: unrecognized arguments: --epochz 3; --epochz is not an option"),
    ([*TRAIN, "--help"], "the trials' command prints and trains nothing"),
    (LAUNCH, "-- launch: no program"),
    ([*LAUNCH, "python", "-m", "hvdtrain.torch_lenet", "--seed", "3"], "-- launch ... --seed: a sweep sets that"),
    ([*LAUNCH, "python", "-m", "hvdtrain.torch_lenet", "--framework", "mxnet"], "--framework mxnet: python -m"),
    (["--", "launch", "sbatch", "--nodes", "1", "--ranks-per-node", "1", "--", "x"], "sbatch: it starts no job"),
    (["--set", "--hidden=1,2", *TRAIN], "training has no option 'hidden'"),
    (["--set", "batch-size=1", "--set", "--batch-size=2", *FOREIGN], "has values already"),
    (["--set", "lr=log:1e-3:1", *TRAIN], "--set lr=log:1e-3:1: a range is for a search; give --trials N"),
    (["--set", "lr=log:1e-3:1,2", "--trials", "2", *TRAIN], "a range and other values"),
    (["--set", "momentum=float:0.5:1.5", "--trials", "4", *TRAIN], "--momentum 1.5"),
    (["--trials", "2", *TRAIN], "--trials: nothing to draw"),
    (["--trials", "3", "--trial", "1", "--set", "lr=0.1", *TRAIN], "drawn one after the other"),
    (["--sampler", "random", "--set", "lr=0.1", *TRAIN], "--sampler: belongs to a search"),
]


@pytest.mark.parametrize(("argv", "error"), INVALID, ids=range(len(INVALID)))
def test_invalid_input_starts_nothing(tmp_path, argv, error):
    status, output = in_process.command(tmp_path, "sweep", *argv)
    assert status == 2 and error in output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command", [TRAIN, ["--", "hvdtrain", *TRAIN[1:]], ["--", "python", "-m", "hvdtrain", *TRAIN[1:]]]
)
def test_dry_run_prints_a_command_line_for_each_trial(tmp_path, command):
    options = ("--set", "lr=0.1,0.2", "--seeds", "2", "--output", "all", "--dry-run")
    assert in_process.command(tmp_path, "sweep", *options, *command)[1].splitlines() == [
        f"hvdtrain train --strategy single --lr={lr} --seed={seed} --runs=all --name=lr={lr},seed={seed} --resume=auto"
        for seed, lr in itertools.product((0, 1), (0.1, 0.2))
    ]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [
        (
            "--trials",
            "2",
            "--set",
            "ranks=1,2",
            "--",
            "launch",
            "horovodrun",
            "-H",
            "node1:x",
            "--",
            "hvdtrain",
            "train",
        ),
        ("--set", "ranks=1,2", "--", "launch", "horovodrun", "-H", "node1:x", "--", "hvdtrain", "train"),
        ("--", "train", "-n", "2", "-H", "node1:x"),
    ],
)
def test_how_ranks_are_started_is_checked_before_the_first_trial(tmp_path, command):
    status, output = in_process.command(tmp_path, "sweep", *command)
    assert status == 2 and "-H 'node1:x': 'node1:x' is not a host" in output


@pytest.mark.parametrize(
    "command", [TASK, UNKNOWN, [*LAUNCH, "python", "-m", "hvdtrain", *TASK[1:]],
                [*LAUNCH, "python", "-m", "hvdtrain.mxnet_lenet", "--model=t.py:Task", "--arg", "depth=2"]]
)  # fmt: skip
def test_arguments_of_a_task_are_options_of_trials(tmp_path, command):
    given = "arg.width=8, a b"
    printed = in_process.command(tmp_path, "sweep", "--set", given, "--set", "lr=0.1", "--dry-run", *command)[1]
    lines = [shlex.split(line) for line in printed.splitlines()]
    start = ["hvdtrain", *command[1:], "--lr=0.1"]
    assert [line[: len(start)] for line in lines] == [start, start]
    assert [line[len(start)] for line in lines] == ["--arg=width=8", "--arg=width=a b"]
    trial = plan(settings_of(given, "lr=0.1", command=command[1:]), 1)[0]
    assert trial.name == "arg.width=8,lr=0.1,seed=0"
    assert expected(trial, command[1:]).get("arg") == (["depth=2", "width=8"] if command != UNKNOWN else None)


def test_options_of_a_script_are_given_as_they_are_written(tmp_path):
    command = FOREIGN[1:]
    trials = plan(settings_of("--hidden=4,8", "batch-size=16", command=command), 1)
    assert [trial.name for trial in trials] == ["hidden=4,batch-size=16,seed=0", "hidden=8,batch-size=16,seed=0"]
    line = trials[1].command(command, tmp_path)
    assert line[: len(command)] == command and line[len(command)] == "--hidden=8" and "--batch-size=16" in line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("log:1e-4:1e-1", "FloatDistribution(high=0.1, log=True, low=0.0001, step=None)"),
        ("float:0:0.5:0.1", "FloatDistribution(high=0.5, log=False, low=0.0, step=0.1)"),
        ("int:8:64:8", "IntDistribution(high=64, log=False, low=8, step=8)"),
        ("logint:1:512", "IntDistribution(high=512, log=True, low=1, step=1)"),
    ],
)
def test_forms_of_ranges(text, expected):
    pytest.importorskip("optuna")
    assert repr(parse_range(text, "--set x")) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("log:0:1", "`low > 0` must hold for `log=True`"),
        ("log:1e-4", "is no range"),
        ("float:1:1", "has only one value"),
        ("float:1:0", "`low <= high` must hold"),
        ("float:0:inf", "two finite numbers"),
        ("int:1:3:1:1", "two finite numbers"),
        ("log:1:2:1", "`step` is not supported"),
        (f"int:1:{'9' * 400}", "is no range"),
    ],
)
def test_impossible_ranges(text, reason):
    pytest.importorskip("optuna")
    with pytest.raises(UserError, match=reason) as raised:
        parse_range(text, "--set lr")
    assert raised.value.reason.startswith("--set lr: ") and "log:1e-4:1e-1" in raised.value.remedy


def test_drawn_numbers_are_short_and_within_the_range():
    pytest.importorskip("optuna")
    drawn = parse_range("log:1e-4:0.123456789", "")
    assert text_of(0.0012345678, drawn) == "0.00123457"
    assert text_of(0.123456789, drawn) == "0.123456789", "rounded it would be above the range"
    assert text_of(7, parse_range("logint:4:9", "")) == "7"
    assert ends("arg.x", drawn, "") == ["0.0001", "0.123456789"]


SETTINGS = ["--set", "lr=0.1,0.2", "--seeds", "2"]
ARRAY_TASK = {"SLURM_ARRAY_TASK_ID": "2"}


@pytest.mark.parametrize(
    ("given", "environment", "number"),
    [([], {}, None), (["--trial", "3"], ARRAY_TASK, 3), ([], ARRAY_TASK, 2), (["--dry-run"], ARRAY_TASK, None)],
)
def test_the_trial_is_that_of_the_task_of_an_array(given, environment, number):
    assert trial_number(parse([*SETTINGS, *given]), 4, environment) == number


def test_numbers_without_a_trial():
    options = parse([*SETTINGS, "--trial", "4"])
    with pytest.raises(UserError, match=r"--trial 4: the sweep has 4 trials, 0 to 3; .* --array 0-3"):
        trial_number(options, 4, {})
    with pytest.raises(UserError, match="SLURM_ARRAY_TASK_ID=2: the sweep has only trial 0"):
        trial_number(SweepOptions(), 1, ARRAY_TASK)
