"""Scripts with a training loop of their own: as one process trains, killed and resumed, and left early.

In jobs: what the ranks exchange, and what a killed process leaves behind. One job of a framework makes all trainings
that need no launch of their own.
"""

import collections
import functools
import itertools

import pytest
from support.jobs import ROOT, Runs, distance, launch, launcher, newest, records, run, succeed, try_each
from support.user_loop_runs import assert_identical, state

SUPPORT = ROOT / "tests" / "support"
EPOCHS = SUPPORT / "user_epochs.py"
SCRIPTS = {"torch": SUPPORT / "user_loop.py", "mxnet": SUPPORT / "user_loop_gluon.py"}
MATRIX = pytest.mark.matrix
FRAMEWORKS = ["torch", pytest.param("mxnet", marks=MATRIX)]
OPTIONS = ("--epochs", "2", "--batch-size", "20", "--device", "cpu", "--quiet")
OPTIONS_OF_EPOCHS = ("--epochs", "3", "--batch-size", "10", "--device", "cpu", "--quiet", "--log-every", "4")
RARE = {
    "plain": (),
    "rare and compressed": ("--sync-every", "5", "--compression", "powersgd:2"),
    "rare": ("--sync-every", "5"),
    "powersgd": ("--compression", "powersgd:2", "--check-sync", "1"),
    "int8": ("--compression", "int8", "--check-sync", "1"),
}
"""Options of scripts whose ranks send all, or less of it."""


def script(framework, run_name, *options, **variables):
    """The words that run the script of a framework."""
    environment = [f"{name}={value}" for name, value in variables.items()]
    return [*environment, str(SCRIPTS[framework]), *OPTIONS, "--name", run_name, *options]


def several(folder, by, np, scripts):
    """Run scripts, by names of runs, one after the other in one job."""
    program = [*launcher(by, np), "python", str(SUPPORT / "several_scripts.py")]

    def job_of(some):
        return [*program, *[word for given in some for word in ("--then", *given)][1:]]

    return Runs(folder / "runs", try_each(scripts, job_of, folder))


def restarted(folder, *words, by=("--restarts", "1"), np=2, **environment):
    """The output of a job that goes on after a kill."""
    command = [*launch("local", np, *by), "python", *map(str, words)]
    output = succeed(command, folder, **environment)
    assert "SIGKILL" in output
    return output


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The runs of a framework's two ranks over Horovod."""

    @functools.cache
    def job(framework):
        scripts = {"ranks": script(framework, "ranks"), "left": script(framework, "left", LEAVE_AT="7")}
        for name, options in RARE.items():
            scripts[name] = script(framework, name, *options, STATE="1")
        scripts["rare-left"] = script(framework, "rare-left", *RARE["rare"], STATE="1", LEAVE_AT="7")
        if framework == "torch":
            for name, more in (("epochs", ()), ("shards", ("--shards", "5"))):
                scripts[name] = [str(EPOCHS), *OPTIONS_OF_EPOCHS, "--name", name, *more]
            scripts["again"] = [str(SUPPORT / "user_loop_again.py")]
        return several(tmp_path_factory.mktemp(framework), "local", 2, scripts)

    return job


@pytest.fixture(scope="module")
def alone(together):
    """The runs of one process: of the whole training, and of what `left` leaves of it."""

    @functools.cache
    def job(framework):
        resume = ("--strategy", "single", "--quiet", "--resume", "runs/left", "--name", "resumed")
        whole = script(framework, "alone", "--strategy", "single")
        scripts = {"alone": whole, "resumed": [str(SCRIPTS[framework]), *resume]}
        if framework == "torch":
            scripts["one"] = [str(EPOCHS), *OPTIONS_OF_EPOCHS, "--name", "one", "--shards", "5"]
        return several(together(framework).path.parent, "alone", 1, scripts)

    return job


def assert_like_one_process(folder, expected):
    assert distance(newest(folder).weights, newest(expected).weights) < 1e-5
    assert state(folder)[2] == pytest.approx(state(expected)[2], rel=1e-4)


@pytest.mark.guarantee("user-same-weights")
@pytest.mark.parametrize("framework", SCRIPTS)
def test_ranks_train_as_one_process_does(framework, together, alone):
    runs = together(framework)
    assert runs.output("ranks").count("after the run: 24 steps, 2 epochs, on cpu") >= 2
    assert_like_one_process(runs / "ranks", alone(framework) / "alone")


@pytest.mark.guarantee("user-same-weights")
@MATRIX
@pytest.mark.parametrize(
    ("framework", "by", "strategies"),
    [
        ("torch", "local", ("ddp", "ring")),
        ("torch", "mpirun", ("mpi", "horovod")),
        ("torch", "torchrun", ("ddp",)),
        ("mxnet", "local", ("ring",)),
        ("mxnet", "mpirun", ("mpi", "horovod")),
        ("mxnet", "local", ("kvstore-dist",)),
    ],
)
def test_other_strategies_train_as_one_process_does(framework, by, strategies, alone, tmp_path):
    ranks = 3 if by == "mpirun" else 2
    scripts = {strategy: script(framework, strategy, "--strategy", strategy) for strategy in strategies}
    runs = several(tmp_path, by, ranks, scripts)
    for strategy in strategies:
        output = runs.output(strategy)
        assert output.count("after the run: 24 steps, 2 epochs, on cpu") == ranks * len(strategies)
        assert_like_one_process(runs / strategy, alone(framework) / "alone")


@pytest.mark.guarantee("user-resume")
@pytest.mark.parametrize(
    ("framework", "name"),
    [
        pytest.param(*row, marks=() if row == ("torch", "plain") else MATRIX)
        for row in itertools.product(SCRIPTS, RARE)
        if row != ("mxnet", "int8")
    ],
)
def test_a_killed_script_continues_bit_for_bit_when_it_is_started_again(framework, name, together, tmp_path):
    """Killed between two checkpoints, and with --sync-every between two sync points.

    In PyTorch, a layer of it has no gradient in some steps on some ranks.
    """
    whole = together(framework) / name
    words = script(framework, "killed", *RARE[name], "--resume", "auto", "--checkpoint-every", "4")
    restarted(tmp_path, *words, STATE="1", KILL_AT="7" if "rare" in name else "15")
    killed = tmp_path / "runs" / "killed"
    assert_identical(killed, whole)
    for arrays, expected in zip(newest(killed).other_ranks, newest(whole).other_ranks, strict=True):
        assert distance(arrays, expected) == 0
    if name != "plain":
        assert distance(newest(whole).weights, newest(whole.parent / "plain").weights) > 0, "the options do nothing"


@pytest.mark.guarantee("user-other-ranks")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_script_that_leaves_its_loop_has_a_result_and_can_be_resumed(framework, together, alone):
    runs = together(framework)
    assert runs.output("left").count("after the run: 7 steps, 0 epochs") == 4
    assert newest(runs / "left").position.step == 7
    assert set(state(runs / "left")[2]) == {"loss squared"}
    assert distance(*(newest(alone(framework) / name).weights for name in ("resumed", "alone"))) < 1e-5
    # Between sync points: all ranks then have the same weights, or the run fails.
    assert newest(runs / "rare-left").position.step == 7


def logged(folder):
    """What a script with a loop over epochs logs, by step."""
    return {record["step"]: record["logged"] for record in records(folder, "train")}


@pytest.mark.needs("torch")
def test_schedules_of_epochs_and_figures_are_the_same_after_a_kill_in_the_middle_of_an_epoch(together, tmp_path):
    runs = together("torch")
    output = runs.output("epochs")
    assert output.count("the rate at the end is 0.00025") == 4
    lines = collections.Counter(line.partition(": ")[2] for line in output.splitlines() if ": epoch " in line)
    assert lines.total() == 12 and all(count % 2 == 0 for count in lines.values()), "other scores on the other rank"
    first = logged(runs / "epochs")[4]
    assert (first["step"], first["last"]) == (1.5, 1)  # which only the last rank logs
    words = (EPOCHS, *OPTIONS_OF_EPOCHS, "--name", "killed", "--resume", "auto", "--checkpoint-every", "4")
    assert "the rate at the end is 0.00025" in restarted(tmp_path, *words, KILL_AT="14")
    assert_identical(tmp_path / "runs" / "killed", runs / "epochs")
    assert newest(tmp_path / "runs" / "killed").optimizer.extra["ended_epochs"] == 3


@pytest.mark.needs("torch")
def test_in_shards_the_figures_have_the_same_bits_for_any_number_of_ranks(together, alone):
    one, two = alone("torch") / "one", together("torch") / "shards"
    assert_identical(two, one)
    figures = [[record["mean_loss"] for record in logged(folder).values()] for folder in (one, two)]
    assert figures[0] == figures[1] and len(figures[0]) == 9


OTHER_RATES = """
import numpy as np, torch, hvdtrain

rows = np.ones((32, 2), np.float32), np.zeros(32, np.int64)
with hvdtrain.start() as run:
    model = torch.nn.Linear(2, 2)
    model, optimizer = run.setup(model, torch.optim.SGD(model.parameters(), lr=0.5))
    for x, y in run.batches(rows):
        run.step(torch.nn.functional.cross_entropy(model(x), y, reduction="none"))
        if run.rank == 1 and run.steps == 4:
            optimizer.param_groups[0]["lr"] /= 2
"""


@pytest.mark.needs("torch")
def test_a_rank_with_another_learning_rate_is_named_at_the_next_logging_step(tmp_path):
    """Before, it was told at the next evaluation that the memory of its host may be broken."""
    (tmp_path / "rates.py").write_text(OTHER_RATES)
    options = ("--strategy", "ring", "--epochs", "9", "--batch-size", "4", "--log-every", "3", "--device", "cpu")
    status, output = run([*launch("local", 2), "python", "rates.py", *options, "--quiet"], tmp_path)
    assert status == 2 and "after step 6: rank 1 has the optimizer's lr 0.25, rank 0 has 0.5; set the same" in output


@pytest.mark.needs("torch")
def test_a_lost_rank_changes_neither_schedules_nor_weights(together, tmp_path):
    words = (EPOCHS, *OPTIONS_OF_EPOCHS, "--shards", "5", "--name", "lost")
    output = restarted(tmp_path, *words, by=["--survive"], np=3, KILL_AT="13")
    assert "the rate at the end is 0.00025" in output
    assert_identical(tmp_path / "runs" / "lost", together("torch") / "shards")


@pytest.mark.needs("torch")
def test_runs_of_one_process_may_train_the_same_model(together):
    """user_loop_again.py compares the weights."""
    runs = together("torch")
    assert runs.output("again")
    assert all(newest(runs / f"{strategy}-second").position.step == 4 for strategy in ("ring", "horovod", "ddp"))
