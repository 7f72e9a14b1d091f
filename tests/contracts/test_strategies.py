"""Every strategy ends with the weights of one process, started by the launcher that it is made for."""

import dataclasses
import json
import os
import signal

import pytest
from support.jobs import (
    distance,
    finish,
    launcher,
    newest,
    real_data_folder,
    run,
    start,
    wait_for_a_step,
)
from support.parity import EVERY_STEP, PLAIN, after, assert_same_training, one_process, reference
from support.shared_runs import SharedRun
from support.stack import FRAMEWORKS

from hvdtrain.runs import metrics
from hvdtrain.system.network import free_port

# Framework, strategy, options, launcher; each on two ranks, or on two devices of one process.
SHORT_ROWS = [
    ("torch", "ddp", (), "torchrun"),
    ("torch", "dataparallel", (), "alone"),
    ("torch", "manual", (), "alone"),
    ("torch", "ring", (), "local"),
    ("torch", "mpi", (), "mpirun"),
    ("tensorflow", "mirrored", (), "alone"),
    ("tensorflow", "single", ("--api", "fit"), "alone"),
    ("tensorflow", "horovod", ("--api", "fit"), "gloo"),
    ("tensorflow", "mirrored", ("--api", "fit"), "alone"),
    ("mxnet", "kvstore", ("--kvstore", "local"), "alone"),
    ("mxnet", "kvstore", ("--kvstore", "device"), "alone"),
    ("mxnet", "kvstore", ("--kvstore", "dist_sync"), "local"),
    ("mxnet", "single", ("--api", "module"), "alone"),
    ("mxnet", "horovod", ("--api", "module"), "gloo"),
    ("mxnet", "kvstore", ("--api", "module"), "alone"),
    ("mxnet", "single", ("--api", "ndarray"), "alone"),
    ("mxnet", "horovod", ("--api", "ndarray"), "gloo"),
    ("mxnet", "manual", (), "alone"),
]
# The short suite has MXNet's ring in test_tasks.
MATRIX_ROWS = [
    ("torch", "ddp", (), "local"),
    ("tensorflow", "multiworker", (), "local"),
    ("tensorflow", "multiworker", ("--api", "fit"), "local"),
    ("tensorflow", "ring", (), "local"),
    ("tensorflow", "mpi", (), "mpirun"),
    ("tensorflow", "horovod", ("--api", "fit", "--groups", "3"), "gloo"),
    ("mxnet", "horovod", ("--api", "module", "--groups", "3"), "gloo"),
    ("mxnet", "horovod", ("--api", "ndarray", "--groups", "3"), "gloo"),
    ("mxnet", "kvstore", ("--kvstore", "dist_device_sync"), "local"),
    ("mxnet", "kvstore", ("--api", "module", "--kvstore", "dist_sync"), "local"),
    ("mxnet", "ring", (), "local"),
    ("mxnet", "mpi", (), "mpirun"),
]
ROWS = SHORT_ROWS + MATRIX_ROWS

STARTS_ONCE = {"ddp", "multiworker", "dist_sync", "dist_device_sync"}
"""Strategies that a process can start only once: of torch.distributed, TensorFlow's collectives, MXNet's servers."""


UNTOLD = {"multiworker", "dist_sync", "dist_device_sync"}
"""Strategies whose framework does not tell how long it communicates."""


def assert_times_of_ranks(run_folder, ranks, tells):
    """Each logging interval has seconds of each rank, and those of communicating where the strategy tells them."""
    steps = [one for one in metrics.read(run_folder / "metrics.jsonl") if one["kind"] == "train"]
    for one in steps:
        parts = [one["compute_s"], one["data_s"], *([one["communicate_s"]] if tells else [])]
        assert all(len(part) == ranks and min(part) >= 0 for part in parts)
        assert min(one["compute_s"]) > 0
        assert tells or one["communicate_s"] is None
    assert not tells or (min(steps[-1]["communicate_s"]) > 0) == (ranks > 1)


def row_name(row):
    framework, strategy, options, by = row
    return "-".join([framework, strategy, *options[1::2], by])


def row_run(row, name, *own_options):
    """A run of a row."""
    framework, strategy, options, by = row
    own_job = bool(STARTS_ONCE & {strategy, *options})
    options = ("--strategy", strategy, *options, *own_options)
    return SharedRun(framework, f"{row_name(row)}-{name}", options, by, 1 if by == "alone" else 2, own_job)


def row_case(row, data):
    """The row's strategy trained with a data set; skipped if the data set is not here."""
    trained = row_run(row, data, "--data", data, *PLAIN, *EVERY_STEP)
    available = data == "digits" or real_data_folder()
    marks = [
        pytest.mark.trains(trained, reference(data))
        if available
        else pytest.mark.skip("needs HVDTRAIN_DATA, a folder that holds fashion-mnist/")
    ]
    if data != "digits" or row in MATRIX_ROWS:
        marks.append(pytest.mark.matrix)
    return pytest.param(row, data, trained, marks=marks, id=f"{data}-{row_name(row)}")


@pytest.mark.guarantee("every-strategy")
@pytest.mark.guarantee("exact-evaluation")
@pytest.mark.parametrize(
    ("row", "data", "trained"), [row_case(row, data) for data in ("digits", "fashion-mnist") for row in ROWS]
)
def test_weights_and_accuracy_equal_those_of_one_process(shared_jobs, row, data, trained):
    run_folder = shared_jobs.folder(trained)
    assert "Grad strides do not match" not in shared_jobs.output(trained)  # a warning of DistributedDataParallel
    assert_same_training(run_folder, shared_jobs.folder(reference(data)), trained.ranks)
    devices = json.loads((run_folder / "config.json").read_text())["devices"]
    assert trained.ranks * devices == (1 if row[1] == "single" else 2)
    assert_times_of_ranks(run_folder, trained.ranks, tells=not UNTOLD & {row[1], *row[2]})


# One row per learner: each has the same momentum, and resumes bit for bit.
SHORT_LEARNERS = [
    ("torch", "manual", (), "alone"),
    ("tensorflow", "mirrored", (), "alone"),
    ("mxnet", "kvstore", ("--kvstore", "device"), "alone"),
    ("mxnet", "kvstore", ("--api", "module"), "alone"),
    ("mxnet", "manual", (), "alone"),
]
MATRIX_LEARNERS = [
    ("torch", "ddp", (), "local"),
    ("tensorflow", "horovod", ("--api", "fit"), "gloo"),
]

# Only 8 steps, because momentum amplifies rounding; in the warm-up, where the learning rate changes at each step.
RECIPE = (
    *("--momentum", "0.9", "--nesterov", "--weight-decay", "0.001", "--lr", "0.02"),
    *("--schedule", "cosine", "--warmup-epochs", "0.5"),
)
EIGHT_STEPS = one_process("momentum-recipe", *RECIPE, "--max-steps", "8")


def learner_case(row):
    """The row's strategy trained for 5 of 8 steps, resumed, and trained for all 8 steps."""
    interrupted = row_run(row, "interrupted", *RECIPE, "--max-steps", "5")
    resume = ("--resume", f"runs/{interrupted.folder_name}", "--max-steps", "8")
    runs = (
        interrupted,
        dataclasses.replace(interrupted, options=resume),
        row_run(row, "straight", *RECIPE, "--max-steps", "8"),
    )
    marks = [pytest.mark.trains(EIGHT_STEPS, *runs), *([pytest.mark.matrix] if row in MATRIX_LEARNERS else [])]
    return pytest.param(*runs, marks=marks, id=row_name(row))


@pytest.mark.guarantee("resume-bit-for-bit")
@pytest.mark.parametrize(
    ("interrupted", "resumed", "straight"), [learner_case(row) for row in SHORT_LEARNERS + MATRIX_LEARNERS]
)
def test_momentum_and_resume(shared_jobs, interrupted, resumed, straight):
    shared_jobs.folder(interrupted)  # must be trained before it can be resumed
    weights = newest(shared_jobs.folder(resumed)).weights
    assert distance(weights, newest(shared_jobs.folder(EIGHT_STEPS)).weights) < 2e-5
    assert distance(weights, newest(shared_jobs.folder(straight)).weights) == 0


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_strategy_help(tmp_path, framework):
    status, output = run(["python", "-m", f"hvdtrain.{framework}_lenet", "--strategy", "help"], tmp_path)
    assert status == 0, output
    for row_framework, strategy, options, _ in ROWS:
        if row_framework == framework:
            assert f"\n  {strategy} " in output
            assert "--api" not in options or options[options.index("--api") + 1] in output
    assert "not here" not in output


def test_strategy_help_says_why_a_strategy_cannot_run(tmp_path):
    """With an mpi4py that cannot be imported, as if MPI were missing."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("raise ImportError('libmpi.so: cannot open')")
    command = ["python", "-m", "hvdtrain", "train", "--framework", "torch", "--strategy"]
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    status, output = run([*command, "help"], tmp_path, **environment)
    assert status == 0
    assert "not here: mpi4py cannot be imported (libmpi.so: cannot open); run: make setup" in output
    status, output = run([*command, "mpi"], tmp_path, **environment)
    assert status == 2
    assert "mpi4py cannot be imported" in output


UNSUPPORTED = [
    ("torch", ("--strategy", "mirrored"), "torch has no such strategy; --strategy help lists them"),
    ("torch", ("--strategy", "ddp", "--api", "fit"), "--api fit: torch has loop"),
    pytest.param(
        *("tensorflow", ("--strategy", "ring", "--api", "fit"), "no such strategy with --api fit, but with --api loop"),
        marks=pytest.mark.needs("tensorflow"),
    ),
    ("torch", ("--strategy", "ddp", "--devices", "2"), "--devices 2: --strategy ddp uses one device per process"),
    ("torch", ("--strategy", "ddp", "--accumulate", "2"), "--accumulate 2: DistributedDataParallel reduces"),
    ("torch", ("--strategy", "manual", "--devices", "65"), "--devices 65: a batch has 64 row(s)"),
    ("torch", ("--strategy", "single", "--accumulate", "65"), "--accumulate 65: a step has 64 row(s) on each device"),
    (
        "torch",
        ("--strategy", "ddp", "--op", "sum"),
        "--op sum: only --strategy horovod has this option",
    ),
    (
        "mxnet",
        ("--strategy", "single", "--kvstore", "local"),
        "--kvstore local: only --strategy kvstore has this option",
    ),
]
# By the same rule as --accumulate 2.
MATRIX_UNSUPPORTED = [
    ("torch", ("--strategy", "manual", "--optimizer", "adam"), "--optimizer adam: the hand-written update is SGD"),
    ("tensorflow", ("--strategy", "single", "--api", "fit", "--clip-norm", "1"), "--clip-norm 1.0: Keras clips before"),
]


@pytest.mark.needs()
@pytest.mark.parametrize(
    ("framework", "options", "error"),
    [*UNSUPPORTED, *(pytest.param(*one, marks=pytest.mark.matrix) for one in MATRIX_UNSUPPORTED)],
)
def test_unsupported_options_give_a_one_line_error(tmp_path, framework, options, error):
    status, output = run(["python", "-m", f"hvdtrain.{framework}_lenet", *options], tmp_path)
    assert status == 2, output
    assert error in output
    assert "Traceback" not in output


@pytest.mark.parametrize("strategy", ["single", "dataparallel"])
def test_strategies_of_one_process_reject_several(tmp_path, strategy):
    command = [*launcher("local", 2), "python", "-m", "hvdtrain.torch_lenet", "--strategy", strategy]
    status, output = run(command, tmp_path)
    assert status == 2
    assert f"launch local started 2 processes, but with --strategy {strategy} each would train alone" in output


def test_horovod_rejects_torchrun(tmp_path):
    status, output = run([*launcher("torchrun", 2), "python", "-m", "hvdtrain.torch_lenet"], tmp_path)
    assert status != 0
    assert "torchrun started 2 processes, but Horovod cannot see them" in output
    assert "horovodrun or mpirun" in output


def test_dataparallel_prints_a_notice_on_a_cpu(tmp_path):
    options = ("--strategy", "dataparallel", "--device", "cpu", "--max-steps", "1")
    status, output = run(["python", "-m", "hvdtrain.torch_lenet", *options], tmp_path)
    assert status == 0, output
    assert "torch.nn.DataParallel supports GPUs only: scatter, replicate, apply and gather run over 2 parts" in output


def test_ring_without_a_rendezvous_address(tmp_path):
    command = ["python", "-m", "hvdtrain.torch_lenet", "--strategy", "ring"]
    status, output = run(command, tmp_path, RANK="0", WORLD_SIZE="2")
    assert status == 2
    assert "torchrun set no MASTER_ADDR and MASTER_PORT" in output


@pytest.mark.parametrize("strategy", ["ring", pytest.param("ddp", marks=pytest.mark.matrix)])
def test_a_killed_rank_ends_the_job(tmp_path, strategy):
    """The launcher reports the rank and the signal, and leaves no process behind."""
    command = [*launcher("local", 3), "python", "-m", "hvdtrain.torch_lenet"]
    options = ("--strategy", strategy, "--epochs", "500", "--name", "run", "--log-every", "1")
    process = start([*command, *options], tmp_path)
    wait_for_a_step(tmp_path / "runs" / "run")
    ranks = [child for agent in children(process.pid) for child in children(agent)]
    assert len(ranks) == 3
    os.kill(ranks[1], signal.SIGKILL)
    status, output = finish(process, 30)
    assert status == 128 + signal.SIGKILL, output
    assert f"rank 1 on {os.uname().nodename} was killed by SIGKILL; ending the others" in output
    for pid in ranks:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def children(pid):
    """Processes that this one started, in the order of their ranks."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return sorted(int(pid) for pid in file.read().split())


def test_adasum_needs_mpi(tmp_path):
    command = [*launcher("gloo", 2), "python", "-m", "hvdtrain.torch_lenet", "--op", "adasum"]
    status, output = run(command, tmp_path)
    assert status != 0
    assert "--op adasum: Horovod has no Adasum over Gloo; start by horovodrun --mpi or mpirun" in output


@pytest.mark.needs("tensorflow")
@pytest.mark.trains(reference())
def test_multiworker_by_tf_config(tmp_path, shared_jobs):
    """As in TensorFlow's documentation: the same program for each task, with TF_CONFIG set; also behind a proxy."""
    port = free_port()
    cluster = {"chief": [f"127.0.0.1:{port}"], "worker": [f"127.0.0.1:{port + 1}"]}
    proxy = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    command = ["python", "-m", "hvdtrain.tensorflow_lenet", "--strategy", "multiworker", "--name", "run"]
    processes = []
    for task in cluster:
        config = {"cluster": cluster, "task": {"type": task, "index": 0}}
        processes.append(start([*command, *PLAIN, *EVERY_STEP], tmp_path, TF_CONFIG=json.dumps(config), **proxy))
    for process in processes:
        status, output = finish(process)
        assert status == 0, output
    assert distance(after(tmp_path / "runs" / "run", 16), after(shared_jobs.folder(reference()), 16)) < 1e-5


@pytest.mark.trains(reference())
@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.matrix)])
def test_slurm_variables_suffice(tmp_path, shared_jobs, framework):
    """With the variables that srun sets for the tasks of a step on one node; the test needs no Slurm."""
    strategy = {"tensorflow": "multiworker", "torch": "ddp"}[framework]
    options = ("--strategy", strategy, "--name", "run", *PLAIN, *EVERY_STEP)
    command = ["python", "-m", f"hvdtrain.{framework}_lenet", *options]
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": str(os.getpid())}
    tasks = [start(command, tmp_path, **step, SLURM_PROCID=rank, SLURM_LOCALID=rank) for rank in "01"]
    for task in tasks:
        status, output = finish(task)
        assert status == 0, output
    assert distance(after(tmp_path / "runs" / "run", 16), after(shared_jobs.folder(reference()), 16)) < 1e-5
