"""Every strategy computes what one process computes, through the launcher that it is made for."""

import functools
import json
import os
import signal
import time

import pytest
from support.jobs import (
    FRAMEWORKS,
    distance,
    finish,
    launcher,
    newest,
    real_data_folder,
    run,
    start,
    train,
    train_several,
    wait_for_a_step,
)
from test_parity import EVERY_STEP, PLAIN, after, checksums

from hvdtrain.system.processes import free_port

# framework, strategy, options, launcher: on two ranks, or two devices of one process.
ROWS = [
    ("torch", "ddp", (), "local"),
    ("torch", "ddp", (), "torchrun"),
    ("torch", "dataparallel", (), "alone"),
    ("torch", "manual", (), "alone"),
    ("tensorflow", "mirrored", (), "alone"),
    ("tensorflow", "multiworker", (), "local"),
    ("tensorflow", "single", ("--api", "fit"), "alone"),
    ("tensorflow", "horovod", ("--api", "fit"), "gloo"),
    ("tensorflow", "mirrored", ("--api", "fit"), "alone"),
    ("tensorflow", "multiworker", ("--api", "fit"), "local"),
    ("mxnet", "kvstore", ("--kvstore", "local"), "alone"),
    ("mxnet", "kvstore", ("--kvstore", "device"), "alone"),
    ("mxnet", "kvstore", ("--kvstore", "dist_sync"), "local"),
    ("mxnet", "kvstore", ("--kvstore", "dist_device_sync"), "local"),
    ("mxnet", "single", ("--api", "module"), "alone"),
    ("mxnet", "horovod", ("--api", "module"), "gloo"),
    ("mxnet", "kvstore", ("--api", "module"), "alone"),
    ("mxnet", "kvstore", ("--api", "module", "--kvstore", "dist_sync"), "local"),
    ("mxnet", "single", ("--api", "ndarray"), "alone"),
    ("mxnet", "horovod", ("--api", "ndarray"), "gloo"),
    ("mxnet", "manual", (), "alone"),
    *((framework, "ring", (), "local") for framework in FRAMEWORKS),
    *((framework, "mpi", (), "mpirun") for framework in FRAMEWORKS),
]
NAMES = ["-".join([framework, strategy, *options[1::2], by]) for framework, strategy, options, by in ROWS]


@pytest.fixture(scope="session")
def one_process(tmp_path_factory):
    """One process in PyTorch: the run that all rows are compared with, made once for each data set."""

    @functools.cache
    def reference(data):
        folder = tmp_path_factory.mktemp("one")
        return train(folder, "torch", "--strategy", "single", "--data", data, *PLAIN, *EVERY_STEP)

    return reference


STARTS_ONCE = {"ddp", "multiworker", "dist_sync", "dist_device_sync"}
"""A process can have them only once: torch.distributed, TensorFlow's collectives, and MXNet's servers."""


def train_each(folder, row, runs):
    """Train by each of these options, in one job where the strategy can; the folder of the runs, by name."""
    framework, strategy, options, by = row
    ranks = 1 if by == "alone" else 2
    runs = {name: ("--strategy", strategy, *options, *words) for name, words in runs.items()}
    if not STARTS_ONCE & {strategy, *options}:
        return train_several(folder, framework, runs, by, ranks)
    for name, words in runs.items():
        train(folder, framework, *words, "--name", name, by=by, np=ranks)
    return folder / "runs"


@pytest.fixture(scope="session")
def row_runs(tmp_path_factory):
    """The folder of the runs of a row, one for each data set, made once."""
    data_sets = ("digits", "fashion-mnist") if real_data_folder() else ("digits",)
    words = {data: (*PLAIN, *EVERY_STEP, "--data", data) for data in data_sets}

    @functools.cache
    def runs(row):
        return train_each(tmp_path_factory.mktemp("row"), row, words)

    return runs


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
@pytest.mark.parametrize("data", ["digits", "fashion-mnist"])
def test_weights_and_accuracy_equal_those_of_one_process(request, one_process, row_runs, row, data):
    if data == "fashion-mnist":
        request.getfixturevalue("real_data")
    _, strategy, _, by = row
    reference, ranks = one_process(data), 1 if by == "alone" else 2
    run_folder = row_runs(row) / data
    assert distance(after(run_folder, 1), after(reference, 1)) < 1e-6
    assert distance(after(run_folder, 16), after(reference, 16)) < 1e-5
    for moment in ("starts", "ends"):
        sums = checksums(run_folder, moment)
        assert len(sums) == ranks
        assert len(set(sums)) == 1
    one, other = (json.loads((folder / "result.json").read_text()) for folder in (run_folder, reference))
    assert one["confusion"] == other["confusion"]
    devices = json.loads((run_folder / "config.json").read_text())["devices"]
    assert ranks * devices == (1 if strategy == "single" else 2)


# One row of each learner, that they mean the same by momentum, and that they go on where they stood.
LEARNERS = [
    ("torch", "ddp", (), "local"),
    ("torch", "manual", (), "alone"),
    ("tensorflow", "mirrored", (), "alone"),
    ("tensorflow", "horovod", ("--api", "fit"), "gloo"),
    ("mxnet", "kvstore", ("--kvstore", "device"), "alone"),
    ("mxnet", "kvstore", ("--api", "module"), "alone"),
    ("mxnet", "manual", (), "alone"),
]


# Within the warm-up, where the learning rate changes at each step; 8 steps, for momentum grows rounding fast.
RECIPE = (
    *("--momentum", "0.9", "--nesterov", "--weight-decay", "0.001", "--lr", "0.02"),
    *("--schedule", "cosine", "--warmup-epochs", "0.5"),
)


@pytest.fixture(scope="session")
def eight_steps(tmp_path_factory):
    """Weights of one process in PyTorch after 8 steps with momentum."""
    folder = tmp_path_factory.mktemp("one")
    return newest(train(folder, "torch", "--strategy", "single", *RECIPE, "--max-steps", "8")).weights


@pytest.mark.parametrize("row", LEARNERS)
def test_momentum_and_resume(tmp_path, eight_steps, row):
    framework, _, _, by = row
    steps = {"run": (*RECIPE, "--max-steps", "5"), "straight": (*RECIPE, "--max-steps", "8")}
    runs = train_each(tmp_path, row, steps)
    more, ranks = ("--resume", "runs/run", "--max-steps", "8"), 1 if by == "alone" else 2
    resumed = newest(train(tmp_path, framework, *more, by=by, np=ranks)).weights
    assert distance(resumed, eight_steps) < 2e-5
    assert distance(resumed, newest(runs / "straight").weights) == 0


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_strategy_help(tmp_path, framework):
    status, output = run(["python", "-m", f"hvdtrain.{framework}_lenet", "--strategy", "help"], tmp_path)
    assert status == 0, output
    for row_framework, strategy, options, _ in ROWS:
        if row_framework == framework:
            assert f"\n  {strategy} " in output
            assert "--api" not in options or options[options.index("--api") + 1] in output
    assert "not here" not in output


def test_strategy_help_says_why_one_does_not_run(tmp_path):
    """An mpi4py that does not import, as where MPI is missing."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("raise ImportError('libmpi.so: cannot open')")
    words = ["python", "-m", "hvdtrain", "train", "--framework", "torch", "--strategy"]
    status, output = run([*words, "help"], tmp_path, PYTHONPATH=str(tmp_path))
    assert status == 0
    assert "not here: mpi4py cannot be imported (libmpi.so: cannot open); run: make setup" in output
    status, output = run([*words, "mpi"], tmp_path, PYTHONPATH=str(tmp_path))
    assert status == 2
    assert "mpi4py cannot be imported" in output


REFUSED = [
    ("torch", ("--strategy", "mirrored"), "torch has no such strategy; --strategy help lists them"),
    ("torch", ("--strategy", "ddp", "--api", "fit"), "--api fit: torch has loop"),
    ("tensorflow", ("--strategy", "ring", "--api", "fit"), "no such strategy with --api fit"),
    ("torch", ("--strategy", "ddp", "--devices", "2"), "--devices 2: --strategy ddp takes one device a process"),
    ("torch", ("--strategy", "ddp", "--accumulate", "2"), "--accumulate 2: DistributedDataParallel joins"),
    ("torch", ("--strategy", "manual", "--optimizer", "adam"), "--optimizer adam: the hand-written update is SGD"),
    ("torch", ("--strategy", "manual", "--devices", "3"), "does not divide among 3 devices; change --batch-size"),
    ("torch", ("--strategy", "ddp", "--op", "sum"), "--op sum: Horovod does this; choose --strategy horovod"),
    ("mxnet", ("--strategy", "single", "--kvstore", "local"), "--kvstore local: choose --strategy kvstore with it"),
    ("tensorflow", ("--strategy", "single", "--api", "fit", "--clip-norm", "1"), "--clip-norm 1.0: Keras clips before"),
]


@pytest.mark.parametrize(("framework", "options", "sentence"), REFUSED)
def test_what_cannot_be_done_is_refused(tmp_path, framework, options, sentence):
    status, output = run(["python", "-m", f"hvdtrain.{framework}_lenet", *options], tmp_path)
    assert status == 2, output
    assert sentence in output
    assert "Traceback" not in output


@pytest.mark.parametrize("strategy", ["single", "dataparallel"])
def test_several_processes_that_would_train_apart_are_refused(tmp_path, strategy):
    words = [*launcher("local", 2), "python", "-m", "hvdtrain.torch_lenet", "--strategy", strategy]
    status, output = run(words, tmp_path)
    assert status == 2
    assert f"launch local started 2 processes, and with --strategy {strategy} each would train alone" in output


def test_horovod_by_a_launcher_that_does_not_know_it(tmp_path):
    status, output = run([*launcher("torchrun", 2), "python", "-m", "hvdtrain.torch_lenet"], tmp_path)
    assert status != 0
    assert "torchrun started 2 processes, and Horovod does not hear of that" in output
    assert "horovodrun or mpirun" in output


def test_dataparallel_says_that_it_runs_on_parts_of_the_cpu(tmp_path):
    words = [
        "python",
        "-m",
        "hvdtrain.torch_lenet",
        "--strategy",
        "dataparallel",
        "--device",
        "cpu",
        "--max-steps",
        "1",
    ]
    status, output = run(words, tmp_path)
    assert status == 0, output
    assert (
        "torch.nn.DataParallel takes GPUs only: the same scatter, replicate, apply and gather run over 2 parts"
        in output
    )


def test_ranks_without_a_meeting_point(tmp_path):
    words = ["python", "-m", "hvdtrain.torch_lenet", "--strategy", "ring"]
    status, output = run(words, tmp_path, RANK="0", WORLD_SIZE="2")
    assert status == 2
    assert "torchrun set no MASTER_ADDR and MASTER_PORT" in output


@pytest.mark.parametrize("strategy", ["ring", "ddp"])
def test_a_killed_rank_ends_the_job(tmp_path, strategy):
    """By the launcher, which says which rank and why, and leaves no process behind."""
    words = [*launcher("local", 3), "python", "-m", "hvdtrain.torch_lenet"]
    options = ("--strategy", strategy, "--epochs", "500", "--name", "run", "--log-every", "1")
    process = start([*words, *options], tmp_path)
    wait_for_a_step(tmp_path / "runs" / "run")
    ranks = [child for keeper in children(process.pid) for child in children(keeper)]
    assert len(ranks) == 3
    os.kill(ranks[1], signal.SIGKILL)
    killed = time.monotonic()
    status, output = finish(process, 30)
    assert time.monotonic() - killed < 15
    assert status == 128 + signal.SIGKILL, output
    assert f"rank 1 on {os.uname().nodename} was killed by SIGKILL; ending the others" in output
    for pid in ranks:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def children(pid):
    """Processes that this one started, in the order of their ranks."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return sorted(int(word) for word in file.read().split())


def test_adasum_needs_mpi(tmp_path):
    words = [*launcher("gloo", 2), "python", "-m", "hvdtrain.torch_lenet", "--op", "adasum"]
    status, output = run(words, tmp_path)
    assert status != 0
    assert "--op adasum: Gloo has no Adasum; start by horovodrun --mpi or mpirun" in output


def test_multiworker_by_tf_config(tmp_path, one_process):
    """As TensorFlow's users start it: the same program on each worker, and TF_CONFIG."""
    port = free_port()
    workers = [f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"]
    words = ["python", "-m", "hvdtrain.tensorflow_lenet", "--strategy", "multiworker", "--name", "run"]
    processes = []
    for index in (0, 1):
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        processes.append(start([*words, *PLAIN, *EVERY_STEP], tmp_path, TF_CONFIG=json.dumps(config)))
    for process in processes:
        status, output = finish(process)
        assert status == 0, output
    assert distance(after(tmp_path / "runs" / "run", 16), after(one_process("digits"), 16)) < 1e-5


@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_slurm_s_variables_are_enough(tmp_path, one_process, framework):
    """What srun sets for the tasks of a step on one node (here set by hand; no Slurm is needed)."""
    strategy = {"tensorflow": "multiworker", "torch": "ddp"}[framework]
    words = [
        "python",
        "-m",
        f"hvdtrain.{framework}_lenet",
        "--strategy",
        strategy,
        "--name",
        "run",
        *PLAIN,
        *EVERY_STEP,
    ]
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": str(os.getpid())}
    tasks = [start(words, tmp_path, **step, SLURM_PROCID=rank, SLURM_LOCALID=rank) for rank in "01"]
    for task in tasks:
        status, output = finish(task)
        assert status == 0, output
    assert distance(after(tmp_path / "runs" / "run", 16), after(one_process("digits"), 16)) < 1e-5
