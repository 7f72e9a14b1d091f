"""How many threads each rank computes with where nobody says it: its share of the cores, under every launcher.

Launchers set variables and affinities, and libraries read the environment when a process starts.
"""

import json
import os
import re

import pytest
from support.jobs import launcher, succeed
from support.stack import FASTEST, FRAMEWORKS, cases

from hvdtrain.system.resources import within_quota

UNSET = ["env", *(f"--unset={name}" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"))]
CORES = sorted(os.sched_getaffinity(0))
PROGRAM = """
import os, sys
from hvdtrain.config.options import Config, RuntimeOptions
from hvdtrain.training.process import prepare_host

for variable, threads in (("", 0), ("5", 0), ("5", 6)):
    if not os.fork():
        os.environ |= {"OMP_NUM_THREADS": variable} if variable else {}
        prepare_host(Config(threads=threads), RuntimeOptions())
        os.write(1, f"threads {os.environ['OMP_NUM_THREADS']}.\\n".encode())
        os._exit(0)
    os.wait()
"""


def share(ranks, cores=CORES):
    return max(within_quota(len(cores)) // ranks, 1)


def threads_of_ranks(command, folder, program=PROGRAM):
    output = succeed([*UNSET, *command, "python", "-c", program], folder)
    return sorted(int(number) for number in re.findall(r"threads (\d+)\.", output))


def matrix(*values):
    return pytest.param(*values, marks=pytest.mark.matrix)


@pytest.mark.parametrize(
    ("by", "ranks"),
    [
        *(("gloo", 2), ("mpirun", 2), matrix("mpi", 2), matrix("torchrun", 2), matrix("local", 2), ("alone", 1)),
        *(matrix(by, ranks) for ranks in (1, 8) for by in ("gloo", "mpi", "mpirun", "torchrun", "local")),
    ],
)
def test_a_rank_computes_on_its_share_unless_a_variable_or_an_option_says_otherwise(tmp_path, by, ranks):
    if by == "torchrun":
        pytest.importorskip("torch")
    many = ["--mpi-args=--allow-run-as-root --oversubscribe"] if by == "mpi" else []
    command = [word for word in launcher(by, ranks) if not (many and word.startswith("--mpi-args"))]
    assert threads_of_ranks([*command, *many], tmp_path) == sorted([share(ranks), 5, 6] * ranks)


def test_only_the_cores_of_the_launcher_are_shared(tmp_path):
    bound = ["taskset", "--cpu-list", ",".join(map(str, CORES[:2]))]
    expected = sorted([share(2, CORES[:2]), 5, 6] * 2)
    assert threads_of_ranks([*bound, *launcher("gloo", 2)], tmp_path) == expected


@pytest.mark.matrix
def test_mpirun_binds_ranks_to_cores_by_itself(tmp_path):
    command = [word for word in launcher("mpirun", 2) if word not in ("--bind-to", "none")]
    found = threads_of_ranks(command, tmp_path)
    assert 1 <= found[0] <= found[1] <= share(2) and found[2:] == [5, 5, 6, 6]


@pytest.mark.parametrize("survive", [(), matrix(("--survive",))])
def test_any_program_of_hvdtrain_s_launcher_gets_the_share(tmp_path, survive):
    *command, end = launcher("local", 2)
    program = "import os; print(f\"threads {os.environ['OMP_NUM_THREADS']}.\")"
    assert threads_of_ranks([*command, *survive, end], tmp_path, program) == [share(2)] * 2


def test_a_job_that_a_rank_launches_has_its_own_shares(tmp_path):
    inner = launcher("local", 2)
    assert threads_of_ranks([*launcher("local", 1), *inner], tmp_path) == sorted([share(2), 5, 6] * 2)


@pytest.mark.parametrize("framework", cases(FRAMEWORKS, [FASTEST]))
def test_horovodrun_over_gloo_trains_on_the_share_and_records_it(tmp_path, framework):
    given = ("--data", "synthetic", "--device", "cpu", "--max-steps", "1", "--name", "run")
    command = [*launcher("gloo", 2), "python", "-m", f"hvdtrain.{framework}_lenet", *given]
    succeed([*UNSET, *command], tmp_path)
    record = json.loads((tmp_path / "runs" / "run" / "config.json").read_text())
    assert record["arithmetic"]["threads"] == int(record["host"]["OMP_NUM_THREADS"]) == share(2)
