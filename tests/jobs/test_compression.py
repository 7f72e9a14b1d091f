"""--compression in jobs: the same bits on all ranks and for a resumed run, in each framework and strategy."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.jobs import PROGRAMS, ROOT, distance, launcher, newest, run, train, train_several
from support.same_bits import weights_hash
from support.stack import FASTEST, FRAMEWORKS, cases

from hvdtrain.interfaces import RANK_ERROR

OPTIONS = ("--epochs", "2", "--lr", "0.02", "--device", "cpu", "--check-sync", "1")
METHODS = ("bf16", "int8", "powersgd:2")
BASE = (*OPTIONS, "--strategy", "ring")


def recorded(folder, name):
    return json.loads((folder / "config.json").read_text())["config"][name]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_resumed_runs_have_the_same_bits(tmp_path, framework):
    """Also from the middle of an epoch; what each rank has still to send is in the checkpoint."""
    runs = {}
    for method in METHODS:
        given = (*BASE, "--compression", method)
        runs |= {f"{method}-whole": (*given, "--max-steps", "34"), f"{method}-part": (*given, "--max-steps", "9")}
    folder = train_several(tmp_path, framework, runs, "local", 2)
    resumed = [("--resume", f"runs/{method}-part", "--max-steps", "34") for method in METHODS]
    command = [*launcher("local", 2), "python", str(PROGRAMS), "several", framework]
    status, output = run([*command, *" --then ".join(map(" ".join, resumed)).split()], tmp_path, timeout_s=300)
    assert status == 0, output[-4000:]
    for method in METHODS:
        whole, part = newest(folder / f"{method}-whole"), newest(folder / f"{method}-part")
        assert part.position == whole.position
        assert distance(part.weights, whole.weights) == 0
        assert distance(part.optimizer.arrays, whole.optimizer.arrays) == 0
        assert [sorted(arrays) for arrays in part.other_ranks] == [[RANK_ERROR]] * (method == "powersgd:2")
    hashes = {weights_hash(folder / f"{method}-whole") for method in METHODS}
    assert len(hashes) == len(METHODS), "a method does nothing"


STRATEGIES = {"torch": (("horovod", "local"), ("horovod", "mpi"), ("mpi", "mpirun"), ("ddp", "local"))}
STRATEGIES |= dict.fromkeys(("mxnet", "tensorflow"), (("horovod", "local"), ("mpi", "mpirun")))


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, {"torch"}))
def test_strategies_that_exchange_have_the_same_bits(tmp_path, framework):
    """Over Gloo and MPI: parts are summed in the order of ranks, whatever library sends them."""
    found = {}
    for strategy, by in STRATEGIES[framework]:
        runs = {f"{strategy}-{by}-{method}": (method,) for method in ("bf16", "int8")}
        given = (*OPTIONS, "--strategy", strategy, "--max-steps", "5")
        folder = train_several(
            tmp_path, framework, {name: (*given, "--compression", *method) for name, method in runs.items()}, by, 3
        )
        for name, (method,) in runs.items():
            found.setdefault(method, set()).add(weights_hash(folder / name))
    assert {method: len(hashes) for method, hashes in found.items()} == {"bf16": 1, "int8": 1}


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, {FASTEST}))
def test_resume_with_other_ranks_and_methods(tmp_path, framework):
    """What two ranks had still to send: three have its mean each, and one rank adds nothing to its gradients."""
    given = (*BASE, "--compression", "powersgd:2", "--max-steps", "9")
    folder = train_several(tmp_path, framework, {"three": given, "one": given, "other": given}, "local", 2)
    before = newest(folder / "three")
    errors = [arrays[RANK_ERROR] for arrays in (before.optimizer.arrays, *before.other_ranks)]
    assert len(errors) == 2 and not np.array_equal(*errors) and all(error.any() for error in errors)
    train(tmp_path, framework, "--resume", "runs/three", "--max-steps", "14", by="local", np=3)
    after = newest(folder / "three")
    assert [sorted(arrays) for arrays in after.other_ranks] == [[RANK_ERROR]] * 2
    train(tmp_path, framework, "--resume", "runs/one", "--max-steps", "14", by="alone", np=1)
    train(tmp_path, framework, "--resume", "runs/other", "--max-steps", "14", "--compression", "int8", by="local", np=2)
    assert recorded(folder / "other", "compression") == "int8"


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, {"torch"}))
def test_one_rank_trains_as_without(tmp_path, framework):
    given = (*OPTIONS, "--max-steps", "5")
    runs = {method: (*given, "--compression", method) for method in ("none", *METHODS)}
    folder = train_several(tmp_path, framework, {"none": runs.pop("none")}, "alone", 1)
    train_several(tmp_path, framework, runs, "alone", 1)
    assert all(distance(newest(folder / name).weights, newest(folder / "none").weights) < 1e-6 for name in runs)


@pytest.mark.parametrize("method", ["int8", "powersgd:2"])
@pytest.mark.parametrize("framework", cases(FRAMEWORKS, {FASTEST}))
def test_a_gradient_that_is_not_finite(tmp_path, framework, method):
    """All ranks skip the step, and what comes after it is finite."""
    given = (*BASE, "--compression", method, "--max-steps", "12", "--on-nan", "skip", "--log-every", "1")
    command = [*launcher("local", 2), "python", str(PROGRAMS), "nan", framework, *given, "--name", "run"]
    status, output = run(command, tmp_path)
    assert status == 0, output[-4000:]
    result = json.loads((tmp_path / "runs" / "run" / "result.json").read_text())
    assert (result["steps"], result["skipped"]) == (12, 1)
    assert all(np.isfinite(array).all() for array in newest(tmp_path / "runs" / "run").optimizer.arrays.values())


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, {"torch"}))
def test_a_killed_rank(tmp_path, framework):
    """The restarted job ends as one that nobody has killed."""
    given = (*BASE, "--compression", "powersgd:2", "--max-steps", "14", "--checkpoint-every", "3", "--name", "run")
    launch = ["python", "-m", "hvdtrain", "launch", "local", "-n", "2", "--restarts", "2", "--"]
    status, output = run([*launch, "python", str(PROGRAMS), "die", framework, *given], tmp_path)
    assert status == 0, output[-4000:]
    assert "was killed by SIGKILL" in output
    undisturbed = train(tmp_path, framework, *given[:-1], "undisturbed", by="local", np=2)
    assert weights_hash(tmp_path / "runs" / "run") == weights_hash(undisturbed)


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, {"torch"}))
def test_tasks(tmp_path, framework):
    """Of any model: with parameters that get no gradient, and in types that are sent as float32."""
    task = ("--model", str(ROOT / "tests" / "support" / "tasks" / f"of_{framework}.py:Classifier"))
    runs = {method: (*OPTIONS, *task, "--max-steps", "6", "--compression", method) for method in METHODS}
    folder = train_several(tmp_path, framework, runs, "local", 2)
    assert len({weights_hash(folder / name) for name in runs}) == len(METHODS)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("method", ["int8", "powersgd:2"])
def test_a_script_with_its_own_loop(tmp_path, method):
    """A layer of it has no gradient in some steps on some ranks; the run is killed, and resumed."""
    script = str(ROOT / "tests" / "support" / "user_loop.py")
    given = ("--epochs", "2", "--batch-size", "20", "--device", "cpu", "--compression", method, "--check-sync", "1")
    command = [*launcher("local", 2), "python", script, *given]
    status, output = run([*command, "--name", "whole"], tmp_path)
    assert status == 0, output[-4000:]
    killed = [*command, "--name", "part", "--checkpoint-every", "5"]
    status, output = run(killed, tmp_path, KILL_AT="13")
    assert status != 0, output[-4000:]
    status, output = run([*command, "--resume", "runs/part"], tmp_path)
    assert status == 0, output[-4000:]
    assert weights_hash(tmp_path / "runs" / "part") == weights_hash(tmp_path / "runs" / "whole")


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, {FASTEST}))
def test_auto_records_its_choice_and_a_resumed_run_keeps_it(tmp_path, framework):
    given = (*BASE, "--compression", "auto", "--name", "run")
    command = [*launcher("local", 2), "python", "-m", f"hvdtrain.{framework}_lenet", *given, "--max-steps", "3"]
    status, output = run(command, tmp_path)
    assert status == 0, output[-4000:]
    folder = tmp_path / "runs" / "run"
    chosen = recorded(folder, "compression")
    assert f"--compression auto is {chosen}: the mean of 129068 values takes none " in output
    assert chosen in ("none", "bf16", "int8")
    train(tmp_path, framework, "--resume", "runs/run", "--max-steps", "5", by="local", np=2)
    assert recorded(folder, "compression") == chosen
    # A restarted job has the option once more; whatever the first one chose holds.
    path = folder / "config.json"
    path.write_text(path.read_text().replace(f'"compression": "{chosen}"', '"compression": "none"'))
    status, output = run([*command, "--auto-resume", "--max-steps", "7"], tmp_path)
    assert status == 0, output[-4000:]
    assert "--compression auto is none, as in the run that is resumed" in output
    assert recorded(folder, "compression") == "none"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--strategy", "single", "--compression", "int8"), "--compression int8: --strategy single does not compress"),
        (("--compression", "powersgd"), "--compression powersgd: not a method of compression"),
        (("--compression", "bf16", "--groups", "2"), "--compression bf16 sends all gradients at once"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path, options, problem):
    status, output = run(["python", "-m", f"hvdtrain.{FASTEST}_lenet", *options], tmp_path)
    assert status == 2
    assert problem in output and len(output.splitlines()) == 1
