"""Tasks of the user's own, in every framework and strategy: as one process trains them, and resumed bit for bit.

It starts processes because strategies combine gradients over ranks and devices of real frameworks; see conftest.py.
"""

import json

import pytest
from support.jobs import ROOT, distance, launch, newest, records, result, run
from support.parity import assert_same
from support.same_bits import weights_hash
from support.shared_runs import SharedRun, over_ranks, resumed, trains
from support.stack import FRAMEWORKS

TASKS = ROOT / "tests" / "support" / "tasks"
OPTIONS = ("--device", "cpu", "--batch-size", "32", "--seed", "5", "--warmup-epochs", "0", "--lr", "0.02")
"""4 steps in an epoch."""
ONE_EPOCH = ("--epochs", "1", "--max-steps", "4")
DEVICES = {"torch": ("dataparallel", "manual"), "tensorflow": ("mirrored",), "mxnet": ("kvstore-device",)}
OTHERS = {"torch": "ddp", "tensorflow": "multiworker", "mxnet": "kvstore-dist"}
OVER_RANKS = [(name, strategy) for name, own in OTHERS.items() for strategy in ("horovod", "ring", own, "mpi")]
SHORT_RANKS = {("torch", "horovod"), ("torch", "ring")}
"""tests/unit/frameworks has other frameworks with ranks that are threads."""
OWN = ("--device", "cpu", "--batch-size", "32", "--seed", "5", "--log-every", "1", "--epochs", "3")
"""Of tasks in PyTorch with their own optimizer and schedule."""


def task(framework, name):
    return ("--model", f"{TASKS}/of_{framework}.py:{name}", *OPTIONS)


def own(name, *options):
    return ("--model", f"{TASKS}/own_optimizers.py:{name}", *OWN, *options)


def alone(framework, name, options, strategy="single", *more):
    return SharedRun(framework, f"task-{name}-{strategy}", (*options, "--strategy", strategy, *more))


def on_two_ranks(framework, name, options, strategy):
    given, by = (*options, "--strategy", strategy), "mpirun" if strategy == "mpi" else "local"
    return over_ranks(framework, f"task-{name}-{strategy}", *given, by=by, ranks=2)


def regression(framework):
    return *task(framework, "Regression"), *ONE_EPOCH


NOISY = resumed(alone("torch", "Noisy", own("Noisy")), 11, 6)


def equal_cases():
    """Runs over devices or ranks, and those of one process."""
    for framework, strategies in DEVICES.items():
        for strategy in strategies:
            several = alone(framework, "Regression", regression(framework), strategy, "--devices", "2")
            yield several, alone(framework, "Regression", regression(framework)), True
    for framework, strategy in OVER_RANKS:
        short = (framework, strategy) in SHORT_RANKS
        over = on_two_ranks(framework, "Regression", regression(framework), strategy)
        yield over, alone(framework, "Regression", regression(framework)), short
        if framework == "torch":
            yield on_two_ranks(framework, "Noisy", own("Noisy", "--max-steps", "11"), strategy), NOISY[0], short


@pytest.mark.guarantee("user-same-weights")
@pytest.mark.parametrize(
    ("over", "one"),
    [trains(over, one, runs=(over, one), id=over.folder_name, short=short) for over, one, short in equal_cases()],
)
def test_ranks_and_devices_train_a_task_as_one_process_does(shared_jobs, over, one):
    """With the same weights up to rounding, and the same scores."""
    folder = shared_jobs.folder(over)
    assert_same(folder, shared_jobs.folder(one))
    assert set(result(folder)["metrics"]) == {"distance"}


def resumed_cases():
    """Runs in one process and over ranks, each whole, a part of it, and the rest."""
    for name in FRAMEWORKS:
        classifier = (*task(name, "Classifier"), "--epochs", "2", "--arg", "width=8")
        yield resumed(alone(name, "Classifier", classifier), 6, 3), "user-resume", True
    for framework, strategy in OVER_RANKS:
        classifier = (*task(framework, "Classifier"), "--epochs", "2")
        runs = resumed(on_two_ranks(framework, "Classifier", classifier, strategy), 6, 3)
        yield runs, "resume-bit-for-bit", (framework, strategy) in SHORT_RANKS
    clipped = ("--clip-norm", "0.1", "--accumulate", "2", "--precision", "bf16")
    for one in (
        alone("torch", "Grouped", own("Grouped")),
        alone("torch", "clipped", own("Grouped", *clipped)),
        alone("torch", "fp16", own("Grouped", "--precision", "fp16", "--on-nan", "skip")),
        alone("torch", "Noisy", own("Noisy")),
        alone("torch", "Noisy", own("Noisy"), "dataparallel", "--devices", "2"),
        alone("torch", "OnlyScheduled", own("OnlyScheduled", "--optimizer", "adam")),
    ):
        yield resumed(one, 11, 6), "resume-bit-for-bit", True


@pytest.mark.parametrize(
    "runs",
    [
        trains(runs, runs=runs, id=runs[1].folder_name, short=short, marks=[pytest.mark.guarantee(name)])
        for runs, name, short in resumed_cases()
    ],
)
def test_a_task_resumes_bit_for_bit(shared_jobs, runs):
    """Also with random numbers and running statistics, and with an optimizer and a schedule of its own."""
    shared_jobs.assert_resumed(runs)
    whole, rest = shared_jobs.folder(runs[0]), shared_jobs.folder(runs[2])
    assert result(whole)["metrics"] == result(rest)["metrics"]
    if "--log-every" in runs[0].options:
        assert rates(whole) == rates(rest) and len(rates(whole)) == 11


def rates(folder):
    """The learning rates that a run recorded, by step."""
    return {record["step"]: record["lr"] for record in records(folder, "train")}


GROUPED, SCHEDULED = (
    resumed(alone("torch", name, own(name, *options)), 11, 6)[0]
    for name, options in (("Grouped", ()), ("OnlyScheduled", ("--optimizer", "adam")))
)


@pytest.mark.trains(GROUPED, SCHEDULED)
def test_the_record_has_the_rates_of_the_task_and_leaves_out_what_it_decides(shared_jobs):
    of_groups, of_schedule = shared_jobs.folder(GROUPED), shared_jobs.folder(SCHEDULED)
    warm = [0.001, 0.0055, 0.01, 0.01]  # of three steps, in which the rate rises from a tenth
    assert list(rates(of_groups).values()) == pytest.approx([*warm, *[0.005] * 4, *[0.0025] * 3])
    assert max(rates(of_schedule).values()) == pytest.approx(0.02, rel=0.1)
    groups, schedule = (json.loads((one / "config.json").read_text())["config"] for one in (of_groups, of_schedule))
    assert not {"optimizer", "lr", "momentum", "schedule", "warmup_epochs"} & groups.keys()
    assert schedule["optimizer"] == "adam" and "schedule" not in schedule


def sharded(strategy, ranks):
    """The same for any number of ranks, as the gradients of four parts of a batch are added."""
    given = own("Noisy", "--shards", "4")
    one = SharedRun("torch", "task-shards", (*given, "--strategy", "single", "--max-steps", "11"))
    several = over_ranks("torch", f"task-shards-{strategy}", *given, "--strategy", strategy, by="local", ranks=ranks)
    runs = resumed(several, 11, 6)
    return trains(one, runs, runs=(one, *runs), id=f"{strategy}-{ranks}", short=ranks == 2)


@pytest.mark.guarantee("same-bits")
@pytest.mark.guarantee("resume-bit-for-bit")
@pytest.mark.parametrize(("one", "runs"), [sharded(name, ranks) for name in ("horovod", "ring") for ranks in (2, 3)])
def test_shards_have_the_same_bits_on_any_number_of_ranks(shared_jobs, one, runs):
    shared_jobs.assert_resumed(runs)
    assert len({weights_hash(shared_jobs.folder(run)) for run in (one, runs[0], runs[2])}) == 1


@pytest.mark.guarantee("user-other-ranks")
@pytest.mark.matrix
@pytest.mark.parametrize("framework", ["torch", "mxnet", "tensorflow"])
def test_a_killed_task_restarts_and_continues_with_another_number_of_ranks(framework, tmp_path):
    given = ("--framework", framework, "--model", f"{TASKS}/killed.py:Killed", *OPTIONS, "--epochs", "2")
    program = ["python", "-m", "hvdtrain", "train", *given, "--checkpoint-every", "1"]
    parts = {
        "whole": [*program, "--strategy", "single", "--name", "whole"],
        "killed": [*launch("local", 2, "--restarts", "1"), *program, "--name", "parts", "--max-steps", "6"],
        "rest": [*launch("local", 3), *program, "--name", "parts", "--resume", "auto"],
    }
    outputs = {}
    for part, command in parts.items():
        variables = {"KILL_ONCE": str(tmp_path / "killed")} if part == "killed" else {}
        status, outputs[part] = run(command, tmp_path, timeout_s=300, FRAMEWORK=framework, **variables)
        assert status == 0, outputs[part]
    assert "SIGKILL" in outputs["killed"] and "restart" in outputs["killed"]
    assert "epoch 2, step 6" in outputs["rest"]
    weights, expected = (newest(tmp_path / "runs" / name).weights for name in ("parts", "whole"))
    assert distance(weights, expected) < 1e-5
