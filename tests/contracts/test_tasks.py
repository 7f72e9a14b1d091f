"""Tasks of the user's own, in every framework and strategy: as one process trains them, and resumed bit for bit."""

import json

import numpy as np
import pytest
from support.jobs import ROOT, distance, newest, run, several

TASKS = ROOT / "tests" / "support" / "tasks"
MATRIX = pytest.mark.matrix
OPTIONS = ("--device", "cpu", "--batch-size", "32", "--seed", "5", "--warmup-epochs", "0", "--lr", "0.02")
STEPS = ("--epochs", "1", "--max-steps", "4")
# Strategies over several devices of one process; one that must configure its devices before the framework starts first.
DEVICES = {"torch": ("dataparallel", "manual"), "tensorflow": ("mirrored",), "mxnet": ("kvstore",)}
FRAMEWORKS = [
    pytest.param("torch", marks=MATRIX),
    pytest.param("tensorflow"),
    pytest.param("mxnet"),
]
OVER_RANKS = [
    pytest.param("torch", "local", ("horovod", "ring")),
    pytest.param("torch", "local", ("ddp",), marks=MATRIX),
    pytest.param("torch", "mpirun", ("mpi",), marks=MATRIX),
    pytest.param("tensorflow", "local", ("horovod", "ring"), marks=MATRIX),
    pytest.param("tensorflow", "local", ("multiworker",), marks=MATRIX),
    pytest.param("tensorflow", "mpirun", ("mpi",), marks=MATRIX),
    pytest.param("mxnet", "local", ("horovod", "ring")),
    pytest.param("mxnet", "local", ("kvstore",), marks=MATRIX),
    pytest.param("mxnet", "mpirun", ("mpi",), marks=MATRIX),
]


def task(framework, name, *options):
    """The options that train a task."""
    return ("--framework", framework, "--model", f"{TASKS}/of_{framework}.py:{name}", *OPTIONS, *options)


def several_devices(strategy):
    """The options of a strategy over two devices."""
    return ("--strategy", strategy, "--devices", "2", *(("--kvstore", "device") if strategy == "kvstore" else ()))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of a framework's runs in one process, which is started once."""
    folders = {}

    def runs_of(framework):
        if framework not in folders:
            regression = task(framework, "Regression", *STEPS)
            classifier = task(framework, "Classifier", "--epochs", "2", "--set", "width=8", "--strategy", "single")
            runs = {name: (*regression, *several_devices(name)) for name in DEVICES[framework]}
            runs["single"] = (*regression, "--strategy", "single")
            runs["whole"] = (*classifier, "--max-steps", "6")
            runs["parts"] = (*classifier, "--max-steps", "3")
            folder = tmp_path_factory.mktemp(framework)
            resumed = {"parts": (*runs["whole"], "--resume", str(folder / "runs" / "parts"))}
            folders[framework] = train_parts(folder, framework, runs, resumed)
        return folders[framework]

    return runs_of


def train_parts(folder, framework, runs, resumed, by="alone", ranks=1):
    """Train with these options, then resume runs, in one job; returns the folder of the runs."""
    command = several(
        framework,
        [*((*given, "--name", name) for name, given in runs.items()), *resumed.values()],
        by,
        ranks,
    )
    status, output = run(command, folder, timeout_s=300)
    assert status == 0, output[-6000:]
    return folder / "runs"


def result(folder):
    """What a run wrote in the end."""
    return json.loads((folder / "result.json").read_text())


def assert_equal_training(folder, other):
    """The same weights up to rounding, and the same scores."""
    assert distance(newest(folder).weights, newest(other).weights) < 1e-5
    assert result(folder)["metrics"] == pytest.approx(result(other)["metrics"], rel=1e-5)
    assert set(result(folder)["metrics"]) == {"distance"}


def assert_bit_identical(folder, other):
    """The same weights, optimizer state and scores."""
    one, two = newest(folder), newest(other)
    assert one.position == two.position
    for arrays, expected in ((one.weights, two.weights), (one.optimizer.arrays, two.optimizer.arrays)):
        assert arrays.keys() == expected.keys()
        for name, array in arrays.items():
            assert np.array_equal(array, expected[name]), name
    assert result(folder)["metrics"] == result(other)["metrics"]


@pytest.mark.guarantee("user-same-weights")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_several_devices_train_a_task_as_one_does(framework, alone):
    runs = alone(framework)
    for strategy in DEVICES[framework]:
        assert_equal_training(runs / strategy, runs / "single")


@pytest.mark.guarantee("user-resume")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_task_with_random_numbers_and_running_statistics_resumes_bit_for_bit(framework, alone):
    runs = alone(framework)
    assert newest(runs / "whole").position.step == 6
    assert_bit_identical(runs / "parts", runs / "whole")


@pytest.mark.guarantee("user-same-weights")
@pytest.mark.guarantee("resume-bit-for-bit")
@pytest.mark.parametrize(("framework", "by", "strategies"), OVER_RANKS)
def test_ranks_train_a_task_as_one_process_does_and_resume_it(framework, by, strategies, alone, tmp_path):
    runs, resumed = {}, {}
    kvstore = ("--kvstore", "dist_sync") if "kvstore" in strategies else ()
    for strategy in strategies:
        given = ("--strategy", strategy, *kvstore)
        runs[strategy] = task(framework, "Regression", *STEPS, *given)
    classifier = task(framework, "Classifier", "--epochs", "2", "--strategy", strategies[0], *kvstore)
    once = strategies[0] in ("ddp", "multiworker", "kvstore")  # a process can start these only once
    if not once:
        runs |= {name: (*classifier, "--max-steps", steps) for name, steps in (("whole", "6"), ("parts", "3"))}
        resumed["parts"] = (*runs["whole"], "--resume", str(tmp_path / "runs" / "parts"))
    folder = train_parts(tmp_path, framework, runs, resumed, by, 2)
    for strategy in strategies:
        assert_equal_training(folder / strategy, alone(framework) / "single")
    if not once:
        assert_bit_identical(folder / "parts", folder / "whole")


@pytest.mark.guarantee("user-other-ranks")
@MATRIX
@pytest.mark.parametrize("framework", ["torch", "mxnet", "tensorflow"])
def test_a_killed_task_restarts_and_continues_with_another_number_of_ranks(framework, tmp_path):
    given = ("--framework", framework, "--model", f"{TASKS}/killed.py:Killed", *OPTIONS, "--epochs", "2")
    program = ["python", "-m", "hvdtrain", "train", *given, "--checkpoint-every", "1"]
    local = ["python", "-m", "hvdtrain", "launch", "local", "-n"]
    parts = {
        "whole": [*program, "--strategy", "single", "--name", "whole"],
        "killed": [*local, "2", "--restarts", "1", "--", *program, "--name", "parts", "--max-steps", "6"],
        "rest": [*local, "3", "--", *program, "--name", "parts", "--auto-resume"],
    }
    outputs = {}
    for part, command in parts.items():
        variables = {"KILL_ONCE": str(tmp_path / "killed")} if part == "killed" else {}
        status, outputs[part] = run(command, tmp_path, timeout_s=300, FRAMEWORK=framework, **variables)
        assert status == 0, outputs[part]
    assert "SIGKILL" in outputs["killed"] and "restart" in outputs["killed"]
    assert "epoch 2, step 6" in outputs["rest"]
    assert_equal_training(tmp_path / "runs/parts", tmp_path / "runs/whole")
