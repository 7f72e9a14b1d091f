"""Every strategy ends with the weights of one process, started by the launcher that it is made for.

It starts processes because strategies combine gradients over ranks and devices of real frameworks; see conftest.py.
"""

import json

import pytest
from support.jobs import PROGRAMS, distance, finish, launcher, records, start, succeed
from support.parity import EVERY_STEP, PLAIN, after, assert_same_training, one_process, reference
from support.shared_runs import RANKED, SharedRun, over_ranks, resumed, trains

from hvdtrain.config.rules import SINGLE
from hvdtrain.frameworks.registry import KVSTORES
from hvdtrain.system.network import free_port

SHORT = {
    ("torch", "alone"): ("dataparallel", "manual"),
    ("torch", "torchrun"): ("ddp",),
    ("torch", "mpirun"): ("mpi",),
    ("tensorflow", "alone"): ("mirrored", "keras-fit-single", "keras-fit-mirrored"),
    ("tensorflow", "gloo"): ("keras-fit",),
    ("mxnet", "alone"): ("kvstore-local", "kvstore-device", "module-single", "module-kvstore-device",
                         "ndarray-single", "manual"),
    ("mxnet", "local"): ("kvstore-dist",),
    ("mxnet", "gloo"): ("module", "ndarray"),
}  # fmt: skip
"""Strategies by framework and launcher; each on several ranks, or on two devices of one process."""
# The short suite has the ring of PyTorch and MXNet in test_tasks.
LONG = {
    ("torch", "local"): ("ddp", "ring"),
    ("tensorflow", "local"): ("multiworker", "keras-fit-multiworker", "ring"),
    ("tensorflow", "mpirun"): ("mpi",),
    ("mxnet", "local"): ("kvstore-dist-device", "module-kvstore-dist", "ring"),
    ("mxnet", "mpirun"): ("mpi",),
}
GROUPED = [("tensorflow", "keras-fit"), ("mxnet", "module"), ("mxnet", "ndarray")]


def rows_of(strategies):
    """Rows of a framework, a strategy, its options and a launcher."""
    return [(framework, name, (), by) for (framework, by), names in strategies.items() for name in names]


SHORT_ROWS = rows_of(SHORT)
ROWS = [*SHORT_ROWS, *rows_of(LONG), *((*row, ("--groups", "3"), "gloo") for row in GROUPED)]

UNTOLD = {"multiworker", "keras-fit-multiworker", *(name for name in KVSTORES if "dist" in name)}
"""Strategies whose framework does not tell how long it communicates."""


def assert_times_of_ranks(run_folder, ranks, tells):
    """Each logging interval has seconds of each rank, and those of communicating where the strategy tells them."""
    steps = records(run_folder, "train")
    for one in steps:
        parts = [one["compute_s"], one["data_s"], *([one["communicate_s"]] if tells else [])]
        assert all(len(part) == ranks and min(part) >= 0 for part in parts)
        assert min(one["compute_s"]) > 0
        assert tells or one["communicate_s"] is None
    # In sum: a comparison of the ranks before a step, at a checkpoint, takes a little from the step's figure.
    totals = [sum(of_rank) for of_rank in zip(*(one["communicate_s"] for one in steps), strict=True)] if tells else []
    assert not tells or (min(totals) > 0) == (ranks > 1)


def row_name(row):
    framework, strategy, options, by = row
    return "-".join([framework, strategy, *options[1::2], by])


def row_run(row, name, *own_options):
    """A run of a row."""
    framework, strategy, options, by = row
    options = ("--strategy", strategy, *options, *own_options)
    if by == "alone":
        return SharedRun(framework, f"{row_name(row)}-{name}", options)
    shared = RANKED[framework][0] == by and "--groups" not in options
    return over_ranks(framework, f"{row_name(row)}-{name}", *options, by=by, ranks=0 if shared else 2)


def row_case(row):
    own = row_run(row, "plain", *PLAIN, *EVERY_STEP)
    return trains(row, own, runs=(own, reference()), id=row_name(row), short=row in SHORT_ROWS)


@pytest.mark.guarantee("every-strategy")
@pytest.mark.guarantee("exact-evaluation")
@pytest.mark.parametrize(("row", "trained"), [*map(row_case, ROWS)])
def test_weights_and_accuracy_equal_those_of_one_process(shared_jobs, row, trained):
    run_folder, output = shared_jobs.folder(trained), shared_jobs.output(trained)
    assert "Grad strides do not match" not in output  # a warning of DistributedDataParallel
    assert ("torch.nn.DataParallel supports GPUs only" in output) or row[1] != "dataparallel"
    assert_same_training(run_folder, shared_jobs.folder(reference()), trained.ranks)
    devices = json.loads((run_folder / "config.json").read_text())["devices"]
    assert devices == (2 if row[3] == "alone" and row[1] not in SINGLE else 1)
    assert_times_of_ranks(run_folder, trained.ranks, tells=row[1].removeprefix("module-") not in UNTOLD)


@pytest.mark.parametrize(
    "framework",
    [trains(name, runs=[reference()], id=name, short=name == "mxnet") for name in ("torch", "mxnet", "tensorflow")],
)
def test_another_way_to_combine_gradients_is_one_file_for_all_frameworks(tmp_path, shared_jobs, framework):
    """tests/support/reverse_order.py, which knows no framework."""
    program = ["python", str(PROGRAMS.with_name("reverse_order.py")), framework, "--name", "run"]
    succeed([*launcher("local", 3), *program, *PLAIN, *EVERY_STEP], tmp_path)
    assert_same_training(tmp_path / "runs" / "run", shared_jobs.folder(reference()), 3)


# One row per learner: each has the same momentum, and resumes bit for bit.
SHORT_LEARNERS = rows_of(
    {
        ("torch", "alone"): ("manual",),
        ("tensorflow", "alone"): ("mirrored",),
        ("mxnet", "alone"): ("kvstore-device", "module-kvstore-device", "manual"),
    }
)
MATRIX_LEARNERS = rows_of(
    {
        ("torch", "local"): ("ddp", "horovod"),
        ("tensorflow", "gloo"): ("horovod", "keras-fit"),
        ("mxnet", "gloo"): ("horovod",),
    }
)

# Only 8 steps, because momentum amplifies rounding; in the warm-up, where the learning rate changes at each step.
RECIPE = (
    *("--momentum", "0.9", "--nesterov", "--weight-decay", "0.001", "--lr", "0.02"),
    *("--schedule", "cosine", "--warmup-epochs", "0.5"),
)
EIGHT_STEPS = one_process("momentum-recipe", *RECIPE, "--max-steps", "8")


def learner_case(row):
    """The row's strategy trained for 5 of 8 steps, resumed, and trained for all 8 steps."""
    runs = resumed(row_run(row, "momentum", *RECIPE), 8, 5)
    return trains(runs, runs=(EIGHT_STEPS, *runs), id=row_name(row), short=row in SHORT_LEARNERS)


@pytest.mark.guarantee("resume-bit-for-bit")
@pytest.mark.parametrize("runs", [learner_case(row) for row in SHORT_LEARNERS + MATRIX_LEARNERS])
def test_momentum_and_resume(shared_jobs, runs):
    whole = shared_jobs.assert_resumed(runs)
    assert distance(whole.weights, shared_jobs.newest(EIGHT_STEPS).weights) < 2e-5


def tf_config():
    """The variables of two ranks as in TensorFlow's documentation; also behind a proxy."""
    port = free_port()
    cluster = {"chief": [f"127.0.0.1:{port}"], "worker": [f"127.0.0.1:{port + 1}"]}
    for task in cluster:
        config = {"cluster": cluster, "task": {"type": task, "index": 0}}
        proxy = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "no_proxy": ""}
        yield {"TF_CONFIG": json.dumps(config), **proxy}


def slurm():
    """The variables that srun sets for the tasks of a step on one node; the test needs no Slurm."""
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_JOB_ID": str(free_port())}
    for rank in "01":
        yield {**step, "SLURM_PROCID": rank, "SLURM_LOCALID": rank}


@pytest.mark.parametrize(
    ("framework", "strategy", "variables"),
    [
        trains("tensorflow", "multiworker", tf_config, runs=[reference()], id="tensorflow-TF_CONFIG"),
        trains("tensorflow", "multiworker", slurm, runs=[reference()], id="tensorflow-Slurm", short=False),
        trains("torch", "ddp", slurm, runs=[reference()], id="torch-Slurm", short=False),
    ],
)
def test_ranks_find_each_other_by_variables(tmp_path, shared_jobs, framework, strategy, variables):
    """Without a launcher of hvdtrain or Horovod."""
    options = ("--strategy", strategy, "--name", "run", *PLAIN, *EVERY_STEP)
    command = ["python", "-m", f"hvdtrain.{framework}_lenet", *options]
    for rank in [start(command, tmp_path, **given) for given in variables()]:
        status, output = finish(rank)
        assert status == 0, output
    assert distance(after(tmp_path / "runs" / "run", 16), after(shared_jobs.folder(reference()), 16)) < 1e-5
