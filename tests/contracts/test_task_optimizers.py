"""Optimizers and schedules of a task's own: resumed bit for bit, and the same on any number of ranks."""

import json

import numpy as np
import pytest
from support.jobs import ROOT, distance, newest, run, several, train_several
from support.same_bits import weights_hash

TASKS = ROOT / "tests" / "support" / "tasks" / "own_optimizers.py"
MATRIX = pytest.mark.matrix
OPTIONS = ("--framework", "torch", "--device", "cpu", "--batch-size", "32", "--seed", "5", "--log-every", "1")
"""4 steps in an epoch."""
WHOLE, PART = ("--epochs", "3", "--max-steps", "11"), ("--epochs", "3", "--max-steps", "6")


def task(name, *options):
    """The options that train a task."""
    return ("--model", f"{TASKS}:{name}", *OPTIONS, *options)


def resumed(folder, runs, by, ranks, *more):
    """Train these runs whole, and a part of them, which is then resumed; in one job. Returns the folder of the runs."""
    first = {f"{name}-whole": (*given, *WHOLE, *more) for name, given in runs.items()}
    first |= {f"{name}-part": (*given, *PART, *more) for name, given in runs.items()}
    rest = {
        f"{name}-part": (*first[f"{name}-whole"], "--resume", str(folder / "runs" / f"{name}-part")) for name in runs
    }
    train_several(folder, "torch", first, by, ranks)
    status, output = run(several("torch", list(rest.values()), by, ranks), folder, timeout_s=300)
    assert status == 0, output[-6000:]
    return folder / "runs"


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of runs in one process."""
    runs = {
        "groups": task("Grouped", "--strategy", "single"),
        "clipped": task(
            "Grouped", "--strategy", "single", "--clip-norm", "0.1", "--accumulate", "2", "--precision", "bf16"
        ),
        "fp16": task("Grouped", "--strategy", "single", "--precision", "fp16", "--on-nan", "skip"),
        "noisy": task("Noisy", "--strategy", "single"),
        "devices": task("Noisy", "--strategy", "dataparallel", "--devices", "2"),
        "scheduled": task("OnlyScheduled", "--strategy", "single", "--optimizer", "adam"),
    }
    return resumed(tmp_path_factory.mktemp("alone"), runs, "alone", 1)


def assert_same_state(folder, other):
    """The same weights, and the same state of the optimizer and its schedules."""
    one, two = newest(folder), newest(other)
    assert one.position == two.position
    for arrays, expected in ((one.weights, two.weights), (one.optimizer.arrays, two.optimizer.arrays)):
        assert arrays.keys() == expected.keys() and arrays
        assert all(np.array_equal(array, expected[name]) for name, array in arrays.items())


def rates(folder):
    """The learning rates that a run recorded, by step."""
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {record["step"]: record["lr"] for record in records if record["kind"] == "train"}


@pytest.mark.guarantee("resume-bit-for-bit")
@pytest.mark.parametrize("name", ["groups", "clipped", "fp16", "noisy", "devices", "scheduled"])
def test_a_resumed_run_has_the_same_bits_and_rates(alone, name):
    whole, part = alone / f"{name}-whole", alone / f"{name}-part"
    assert newest(whole).position.step == 11
    assert_same_state(part, whole)
    assert rates(part) == rates(whole) and len(rates(whole)) == 11


def test_the_recorded_rate_is_that_of_the_update(alone):
    by_step = rates(alone / "groups-whole")
    warm = [0.001, 0.0055, 0.01, 0.01]  # of three steps, in which the rate rises from a tenth
    assert list(by_step.values()) == pytest.approx([*warm, *[0.005] * 4, *[0.0025] * 3])
    assert max(rates(alone / "scheduled-whole").values()) == pytest.approx(0.02, rel=0.1)


def test_the_record_leaves_out_what_the_task_decides(alone):
    recorded = {
        name: json.loads((alone / f"{name}-whole/config.json").read_text())["config"]
        for name in ("groups", "scheduled")
    }
    assert not {"optimizer", "lr", "momentum", "schedule", "warmup_epochs"} & recorded["groups"].keys()
    assert recorded["scheduled"]["optimizer"] == "adam" and "schedule" not in recorded["scheduled"]


@pytest.mark.guarantee("user-same-weights")
@pytest.mark.guarantee("resume-bit-for-bit")
@pytest.mark.parametrize(
    ("by", "strategies"),
    [
        ("local", ("horovod", "ring")),
        pytest.param("local", ("ddp",), marks=MATRIX),
        pytest.param("mpirun", ("mpi",), marks=MATRIX),
    ],
)
def test_ranks_train_as_one_process_does(by, strategies, alone, tmp_path):
    runs = {strategy: task("Noisy", "--strategy", strategy, *WHOLE) for strategy in strategies}
    folder = train_several(tmp_path, "torch", runs, by, 2)
    for strategy in strategies:
        one, other = (newest(run).weights for run in (folder / strategy, alone / "noisy-whole"))
        assert distance(one, other) < 1e-5


@pytest.mark.guarantee("same-bits")
@pytest.mark.guarantee("resume-bit-for-bit")
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=MATRIX)])
def test_shards_have_the_same_bits_on_any_number_of_ranks(ranks, tmp_path):
    given = task("Noisy", "--shards", "4")
    (tmp_path / "alone").mkdir()
    whole = train_several(tmp_path / "alone", "torch", {"one": (*given, *WHOLE, "--strategy", "single")}, "alone", 1)
    strategies = ("horovod", "ring")
    folder = resumed(tmp_path, {name: (*given, "--strategy", name) for name in strategies}, "local", ranks)
    for name in strategies:
        assert weights_hash(folder / f"{name}-whole") == weights_hash(whole / "one")
        assert_same_state(folder / f"{name}-part", whole / "one")
