"""--shards: any number of ranks, of any strategy, ends with the same bits, also after a resume with others."""

from __future__ import annotations

import functools

import pytest
from support.jobs import PROGRAMS, ROOT, launcher, run, train, train_several
from support.same_bits import assert_same_bits, weights_hash
from support.stack import FASTEST, cases

TASKS = ROOT / "tests" / "support" / "tasks"
SHARDS = ("--shards", "5", "--epochs", "1", "--max-steps", "14", "--log-every", "3", "--device", "cpu", "--lr", "0.02")
FRAMEWORKS = ["torch", "mxnet", "tensorflow"]


def runs_of(framework: str, strategy: str) -> dict[str, tuple[str, ...]]:
    """Trainings, by name: a network, and a task with dropout, batch normalization and an incomplete last batch.

    In PyTorch also one with all kinds of buffers, and random numbers in evaluations.
    """
    options = ("--strategy", strategy, *SHARDS)
    task = str(TASKS / f"of_{framework}.py:Classifier")
    drawing = (*options, "--model", str(TASKS / "of_torch.py:DrawingClassifier"))
    return {
        **({"drawing": drawing} if framework == "torch" else {}),
        "lenet": (*options, "--clip-norm", "1", "--nesterov", "--ema", "0.9"),
        "task": (*options, "--model", task, "--batch-size", "36", "--optimizer", "adam"),
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of the runs of one process, of a framework."""

    @functools.cache
    def of_framework(framework):
        return train_several(tmp_path_factory.mktemp("alone"), framework, runs_of(framework, "single"), "alone", 1)

    return of_framework


MATRIX = pytest.mark.matrix
OTHERS = [
    ("local", "horovod", 3),
    pytest.param("gloo", "horovod", 3, marks=MATRIX),
    pytest.param("mpi", "horovod", 2, marks=MATRIX),
    pytest.param("local", "ring", 4, marks=MATRIX),
    pytest.param("mpirun", "mpi", 5, marks=MATRIX),
    pytest.param("alone", "horovod", 1, marks=MATRIX),
]


@pytest.mark.guarantee("same-bits")
@pytest.mark.parametrize("framework", cases(FRAMEWORKS, {"torch", "mxnet"}))
@pytest.mark.parametrize(("by", "strategy", "ranks"), OTHERS)
def test_any_ranks_have_the_bits_of_one_process(tmp_path, alone, framework, by, strategy, ranks):
    folder = train_several(tmp_path, framework, runs_of(framework, strategy), by, ranks)
    for name in runs_of(framework, strategy):
        assert_same_bits(folder / name, alone(framework) / name)


@pytest.mark.matrix
@pytest.mark.guarantee("same-bits")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_bf16(tmp_path, framework):
    """Also where shards have different numbers of rows, and a step may be skipped."""
    options = (*SHARDS, "--precision", "bf16", "--batch-size", "100", "--on-nan", "skip")
    folders = [
        train(tmp_path, framework, *options, "--strategy", strategy, "--name", name, by=by, np=ranks)
        for name, strategy, by, ranks in (("one", "single", "alone", 1), ("three", "ring", "local", 3))
    ]
    assert_same_bits(*folders)


@pytest.mark.guarantee("same-bits")
@pytest.mark.parametrize("name", ["task", pytest.param("lenet", marks=MATRIX)])
def test_ddp_has_the_bits_of_one_process(tmp_path, alone, name):
    folder = train(tmp_path, "torch", *runs_of("torch", "ddp")[name], by="local", np=2)
    assert_same_bits(folder, alone("torch") / name)


@pytest.mark.guarantee("same-bits")
@pytest.mark.parametrize("framework", cases(FRAMEWORKS, {"torch"}))
def test_a_run_resumed_with_other_ranks_and_another_strategy(tmp_path, alone, framework):
    """In the middle of an epoch."""
    options = runs_of(framework, "horovod")["task"]
    first = train(tmp_path, framework, *options, "--max-steps", "2", "--name", "task", by="local", np=2)
    other = ("--strategy", "ring", "--max-steps", "14")
    train(tmp_path, framework, "--resume", str(first), *other, by="local", np=3)
    assert weights_hash(first) == weights_hash(alone(framework) / "task")


@pytest.mark.guarantee("same-bits")
@pytest.mark.parametrize(("framework", "script"), [("torch", "user_loop.py"), ("mxnet", "user_loop_gluon.py")])
def test_a_loop_of_a_script(tmp_path, framework, script):
    """With random numbers, batch normalization, and learning rates by group or parameter."""

    def train_script(name, ranks, *options):
        command = [*launcher("local", ranks), "python", str(ROOT / "tests" / "support" / script)]
        options = ("--epochs", "2", "--batch-size", "20", "--shards", "5", "--device", "cpu", "--name", name, *options)
        status, output = run([*command, *options], tmp_path, STATE="1")
        assert status == 0, output
        return tmp_path / "runs" / name

    assert_same_bits(train_script("one", 1), train_script("two", 2, "--strategy", "ring"))


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, {FASTEST}))
def test_one_bit_of_one_gradient_changes_the_hash(tmp_path, alone, framework):
    """Nothing slips through: of an element of a shard of rank 1, in one step."""
    options = ("--strategy", "ring", *runs_of(framework, "ring")["lenet"][2:], "--name", "lenet")
    command = [*launcher("local", 2), "python", str(PROGRAMS), "flip", framework, *options]
    status, output = run(command, tmp_path)
    assert status == 0, output
    assert "1 bit flipped" in output
    assert weights_hash(tmp_path / "runs" / "lenet") != weights_hash(alone(framework) / "lenet")


def test_more_ranks_than_shards(tmp_path):
    command = [*launcher("local", 3), "python", "-m", "hvdtrain", "train", "--strategy", "ring", "--shards", "2"]
    status, output = run(command, tmp_path)
    assert status == 2, output
    assert "--shards 2" in output
    assert not list(tmp_path.glob("runs/*/metrics.jsonl"))
