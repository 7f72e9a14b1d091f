"""Scripts with a training loop of their own: as one process trains, killed and resumed, and left early."""

import functools

import pytest
from support.jobs import ROOT, distance, launcher, newest, run
from support.user_loop_runs import assert_identical, state

from hvdtrain.system.run_end import RunEnd

SUPPORT = ROOT / "tests" / "support"
SCRIPTS = {"torch": SUPPORT / "user_loop.py", "mxnet": SUPPORT / "user_loop_gluon.py"}
MATRIX = pytest.mark.matrix
FRAMEWORKS = ["torch", pytest.param("mxnet", marks=MATRIX)]
OPTIONS = ("--epochs", "2", "--batch-size", "20", "--device", "cpu", "--quiet")


def script(framework, folder, name, *options, by="local", np=2, **environment):
    """Run the script in a framework; returns its run's folder and its output."""
    command = [*launcher(by, np), "python", str(SCRIPTS[framework]), *OPTIONS, "--name", name, *options]
    status, output = run(command, folder, **environment)
    assert status == 0, output
    return folder / "runs" / name, output


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of a single process in a framework."""

    @functools.cache
    def run(framework):
        folder = tmp_path_factory.mktemp("alone")
        return script(framework, folder, "alone", "--strategy", "single", by="alone", np=1)[0]

    return run


@pytest.mark.guarantee("user-same-weights")
@pytest.mark.parametrize(
    ("framework", "by", "strategy"),
    [
        ("torch", "local", "horovod"),
        pytest.param("torch", "local", "ddp", marks=MATRIX),
        pytest.param("torch", "local", "ring", marks=MATRIX),
        pytest.param("torch", "mpirun", "horovod", marks=MATRIX),
        pytest.param("torch", "mpirun", "mpi", marks=MATRIX),
        pytest.param("torch", "torchrun", "ddp", marks=MATRIX),
        ("mxnet", "local", "horovod"),
        pytest.param("mxnet", "mpirun", "horovod", marks=MATRIX),
        pytest.param("mxnet", "local", "ring", marks=MATRIX),
        pytest.param("mxnet", "mpirun", "mpi", marks=MATRIX),
        pytest.param("mxnet", "local", "kvstore", marks=MATRIX),
    ],
)
def test_ranks_train_as_one_process_does(framework, by, strategy, alone, tmp_path):
    options = ("--kvstore", "dist_sync") if strategy == "kvstore" else ()
    ranks = 3 if by == "mpirun" else 2
    folder, output = script(framework, tmp_path, "ranks", "--strategy", strategy, *options, by=by, np=ranks)
    assert output.count("after the run: 24 steps, 2 epochs, on cpu") == ranks
    assert distance(newest(folder).weights, newest(alone(framework)).weights) < 1e-5
    assert state(folder)[2] == pytest.approx(state(alone(framework))[2], rel=1e-4)


@pytest.mark.guarantee("user-resume")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_killed_script_continues_bit_for_bit_when_it_is_started_again(framework, tmp_path):
    whole, _ = script(framework, tmp_path, "whole", STATE="1")
    words = ["python", str(SCRIPTS[framework]), *OPTIONS]
    command = [*launcher("local", 2)[:-1], "--restarts", "1", "--", *words]
    status, output = run(
        [*command, "--name", "killed", "--auto-resume", "--checkpoint-every", "4"], tmp_path, STATE="1", KILL_AT="15"
    )
    assert status == 0, output
    assert "SIGKILL" in output
    assert_identical(tmp_path / "runs/killed", whole)


@pytest.mark.guarantee("user-other-ranks")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_script_that_leaves_its_loop_has_a_result_and_can_be_resumed(framework, alone, tmp_path):
    left, output = script(framework, tmp_path, "left", LEAVE_AT="7")
    assert "after the run: 7 steps, 0 epochs" in output
    assert newest(left).position.step == 7
    assert set(state(left)[2]) == {"loss squared"}
    resumed = ["python", str(SCRIPTS[framework]), "--strategy", "single", "--quiet", "--resume", str(left)]
    status, output = run([*launcher("alone", 1), *resumed], tmp_path)
    assert status == 0, output
    assert distance(newest(left).weights, newest(alone(framework)).weights) < 1e-5


@pytest.mark.needs("torch")
def test_an_error_on_one_rank_ends_the_job_with_its_line(tmp_path):
    (tmp_path / "failing.py").write_text(
        SCRIPTS["torch"].read_text().replace("if not run.step(", "1 / run.rank\n        if not run.step(")
    )
    status, output = run([*launcher("local", 2), "python", "failing.py", *OPTIONS], tmp_path)
    assert status == 1
    assert "rank 0" in output and "ZeroDivisionError: division by zero" in output
    assert output.count("Traceback (most recent call last)") == 1, "the frames of the script, once"
    (end,) = map(RunEnd.read, (tmp_path / "runs").iterdir())
    assert (end.status, end.rank, "ZeroDivisionError" in end.reason) == ("failed", 0, True)


@pytest.mark.needs("torch")
def test_runs_of_one_process_may_train_the_same_model(tmp_path):
    status, output = run([*launcher("local", 2), "python", str(SUPPORT / "user_loop_again.py")], tmp_path)
    assert status == 0, output
