"""The Horovod that make setup builds: its core, in jobs that use it, and what horovodrun asks before it starts."""

import functools
import os
import re
import socket
import sys

import psutil
import pytest
from support.environment import script
from support.jobs import ROOT, launcher, run, succeed
from support.stack import INSTALLED

SUPPORT = ROOT / "tests" / "support"
RIGHT = r"^(?:\[\d+\] ?(?:<stdout>: ?)?)?(\d+) operations were right"
MATRIX = pytest.mark.matrix(minutes=0.9)


def job(folder, by, ranks, program, *words, **variables):
    """The output of a program of support/ on so many ranks."""
    command = [*launcher(by, ranks), "python", str(SUPPORT / f"{program}.py"), *words]
    return succeed(command, folder, timeout_s=500, **variables)


def other_interface():
    """An interface of this host besides lo, and its address; else lo."""
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if name != "lo" and address.family == socket.AF_INET and psutil.net_if_stats()[name].isup:
                return name, address.address
    return "lo", "127.0.0.1"


@pytest.fixture(scope="module")
def ranks_of(tmp_path_factory):
    """The output of a job of PyTorch with all parts of core_edges.py, by launcher and HOROVOD_EVENT_DRIVEN."""

    @functools.cache
    def of(by, event_driven):
        parts = ["waiting=5"]
        if by == "local":  # MPI can be initialized once in a process
            parts += ["allreduces=100", f"addresses={other_interface()[0]}", "join"]
        folder = tmp_path_factory.mktemp(by)
        return job(folder, by, 3, "core_edges", *parts, HOROVOD_EVENT_DRIVEN=event_driven)

    return of


OVER_GLOO = [("local", "1"), pytest.param("local", "0", marks=MATRIX)]


@pytest.mark.needs("torch")
@pytest.mark.parametrize(("by", "event_driven"), OVER_GLOO)
def test_random_allreduces_and_alltoalls_of_process_sets(ranks_of, by, event_driven):
    assert re.findall(RIGHT, ranks_of(by, event_driven), re.M) == 3 * ["100"]


@pytest.mark.needs("torch")
@pytest.mark.parametrize(("by", "event_driven"), [*OVER_GLOO, pytest.param("mpirun", "1", marks=MATRIX)])
def test_what_a_rank_waits_for_counts_once_and_only_after_its_last_gradient(ranks_of, by, event_driven):
    """Rank 1 is late twice in a step; a gradient that is combined while rank 0 computes another costs no time."""
    found = re.findall(r"rank (\d) waited (\S+) and (\S+)", ranks_of(by, event_driven))
    waits = {rank: (float(measured), float(expected)) for rank, measured, expected in found}
    measured, expected = waits["0"]
    assert 0.75 * expected < measured < 1.25 * expected, "with the first gradient it would be twice as much"
    assert waits["1"][0] < measured


@pytest.mark.needs("torch")
@pytest.mark.parametrize(("by", "event_driven"), OVER_GLOO)
def test_the_operations_use_the_interface_that_is_named(ranks_of, by, event_driven):
    """The launcher's ranks find each other over lo."""
    name, address = other_interface()
    if name == "lo":
        pytest.skip("this host has no second address")
    assert re.findall(r"addresses (.+)", ranks_of(by, event_driven)) == [address] * 3


@pytest.mark.needs("torch")
@pytest.mark.parametrize(("by", "event_driven"), OVER_GLOO)
def test_the_autotuner_goes_on_when_a_rank_has_joined(ranks_of, by, event_driven):
    found = re.findall(r"has joined, (\d+) operations were right", ranks_of(by, event_driven))
    assert sorted(found) == ["30", "60", "60"]


@pytest.mark.needs("torch")
def test_a_lost_connection_fails_on_all_ranks_and_gives_no_wrong_result(tmp_path):
    """The connection of two of four ranks, while all of them live."""
    output = job(tmp_path, "local", 4, "allreduces", "20", "10")
    assert re.findall(RIGHT, output, re.M) == 4 * ["10"], output


@pytest.mark.needs("mxnet")
def test_mxnet_may_free_a_name_before_it_was_logged(tmp_path):
    """With memory that changes when it is freed, reading it afterwards ends the process."""
    output = job(tmp_path, "local", 2, "mxnet_names", "400", MALLOC_PERTURB_="165")
    assert re.findall(RIGHT, output, re.M) == 2 * ["400"], output


@MATRIX
@pytest.mark.parametrize("event_driven", ["0", "1"])
@pytest.mark.parametrize(("by", "ranks"), [("local", 2), ("gloo", 4), ("gloo", 7), ("mpirun", 2), ("mpirun", 3)])
def test_many_random_allreduces_and_alltoalls_of_process_sets(tmp_path, by, ranks, event_driven):
    output = job(tmp_path, by, ranks, "allreduces", "300", HOROVOD_EVENT_DRIVEN=event_driven)
    assert output.count("300 operations were right") == ranks, output


ASK = """
from horovod.common import util
print(util.mpi_built(), util.gloo_built(), flush=True)
util._read_metadata = dict
print(util.mpi_built(verbose=0), util.gloo_built(verbose=0))
"""


def test_horovodrun_asks_the_build_what_it_contains_and_no_framework(tmp_path):
    """In a process in which no framework can be imported; without the build's answer, all that it has are asked."""
    for name in ("tensorflow", "torch", "mxnet"):
        text = f"open('imported', 'a').write('{name} ')\nraise SystemError('{name} is imported')\n"
        (tmp_path / f"{name}.py").write_text(text)
    status, output = run([sys.executable, "-c", ASK], tmp_path, PYTHONPATH=str(tmp_path))
    assert (status, output.splitlines()) == (0, ["True True", "None None"]), output
    asked = [name for name in ("tensorflow", "torch", "mxnet") if name in INSTALLED]
    assert (tmp_path / "imported").read_text().split() == 2 * asked


@pytest.mark.parametrize(
    ("version", "status", "implementation"),
    [
        ("mpirun (Open MPI) 4.1.4", 0, "OpenMPI"),
        ("IBM Spectrum MPI 10.3", 0, "SpectrumMPI"),
        ("HYDRA build details: MPICH 4.0", 0, "MPICH"),
        ("Intel(R) MPI Library 2021.9", 0, "IntelMPI"),
        ("an MPI that nobody knows", 0, None),
        ("it cannot run", 1, None),
    ],
)
def test_horovodrun_asks_mpirun_once_for_its_version(version, status, implementation, tmp_path):
    mpi_run = pytest.importorskip("horovod.runner.mpi_run")
    script(tmp_path / "mpirun", f"echo \"$@\" >> '{tmp_path}/calls'", f"echo '{version}'", f"exit {status}")
    found = mpi_run._get_mpi_implementation_flags(False, {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert found[2] == implementation
    assert (tmp_path / "calls").read_text() == "--version\n"
