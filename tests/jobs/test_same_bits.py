"""--shards: any number of ranks, of any strategy, ends with the same bits, also after a resume with others.

The ranks are processes: what is compared are frameworks and transports that several of them need.
"""

import functools

import pytest
from support.jobs import PROGRAMS, ROOT, launcher, run, succeed, train, train_several
from support.same_bits import assert_same_bits, weights_hash
from support.stack import FRAMEWORKS, cases, require_precision

SUPPORT = ROOT / "tests" / "support"
SHARDS = ("--shards", "5", "--epochs", "1", "--max-steps", "14", "--log-every", "3", "--device", "cpu", "--lr", "0.02")
MATRIX = pytest.mark.matrix


def runs_of(framework: str, strategy: str) -> dict[str, tuple[str, ...]]:
    """Trainings, by name: a network, also with weights and sampling of classes, and a task with dropout, batch
    normalization and an incomplete last batch.

    In PyTorch also one with all kinds of buffers, float64, denormals, and random numbers in evaluations.
    """
    options = ("--strategy", strategy, *SHARDS)
    task = (*options, "--model", f"{SUPPORT / 'tasks'}/of_{framework}.py:Classifier", "--batch-size", "36")
    weighted = (*options, "--max-steps", "4")
    drawing = (*options, "--model", f"{SUPPORT / 'tasks'}/of_torch.py:DrawingClassifier")
    return {
        "lenet": (*options, "--clip-norm", "1", "--nesterov", "--ema", "0.9"),
        "task": (*task, "--optimizer", "adam"),
        "begun": (*task, "--optimizer", "adam", "--max-steps", "2"),
        "weighted": (*weighted, "--class-weights", "0=9,3=0.1"),
        "sampled": (*weighted, "--sample", "balanced"),
        **({"drawing": drawing} if framework == "torch" else {}),  # last, as it changes how its thread computes
    }


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The folder of the runs of a job, by default of one process."""

    @functools.cache
    def of(framework, by="alone", strategy="single", ranks=1):
        return train_several(tmp_path_factory.mktemp(by), framework, runs_of(framework, strategy), by, ranks)

    return of


OTHERS = [
    ("local", "horovod", 3),
    pytest.param("gloo", "horovod", 3, marks=MATRIX),
    pytest.param("mpi", "horovod", 2, marks=MATRIX),
    pytest.param("local", "ring", 4, marks=MATRIX),
    pytest.param("mpirun", "mpi", 5, marks=MATRIX),
    pytest.param("alone", "horovod", 1, marks=MATRIX),
]


@pytest.mark.guarantee("same-bits")
@pytest.mark.parametrize("framework", cases(FRAMEWORKS, {"torch"}))
@pytest.mark.parametrize(("by", "strategy", "ranks"), OTHERS)
def test_any_ranks_have_the_bits_of_one_process(job, framework, by, strategy, ranks):
    for name in runs_of(framework, strategy):
        assert_same_bits(job(framework, by, strategy, ranks) / name, job(framework) / name)


@pytest.mark.guarantee("same-bits")
@pytest.mark.parametrize("framework", cases(FRAMEWORKS, {"torch"}))
def test_a_run_resumed_with_other_ranks_and_another_strategy_and_runs_of_ddp(tmp_path, job, framework):
    """Resumed in the middle of an epoch; one job does both."""
    begun = job(framework, "local", "horovod", 3) / "begun"
    by_ddp = {name: runs_of("torch", "ddp")[name] for name in ("task", "lenet") if framework == "torch"}
    resumed = ("--resume", str(begun), "--strategy", "ring", "--max-steps", "14")
    folder = train_several(tmp_path, framework, {**by_ddp, "resumed": resumed}, "local", 2)
    for name in by_ddp:
        assert_same_bits(folder / name, job("torch") / name)
    assert weights_hash(folder / "resumed") == weights_hash(job(framework) / "task")


@pytest.mark.matrix
@pytest.mark.guarantee("same-bits")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_bf16(tmp_path, framework):
    """Also where shards have different numbers of rows, and a step may be skipped."""
    require_precision(framework, "bf16")
    options = (*SHARDS, "--precision", "bf16", "--batch-size", "100", "--on-nan", "skip")
    folders = [
        train(tmp_path, framework, *options, "--strategy", strategy, "--name", name, by=by, np=ranks)
        for name, strategy, by, ranks in (("one", "single", "alone", 1), ("three", "ring", "local", 3))
    ]
    assert_same_bits(*folders)


@pytest.mark.guarantee("same-bits")
@pytest.mark.parametrize(
    ("framework", "script"),
    [
        pytest.param("torch", "user_loop.py", marks=MATRIX),
        ("mxnet", "user_loop_gluon.py"),
    ],  # test_audits has one of PyTorch
)
def test_a_loop_of_a_script(tmp_path, framework, script):
    """With random numbers, batch normalization, and learning rates by group or parameter."""
    options = ("--epochs", "2", "--batch-size", "20", "--shards", "5", "--device", "cpu")
    for name, by, strategy, ranks in (("one", "alone", "single", 1), ("two", "local", "ring", 2)):
        program = ["python", str(SUPPORT / script), *options, "--strategy", strategy, "--name", name]
        succeed([*launcher(by, ranks), *program], tmp_path, STATE="1")
    assert_same_bits(tmp_path / "runs" / "one", tmp_path / "runs" / "two")


@pytest.mark.parametrize("framework", cases(["numpy", *FRAMEWORKS], {"numpy"}))
def test_one_bit_of_one_gradient_changes_the_hash(tmp_path, framework):
    """Nothing slips through: of an element of a shard of rank 1, in one step."""
    folder = train_several(tmp_path, framework, {"sound": ("--strategy", "single", *SHARDS)}, "alone", 1)
    options = ("--strategy", "ring", *SHARDS, "--name", "flipped")
    status, output = run([*launcher("local", 2), "python", str(PROGRAMS), "flip", framework, *options], tmp_path)
    assert status == 0 and "1 bit flipped" in output, output
    assert weights_hash(folder / "flipped") != weights_hash(folder / "sound")


def test_more_ranks_than_shards(tmp_path):
    program = ["python", str(PROGRAMS), "several", "numpy", "--strategy", "ring", "--shards", "2"]
    status, output = run([*launcher("local", 3), *program], tmp_path)
    assert status != 0 and "--shards 2: 3 ranks were started" in output, output
    assert not list(tmp_path.glob("runs/*/metrics.jsonl"))
