"""A rank that computes slowly is named while it does, and records tell what the ranks do meanwhile."""

import re
import statistics
import time

import pytest
from support.jobs import finish, launcher, pids_of_ranks, records, start, wait_for
from support.slowed import slowed

STOPPED_S, RUNNING_S = 0.3, 0.1
"""So much slower that it shows on a busy machine, where a rank that was stopped gets more of the cores afterwards."""
NAMED = re.compile(r"rank 1 on \S+ is slow: it computes")
NAMED_WITHIN_S = 60
MATRIX = pytest.mark.matrix


@pytest.mark.parametrize(
    ("framework", "options", "by"),
    [
        pytest.param("torch", ("--strategy", "ring"), "local", id="torch-ring", marks=MATRIX),
        pytest.param("torch", ("--strategy", "ddp"), "local", id="torch-ddp", marks=MATRIX),
        pytest.param("torch", ("--strategy", "mpi"), "mpirun", id="torch-mpi", marks=MATRIX),
        pytest.param("torch", (), "gloo", id="torch-horovod", marks=MATRIX),
        pytest.param("mxnet", (), "local", id="mxnet-horovod"),
        pytest.param("mxnet", ("--strategy", "module"), "mpirun", id="mxnet-module-horovod", marks=MATRIX),
        pytest.param("tensorflow", (), "gloo", id="tensorflow-horovod", marks=MATRIX),
        pytest.param("tensorflow", ("--strategy", "keras-fit"), "mpirun", id="tensorflow-fit-horovod", marks=MATRIX),
    ],
)
def test_a_slow_rank_is_named_while_it_is_slow(tmp_path, framework, options, by):
    command = [*launcher(by, 2), "python", "-m", f"hvdtrain.{framework}_lenet", *options, "--name", "run"]
    process = start([*command, "--epochs", "10000", "--lr", "0.001", "--log-every", "5", "--bind", "none"], tmp_path)
    folder = tmp_path / "runs" / "run"
    log = folder / "logs" / "rank-0.log"
    pid = pids_of_ranks(folder, 2)[1]
    with slowed(pid, STOPPED_S, RUNNING_S):
        began = time.time()
        wait_for(lambda: NAMED.search(log.read_text()), NAMED_WITHIN_S, log.read_text)
        ended = time.time()
    process.terminate()
    output = finish(process)[1]
    assert NAMED.search(output) and "rank 0 on " not in output
    steps = records(folder, "train")
    slow = [one for one in steps if began + 1 < one["time"] < ended]
    assert len(slow) > 2

    def both(name):
        return [statistics.fmean(one[name][rank] for one in slow) for rank in range(2)]

    assert both("compute_s")[1] > 1.3 * both("compute_s")[0], "what a rank computes is its own"
    assert both("communicate_s")[0] > both("communicate_s")[1], "and the other one waits"
