"""What ranks send less of: compressed means (--compression) and rarer ones (--sync-every).

In jobs: each framework's arrays, each library that sends them, and checkpoints with what each rank still has to send.
One job of a framework makes all trainings that the selected cases compare.
"""

import functools
import json
import os
import signal
from unittest import mock

import numpy as np
import pytest
from support import local_steps
from support.jobs import (
    PROGRAMS,
    ROOT,
    distance,
    finish,
    launch,
    launcher,
    newest,
    pids_of_ranks,
    records,
    result,
    start,
    succeed,
    train,
    train_several,
)
from support.same_bits import weights_hash
from support.stack import FASTEST, FRAMEWORKS, cases

from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.config.sources import CommandLine
from hvdtrain.errors import UserError
from hvdtrain.frameworks.preparation import prepare
from hvdtrain.frameworks.registry import check_request, list_strategies
from hvdtrain.interfaces.learner import RANK_ERROR
from hvdtrain.networks.registry import find_network
from hvdtrain.tasks.target import NetworkTarget

METHODS = ("bf16", "int8", "powersgd:2")
OF_TASK = (
    *("--batch-size", "16", "--epochs", "2", "--lr", "0.02", "--schedule", "constant", "--warmup-epochs", "0"),
    *("--device", "cpu", "--check-sync", "1"),
)
STEPS = (*OF_TASK, "--data", "rows")
"""Two epochs of 6 steps on `write_rows`; the last one of an epoch is not a full batch."""
LOCAL = ("--sync-every", "4", "--log-every", "3")
PART = ("--max-steps", "4")
"""In the middle of an epoch, at a sync point."""
LAUNCHERS = {"sync mpi": "mpirun"}
NONE = {"none": (*STEPS, "--strategy", "ring")}


def write_rows(folder):
    """A data set of 90 images, so small that jobs take little longer than the starts of their processes."""
    (folder / "rows").mkdir()
    draw = np.random.default_rng(0)
    for name, count in (("train", 90), ("test", 20)):
        labels = draw.integers(0, 10, count)
        images = draw.integers(0, 60, (count, 28, 28), np.uint8)
        images[np.arange(count), labels * 2] = 255
        np.savez(folder / "rows" / f"{name}.npz", images=images, labels=labels)


@pytest.fixture(autouse=True)
def rows(tmp_path, monkeypatch):
    """Tests run in a folder with `write_rows`."""
    write_rows(tmp_path)
    monkeypatch.chdir(tmp_path)


def task(framework, name):
    return "--model", str(ROOT / "tests" / "support" / "tasks" / f"of_{framework}.py:{name}")


def resumed(name, *options):
    """A whole training, a part of it, and that resumed."""
    part = ("--resume", f"runs/{name}-part", "--check-sync", "1", "--max-steps", "0")
    return {f"{name}-whole": options, f"{name}-part": (*options, *PART), f"{name}-resumed": part}


def trainings(framework, group):
    """The options of the trainings of a group, by name."""
    kind, _, value = group.partition(" ")
    if kind == "sync":
        return resumed(f"sync-{value}", *STEPS, *LOCAL, "--strategy", value)
    if kind == "compressed":
        return NONE | resumed(value, *NONE["none"], "--compression", value)
    if kind == "both":
        options = (*STEPS, *LOCAL, "--compression", value)
        gradients = ("--resume", f"runs/both-{value}-part", "--sync-every", "1", "--max-steps", "6")
        plain = (*STEPS, *LOCAL)
        return resumed(f"both-{value}", *options) | {f"both-{value}-gradients": gradients, "both-plain": plain}
    if kind == "other":
        compressed = {"powersgd": (*NONE["none"], "--compression", "powersgd:2", *PART)}
        other = ("--resume", "runs/powersgd", "--compression", "int8", "--max-steps", "6")
        return compressed | {"rare": (*STEPS, *LOCAL, *PART), "other": other}
    if kind == "classifier":
        options = (*OF_TASK, *task(framework, "Classifier"), "--max-steps", "3", "--compression")
        return {f"classifier-{method}": (*options, method) for method in METHODS}
    frozen = ("--freeze", "*.embeddings" if framework == "tensorflow" else "of_kind.*")
    options = ("--strategy", "ring", "--epochs", "3", "--batch-size", "8", "--optimizer", "adam", "--lr", "0.01")
    return resumed("regression", *options, *frozen, *LOCAL, *task(framework, "Regression"))


@pytest.fixture(scope="module")
def trained_together(request, tmp_path_factory):
    """The runs of a framework's job, which makes the trainings of all cases (`trained`) of this file."""
    specs = [item.callspec for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    chosen = dict.fromkeys(spec.params["trained"] for spec in specs if "trained" in spec.params)

    @functools.cache
    def job(framework, by):
        groups = [group for of, group in chosen if of == framework and LAUNCHERS.get(group, "local") == by]
        runs = {name: options for group in groups for name, options in trainings(framework, group).items()}
        write_rows(folder := tmp_path_factory.mktemp(framework))
        return train_several(folder, framework, runs, by, 2)

    return job


@pytest.fixture
def folder(trained, trained_together):
    """That of the runs of a case's framework and group."""
    framework, group = trained
    return trained_together(framework, LAUNCHERS.get(group, "local"))


def groups(kind, values, short):
    """Cases of all frameworks, with these values, of which those in `short` are not only in the matrix."""
    rows = [((framework, value), f"{kind} {value}".strip()) for framework in FRAMEWORKS for value in values]
    marks = {row: () if row in short else pytest.mark.matrix for row, _ in rows}
    chosen = [pytest.param((row[0], group), marks=marks[row], id=f"{row[0]}-{group}") for row, group in rows]
    return pytest.mark.parametrize("trained", chosen)


def state(folder):
    """All arrays of the newest checkpoint: weights, and the optimizers of all ranks."""
    saved = newest(folder)
    ranks = enumerate((saved.optimizer.arrays, *saved.other_ranks))
    return saved.weights | {f"{rank}/{name}": array for rank, arrays in ranks for name, array in arrays.items()}


def largest(array):
    return float(np.abs(array).max())


# --compression.


@groups("compressed", METHODS, [("torch", "int8"), ("torch", "powersgd:2"), (FASTEST, "bf16")])
def test_a_resumed_run_has_the_same_bits(folder, trained):
    """What each rank has still to send is in the checkpoint."""
    method = trained[1].split()[1]
    whole = folder / f"{method}-whole"
    assert distance(state(whole), state(folder / f"{method}-resumed")) == 0
    assert [sorted(arrays) for arrays in newest(whole).other_ranks] == [[RANK_ERROR]] * (method == "powersgd:2")
    assert weights_hash(whole) != weights_hash(folder / "none"), "the method does nothing"


@groups("classifier", [""], [("torch", "")])
def test_tasks(folder):
    """Of any model: with parameters that get no gradient, and in types that are sent as float32."""
    assert len({weights_hash(folder / f"classifier-{method}") for method in METHODS}) == len(METHODS)


STRATEGIES = {framework: {"local": ["horovod"], "mpirun": ["mpi"]} for framework in FRAMEWORKS}
STRATEGIES["torch"] = {"local": ["horovod", "ddp"], "mpirun": ["mpi", "horovod"]}


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, {FASTEST}))
def test_strategies_that_exchange_have_the_same_bits(tmp_path, framework):
    """Over Gloo and MPI: parts are summed in the order of ranks, whatever library sends them."""
    found = {"bf16": set(), "int8": set()}
    for by, strategies in STRATEGIES[framework].items():
        runs = {(strategy, method): f"{by}-{strategy}-{method}" for strategy in strategies for method in found}
        options = {
            name: (*STEPS, "--max-steps", "3", "--strategy", strategy, "--compression", method)
            for (strategy, method), name in runs.items()
        }
        folder = train_several(tmp_path, framework, options, by, 3)
        for (_, method), name in runs.items():
            found[method].add(weights_hash(folder / name))
    assert {method: len(hashes) for method, hashes in found.items()} == {"bf16": 1, "int8": 1}


@pytest.mark.parametrize("method", cases(("int8", "powersgd:2"), {"powersgd:2"}))
@pytest.mark.parametrize("framework", cases(FRAMEWORKS, {FASTEST}))
def test_a_gradient_that_is_not_finite(tmp_path, framework, method):
    """All ranks skip the step, and what comes after it is finite."""
    options = (*NONE["none"], "--compression", method, "--max-steps", "8", "--on-nan", "skip", "--name", "run")
    succeed([*launcher("local", 2), "python", str(PROGRAMS), "nan", framework, *options], tmp_path)
    ended = result(tmp_path / "runs" / "run")
    assert (ended["steps"], ended["skipped"]) == (8, 1)
    assert all(np.isfinite(array).all() for array in newest(tmp_path / "runs" / "run").optimizer.arrays.values())


# --sync-every.


@groups("sync", ("horovod", "ring", "mpi"), [("torch", "horovod"), (FASTEST, "ring"), ("tensorflow", "horovod")])
def test_two_ranks_have_the_mean_of_their_weights_and_resume_in_the_middle_of_an_epoch(folder, trained):
    framework, name = trained[0], trained[1].replace(" ", "-")
    whole = state(folder / f"{name}-whole")
    assert distance(whole, state(folder / f"{name}-resumed")) == 0
    logged = records(folder / f"{name}-whole", "train")
    assert [line["step"] for line in logged] == [4, 6, 10, 12]
    # Over all: in TensorFlow, Horovod's core may take what ranks wait for a sum of weights as that of another interval.
    assert sum(sum(line["communicate_s"]) for line in logged) > 0

    with mock.patch.dict(os.environ):
        prepare(framework)
        reference = local_steps.train(*CommandLine.read([*STEPS, *LOCAL], "test", framework).options())
    assert max(largest(whole[name] - array) for name, array in reference.items()) < 1e-5
    apart = [name for name in reference if name.startswith("1/")]
    assert max(largest(reference[name] - whole["0" + name[1:]]) for name in apart) > 1e-4


@groups("both", ("int8", "powersgd:2"), [(FASTEST, "powersgd:2")])
def test_changes_of_weights_are_compressed(folder, trained):
    """Resumed bit for bit; and where changes were compressed, gradients do not begin with what was left of those."""
    name = trained[1].replace(" ", "-")
    whole, part = state(folder / f"{name}-whole"), state(folder / f"{name}-part")
    assert distance(whole, state(folder / f"{name}-resumed")) == 0
    plain, compressed, begun = (newest(folder / run).weights for run in ("both-plain", f"{name}-whole", f"{name}-part"))
    assert 0 < distance(compressed, plain) < distance(plain, begun)
    assert newest(folder / f"{name}-gradients").position.step == 6
    if "powersgd" in name:
        assert largest(whole["0/compression/error"] - whole["1/compression/error"]) > 0
        assert largest(part["0/compression/error"]) > 0


@groups("regression", [""], [("torch", "")])
def test_a_task_with_parameters_that_get_no_gradient(folder):
    """Also with one that gets one on some ranks only, and a complex one; with Adam, and one that is frozen."""
    assert distance(state(folder / "regression-whole"), state(folder / "regression-resumed")) == 0
    losses = [line["loss"] for line in records(folder / "regression-whole", "test")]
    assert losses[-1] < losses[0]


@groups("other", [""], [(FASTEST, "")])
def test_other_ranks_and_methods(folder, trained):
    """What two ranks had still to send: three have its mean each, and one rank adds nothing to its gradients.

    One rank trains as without both options; it resumes from the optimizer state of rank 0.
    """
    before, of_job = newest(folder / "powersgd"), (folder.path.parent, trained[0])
    errors = [arrays[RANK_ERROR] for arrays in (before.optimizer.arrays, *before.other_ranks)]
    assert len(errors) == 2 and not np.array_equal(*errors) and all(error.any() for error in errors)
    assert json.loads((folder / "other" / "config.json").read_text())["config"]["compression"] == "int8"

    train(*of_job, "--resume", "runs/powersgd", "--name", "three", "--max-steps", "6", by="local", np=3)
    assert [sorted(arrays) for arrays in newest(folder / "three").other_ranks] == [[RANK_ERROR]] * 2

    single = (*STEPS, *PART, "--strategy", "single")
    runs = {f"one-{method}": (*STEPS, *PART, "--compression", method) for method in ("none", *METHODS)}
    runs |= {"one-single": single, "one-local": (*single, *LOCAL)}
    runs |= {f"{name}-resumed": ("--resume", f"runs/{name}", "--max-steps", "6") for name in ("powersgd", "rare")}
    one = train_several(*of_job, runs, "alone", 1)
    plain = newest(one / "one-none").weights
    assert all(distance(newest(one / f"one-{method}").weights, plain) < 1e-6 for method in METHODS)
    assert distance(state(one / "one-single"), state(one / "one-local")) == 0
    assert newest(one / "powersgd-resumed").position.step == 6
    log = (one / "rare-resumed" / "logs" / "rank-0.log").read_text()
    assert "each of the checkpoint's 2 ranks has its own optimizer state; all ranks resume from rank 0's" in log


@pytest.mark.parametrize("trained", [(FASTEST, "sync ring")], ids="-".join)
def test_a_rank_that_is_killed_between_sync_points(tmp_path, folder, trained):
    """At step 5: the checkpoint that is due after step 3 was written at the sync point after step 4."""
    options = (*trainings(*trained)["sync-ring-whole"], "--checkpoint-every", "3", "--name", "run", "--resume", "auto")
    succeed([*launch("local", 2, "--restarts", "1"), "python", str(PROGRAMS), "die", FASTEST, *options], tmp_path)
    attempts = json.loads((tmp_path / "runs" / "run" / "attempts.json").read_text())
    assert [(attempt["status"], attempt["checkpoint"]) for attempt in attempts] == [(137, -1), (0, 4)]
    assert distance(state(tmp_path / "runs" / "run"), state(folder / "sync-ring-whole")) == 0


def test_a_request_to_stop_waits_for_a_sync_point(tmp_path):
    long = ("--strategy", "ring", "--epochs", "400", "--sync-every", "7", "--log-every", "1")
    command = [*launcher("local", 2), "python", "-m", f"hvdtrain.{FASTEST}_lenet", *long, "--name", "run"]
    process = start(command, tmp_path)
    os.kill(pids_of_ranks(tmp_path / "runs" / "run", 2)[1], signal.SIGUSR1)
    status, output = finish(process, 60)
    assert status == 75, output
    stopped = newest(tmp_path / "runs" / "run").position.step
    assert stopped % 23 % 7 == 0
    last = ("--max-steps", str(stopped + 14 - stopped % 23 % 14))
    runs = {"resumed": ("--resume", "runs/run", *last), "straight": (*long, *last)}
    folder = train_several(tmp_path, FASTEST, runs, "local", 2)
    assert distance(state(folder / "resumed"), state(folder / "straight")) == 0


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_strategies_that_can_make_local_steps(framework):
    """In the process of the test: nothing of them is started."""
    network = NetworkTarget(find_network("lenet").for_data((1, 28, 28), 10, ""))

    def reason(strategy):
        try:
            check_request(Config(framework=framework, strategy=strategy, sync_every=4), network, RuntimeOptions())
        except UserError as error:
            return error.reason
        return ""

    reasons = {row.strategy: reason(row.strategy) for row in list_strategies(framework)}
    names = {"single", "horovod", "ring", "mpi"} | ({"ddp"} if framework == "torch" else set())
    assert {name for name, text in reasons.items() if not text} == names
    rejected = [text for text in reasons.values() if text]
    assert rejected and all("has no steps of single ranks" in text for text in rejected)
