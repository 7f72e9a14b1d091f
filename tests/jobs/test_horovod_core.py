"""Allreduces by the Horovod that make setup builds."""

import re
import socket

import psutil
import pytest
from support.jobs import ROOT, launcher, run

PROGRAM = ROOT / "tests" / "support" / "allreduces.py"
NAMES = ROOT / "tests" / "support" / "mxnet_names.py"
EDGES = ROOT / "tests" / "support" / "core_edges.py"
WAITING = ROOT / "tests" / "support" / "waiting.py"
RIGHT = r"(\d+) operations were right"


def check(folder, by, ranks, operations, **variables):
    command = [*launcher(by, ranks), "python", str(PROGRAM), str(operations)]
    status, output = run(command, folder, timeout_s=500, **variables)
    assert status == 0, output[-6000:]
    assert re.findall(RIGHT, output) == ranks * [str(operations)], output


@pytest.mark.needs("torch")
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.matrix), 3])
def test_random_allreduces_of_process_sets_over_gloo(tmp_path, ranks):
    check(tmp_path, "local", ranks, 100)


@pytest.mark.needs("torch")
def test_a_lost_connection_fails_on_all_ranks_and_gives_no_wrong_result(tmp_path):
    """The connection of two of four ranks, while all of them live."""
    status, output = run([*launcher("local", 4), "python", str(PROGRAM), "20", "10"], tmp_path)
    assert status == 0, output[-6000:]
    assert re.findall(RIGHT, output) == 4 * ["10"], output


@pytest.mark.needs("mxnet")
def test_mxnet_may_free_a_name_before_it_was_logged(tmp_path):
    """With memory that changes when it is freed, reading it afterwards ends the process."""
    command = [*launcher("local", 2), "python", str(NAMES), "400"]
    status, output = run(command, tmp_path, MALLOC_PERTURB_="165")
    assert status == 0, output[-6000:]
    assert re.findall(RIGHT, output) == 2 * ["400"], output


@pytest.mark.needs("torch")
@pytest.mark.parametrize("by", ["local", pytest.param("mpirun", marks=pytest.mark.matrix)])
def test_what_a_rank_waits_for_counts_once_and_only_after_its_last_gradient(tmp_path, by):
    """Rank 1 is late twice in a step; a gradient that is combined while rank 0 computes another costs no time."""
    status, output = run([*launcher(by, 2), "python", str(WAITING), "5"], tmp_path)
    assert status == 0, output[-6000:]
    waits = {
        line[0]: (float(line[1]), float(line[2])) for line in re.findall(r"rank (\d) waited (\S+) and (\S+)", output)
    }
    measured, expected = waits["0"]
    assert 0.75 * expected < measured < 1.25 * expected, "with the first gradient it would be twice as much"
    assert waits["1"][0] < measured


def other_interface():
    """An interface of this host besides lo, and its address."""
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if name != "lo" and address.family == socket.AF_INET and psutil.net_if_stats()[name].isup:
                return name, address.address
    pytest.skip("this host has no second address")


@pytest.mark.needs("torch")
def test_the_operations_use_the_interface_that_is_named(tmp_path):
    """The launcher's ranks find each other over lo."""
    name, address = other_interface()
    status, output = run([*launcher("local", 2), "python", str(EDGES), "addresses", name], tmp_path)
    assert status == 0, output[-6000:]
    assert re.findall(r"addresses (.+)", output) == [address] * 2


@pytest.mark.needs("torch")
@pytest.mark.parametrize("event_driven", ["1", pytest.param("0", marks=pytest.mark.matrix)])
def test_the_autotuner_goes_on_when_a_rank_has_joined(tmp_path, event_driven):
    variables = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_EVENT_DRIVEN": event_driven}
    status, output = run([*launcher("local", 2), "python", str(EDGES), "join"], tmp_path, **variables)
    assert status == 0, output[-6000:]
    assert sorted(re.findall(RIGHT, output)) == ["30", "60"], output


@pytest.mark.matrix
@pytest.mark.parametrize("event_driven", ["0", "1"])
@pytest.mark.parametrize(("by", "ranks"), [("gloo", 4), ("gloo", 7), ("mpirun", 2), ("mpirun", 3)])
def test_random_allreduces_of_process_sets(tmp_path, by, ranks, event_driven):
    check(tmp_path, by, ranks, 300, HOROVOD_EVENT_DRIVEN=event_driven)
