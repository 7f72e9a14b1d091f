"""Scripts with a training loop of their own: as one process trains, killed and resumed, and left early."""

import json

import numpy as np
import pytest
from support.jobs import ROOT, distance, launcher, newest, run

SCRIPT = ROOT / "tests" / "support" / "own_loop.py"
OPTIONS = ("--epochs", "2", "--batch-size", "20", "--device", "cpu", "--quiet")


def script(folder, name, *options, by="local", np=2, **environment):
    """Run the script; returns its run's folder and its output."""
    command = [*launcher(by, np), "python", str(SCRIPT), *OPTIONS, "--name", name, *options]
    status, output = run(command, folder, **environment)
    assert status == 0, output
    return folder / "runs" / name, output


def state(folder):
    """What a checkpoint restores, and the metrics of the end."""
    saved = newest(folder)
    metrics = json.loads((folder / "result.json").read_text())["metrics"]
    return saved.position, {**saved.weights, **saved.optimizer.arrays}, metrics


def assert_identical(folder, other):
    (position, arrays, metrics), (expected_position, expected, expected_metrics) = state(folder), state(other)
    assert (position, metrics) == (expected_position, expected_metrics)
    assert arrays.keys() == expected.keys() > {"optimizer", "schedule"}
    for name, array in arrays.items():
        assert np.array_equal(array, expected[name]), name


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of a single process."""
    return script(tmp_path_factory.mktemp("alone"), "alone", "--strategy", "single", by="alone", np=1)[0]


@pytest.mark.parametrize(
    ("by", "strategy"),
    [
        ("local", "horovod"),
        pytest.param("local", "ddp", marks=pytest.mark.matrix),
        pytest.param("local", "ring", marks=pytest.mark.matrix),
        pytest.param("mpirun", "horovod", marks=pytest.mark.matrix),
        pytest.param("mpirun", "mpi", marks=pytest.mark.matrix),
        pytest.param("torchrun", "ddp", marks=pytest.mark.matrix),
    ],
)
def test_ranks_train_as_one_process_does(by, strategy, alone, tmp_path):
    folder, output = script(tmp_path, "ranks", "--strategy", strategy, by=by, np=3 if by == "mpirun" else 2)
    assert output.count("after the run: 24 steps, 2 epochs, on cpu") == (3 if by == "mpirun" else 2)
    assert distance(newest(folder).weights, newest(alone).weights) < 1e-5
    assert state(folder)[2] == pytest.approx(state(alone)[2], rel=1e-4)


def test_a_killed_script_continues_bit_for_bit_when_it_is_started_again(tmp_path):
    whole, _ = script(tmp_path, "whole", STATE="1")
    command = [*launcher("local", 2)[:-1], "--restarts", "1", "--", "python", str(SCRIPT), *OPTIONS]
    status, output = run(
        [*command, "--name", "killed", "--auto-resume", "--checkpoint-every", "4"], tmp_path, STATE="1", KILL_AT="15"
    )
    assert status == 0, output
    assert "SIGKILL" in output
    assert_identical(tmp_path / "runs/killed", whole)


def test_a_script_that_leaves_its_loop_has_a_result_and_can_be_resumed(alone, tmp_path):
    left, output = script(tmp_path, "left", LEAVE_AT="7")
    assert "after the run: 7 steps, 0 epochs" in output
    assert newest(left).position.step == 7
    assert set(state(left)[2]) == {"loss squared"}
    resumed = [*launcher("alone", 1), "python", str(SCRIPT), "--strategy", "single", "--quiet", "--resume", str(left)]
    status, output = run(resumed, tmp_path)
    assert status == 0, output
    assert distance(newest(left).weights, newest(alone).weights) < 1e-5


def test_an_error_on_one_rank_ends_the_job_with_its_line(tmp_path):
    (tmp_path / "failing.py").write_text(SCRIPT.read_text().replace("run.step(", "1 / run.rank; run.step("))
    status, output = run([*launcher("local", 2), "python", "failing.py", *OPTIONS], tmp_path)
    assert status == 1
    assert "rank 0" in output and "ZeroDivisionError: division by zero" in output and "Traceback" not in output
